"""Analyses: facts about a program that placement uses, such as classes and demand."""
