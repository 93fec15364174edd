"""An evaluation of an arm's model by clients, as a plan whose reports are measured and not trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fedtuner.core.records import Arm, Choice, Job, Plan, Report, State
from fedtuner.core.round import Round
from fedtuner.rng import stream


def survey(
    round: Round, arm: Arm, state: State, clients: Sequence[int], split: str, config: str = "mode"
) -> Plan:  # fmt: skip
    """Return the plan of an evaluation: with the tuner's best configuration, or ("sample") draws from theta."""
    setup, jobs = round.setup, []
    candidates, theta = setup.tuner.offers(state.belief)
    edges = np.cumsum(theta)
    best = Choice(setup.tuner.summary(state.belief).mode, setup.tuner.best(state.belief))
    for i in clients:
        choice = best
        if config == "sample":
            u = stream(setup.seed, "evaluate", split, round.federation.id_of(i)).random()
            label = int(np.searchsorted(edges / edges[-1], u, side="right"))
            choice = Choice(label, candidates[label])
        jobs.append(Job(i, (choice,), state.memory.get(i, {})))
    return round.planned(arm, state, split, tuple(jobs))


def measured(report: Report) -> Report:
    """Return a report of metrics alone: all that an evaluation needs."""
    return replace(report, change=report.change[:0], extra={}, memory={}, examples=0)
