"""Sweeps under Ray Tune: plan, shared training data, trials and the trial manager."""
