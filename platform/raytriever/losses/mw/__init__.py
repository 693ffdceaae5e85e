"""MW: every positive of the batch against every negative of the batch, in time linear in the scores."""
