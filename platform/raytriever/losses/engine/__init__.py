"""Shared engine of the losses: global batch, collectives, one pass over score panels, row losses."""
