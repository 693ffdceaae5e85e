"""Encode the texts of a data set and store the embeddings."""
