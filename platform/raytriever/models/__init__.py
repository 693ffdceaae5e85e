"""Models that encode texts: encoder, pooling, one or two towers, prompts, and their directories."""
