"""Model directory: how it is found, its files, and the modules of sentence-transformers in it."""
