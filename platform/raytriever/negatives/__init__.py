"""Which documents to contrast a query with: pure functions of arrays and texts."""
