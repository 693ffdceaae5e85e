"""Study of the query-document gap: distances of queries from passages, and the cost of approximate search for both."""
