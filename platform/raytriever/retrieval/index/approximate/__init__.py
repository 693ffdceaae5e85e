"""Approximate indexes: finders (FAISS, Vamana, RoarGraph), their files, and their measurement."""
