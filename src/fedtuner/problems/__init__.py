"""The built-in problems, one module for each data set: its clients with a network. The networks are in ``models``."""
