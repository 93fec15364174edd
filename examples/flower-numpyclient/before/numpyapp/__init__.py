"""A Flower app of the older kind: a NumPyClient."""
