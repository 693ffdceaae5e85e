"""Top-k over embeddings."""
