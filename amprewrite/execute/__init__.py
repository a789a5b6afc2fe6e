"""What runs of a program tell, written once for all frameworks."""
