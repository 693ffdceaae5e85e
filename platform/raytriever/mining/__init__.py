"""Mining of hard negatives: BM25, candidate finders, scorers and filters."""
