"""Model directory: its location, its files, and the modules of sentence-transformers in it."""
