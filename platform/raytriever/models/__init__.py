"""Texts to embeddings: the encoder, its pooling, its one or two towers, and their files."""
