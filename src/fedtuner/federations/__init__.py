"""Where the clients are: in this process (``Simulation``), or outside of fedtuner (``Outside``)."""

from fedtuner.federations.lazy_clients import LazyClients
from fedtuner.federations.learner import Learner
from fedtuner.federations.outside import Outside
from fedtuner.federations.simulation import Client, Lazy, Simulation

__all__ = ["Client", "Lazy", "LazyClients", "Learner", "Outside", "Simulation"]
