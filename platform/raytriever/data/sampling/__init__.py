"""Training examples and their order: positives, negatives, mixtures of data sets, batches and teacher scores."""
