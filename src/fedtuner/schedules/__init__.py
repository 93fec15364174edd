"""Which arms run, up to which round, and which survive: successive halving, random search and Hyperband."""

from fedtuner.core.schedule import Evidence, Outline, Play, Schedule, Score, Scoring, Start, Step, outline, unused
from fedtuner.schedules.brackets import Bracket
from fedtuner.schedules.halving_rungs import Halving, rungs
from fedtuner.schedules.hyperband_brackets import Hyperband
from fedtuner.schedules.random_arms import RandomSearch

halving, random_search, hyperband = Halving, RandomSearch, Hyperband
KINDS = {"halving": Halving, "random_search": RandomSearch, "hyperband": Hyperband}

__all__ = [
    "KINDS", "halving", "random_search", "hyperband", "rungs", "Bracket", "Halving", "Hyperband", "RandomSearch",
    "Evidence", "Outline", "Play", "Schedule", "Score", "Scoring", "Start", "Step", "outline", "unused",
]  # fmt: skip
