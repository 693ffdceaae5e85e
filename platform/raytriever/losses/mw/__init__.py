"""Mann-Whitney loss: every positive of the batch against every negative, in time linear in the number of scores."""
