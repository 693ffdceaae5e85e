"""Approximate nearest-neighbor (ANN) indexes: FAISS, Vamana and RoarGraph, their files, and their evaluation."""
