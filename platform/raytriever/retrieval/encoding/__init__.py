"""Encoding of the texts of a data set, and storage of the embeddings."""
