"""Models in files: exported programs, and folders that transformers wrote."""
