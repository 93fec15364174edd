"""A small Flower app."""
