"""Parts of the benchmark of size: generated corpus, encoder, stages, and sampled memory."""
