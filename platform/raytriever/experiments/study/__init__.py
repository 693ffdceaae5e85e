"""Study of a file: the trainings behind a table, their results, claims and page."""
