"""Mining of hard negatives: BM25, finders of candidates with their scorers, and filters."""
