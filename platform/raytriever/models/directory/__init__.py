"""Model directory: where it comes from, its files, and the modules of sentence-transformers in it."""
