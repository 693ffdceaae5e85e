"""Run of a study: settings, arms, tables and figures."""
