"""Settings of the Python interpreter while code of this package runs."""
