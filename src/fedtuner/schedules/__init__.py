"""Which arms run, up to which round, and which survive: halving, random search, Hyperband, FedPop, a duel."""

from fedtuner.core.schedule import Evidence, Outline, Play, Schedule, Score, Scoring, Start, Step, outline, unused
from fedtuner.schedules.alone import Alone
from fedtuner.schedules.brackets import Bracket
from fedtuner.schedules.duel_and_run import Duel
from fedtuner.schedules.halving_rungs import Halving, rungs
from fedtuner.schedules.hyperband_brackets import Hyperband
from fedtuner.schedules.longer import Longer
from fedtuner.schedules.patient import Patient
from fedtuner.schedules.population import Population
from fedtuner.schedules.random_arms import RandomSearch

halving, random_search, hyperband, fedpop, duel = Halving, RandomSearch, Hyperband, Population, Duel
KINDS = {
    "halving": Halving, "random_search": RandomSearch, "hyperband": Hyperband, "fedpop": Population, "duel": Duel,
    "alone": Alone,
}  # fmt: skip

__all__ = [
    "KINDS", "halving", "random_search", "hyperband", "fedpop", "duel", "rungs", "Alone", "Bracket", "Duel",
    "Halving", "Hyperband", "Longer", "Patient", "Population", "RandomSearch", "Evidence", "Outline", "Play",
    "Schedule", "Score", "Scoring", "Start", "Step", "outline", "unused",
]  # fmt: skip
