"""HTML pages, plots and comparisons of finished runs and evaluations."""
