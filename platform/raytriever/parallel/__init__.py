"""What many workers must agree on: gathered candidates, the strategy, the process group."""
