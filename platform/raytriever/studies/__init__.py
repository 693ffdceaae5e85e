"""Studies: the trainings behind a table of a paper, their results, claims and pages."""
