"""Models in files: programs as text and as files, folders that transformers wrote."""
