"""Study of the query-document gap: distances of both clouds, and the cost of approximate search for real queries."""
