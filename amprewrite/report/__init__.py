"""Views of plans and policies for people."""
