"""Modules of a sentence-transformers directory: their order, their settings, and those after the transformer."""
