"""Teacher scores of a cross-encoder, for distillation."""
