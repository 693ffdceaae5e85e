"""Mann-Whitney loss: every positive of the batch is compared with every negative, in linear time."""
