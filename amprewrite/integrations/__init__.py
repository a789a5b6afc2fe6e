"""Plugins for other libraries' extension points, a module for each library.

Importing this package loads none of those libraries; a module of it loads its own.
"""
