"""Study that a file defines: the trainings for a table, their results, the claims and the page."""
