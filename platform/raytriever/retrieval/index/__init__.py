"""Top-k search over embeddings: scores, rankings, and exact and approximate indexes."""
