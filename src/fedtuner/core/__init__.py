"""The tuner itself, in NumPy alone: records, one round, its tally, and the protocols that everything else satisfies.

Read ``round.py`` (one communication round), ``tally.py`` (what the server makes of the reports) and
``tuners/fedex.py`` (theta): these are the paper's algorithms.
"""
