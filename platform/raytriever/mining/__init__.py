"""Mine hard negatives: BM25, finders of candidates, scorers and filters."""
