"""Study that a file defines: the trainings behind a table, their results, claims and page."""
