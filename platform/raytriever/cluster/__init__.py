"""Everything on Ray but sweeps: sessions, jobs, gauges, ingest, training, encoding and search by actors."""
