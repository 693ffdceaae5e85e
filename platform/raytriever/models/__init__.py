"""Models that encode texts: the encoder, its pooling, its one or two towers, and their files."""
