"""Studies of the tables in *Optimizing What Matters: AUC-driven learning for robust neural retrieval*."""
