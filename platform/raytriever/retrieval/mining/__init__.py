"""Mining of hard negatives: BM25, search for candidates, scorers, and filters of false negatives."""
