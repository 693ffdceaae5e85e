"""Studies of papers: the trainings behind a table, their results, claims and pages."""
