"""Top-k over embeddings: scores, rankings, and exact and approximate indexes."""
