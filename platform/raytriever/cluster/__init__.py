"""Everything on Ray but tuning: sessions, jobs, gauges, ingest, training, encoding and search by actors."""
