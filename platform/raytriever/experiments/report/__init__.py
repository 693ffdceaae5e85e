"""HTML pages, figures and comparisons of finished runs and evaluations."""
