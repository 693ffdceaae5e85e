"""Training examples and their order: positives, negatives, mixtures, batches and teacher scores."""
