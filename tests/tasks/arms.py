"""Arms with candidates of one's own, and plans for one client: for tests that look at single rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedtuner import FedEx, Simulation, methods
from fedtuner.core.method import Method, defaults
from fedtuner.core.records import Arm, Choice, Job, Plan, Report, State
from fedtuner.core.round import Round
from fedtuner.core.work import work
from fedtuner.space import Config
from fedtuner.testing.rounds import a_round, an_arm
from fedtuner.tuners.fedex import Belief
from fedtuner.tuners.theta import uniform


def begun(
    problem: Simulation,
    candidates: Sequence[Config] = ({},),
    method: Method = methods.fedavg,
    server: Config | None = None,
    cohort: int | None = None,
    **fedex: Any,
) -> tuple[Round, Arm, State]:
    """Return an arm before its first round, by default with all clients in each.

    What candidates and server do not name has the method's default.
    """
    k = len(candidates)
    round = a_round(method, problem, tuner=FedEx(k=k, **fedex), cohort=cohort or len(problem.clients))
    arm = an_arm(method, candidates[0], server)
    full = tuple({**defaults(method.client), **c} for c in candidates)
    return round, arm, replace(round.begin(arm), belief=Belief(full, 0.5, uniform(k)))


def planned(round: Round, arm: Arm, state: State) -> Plan:
    """Return the arm's next round."""
    return round.plan(arm, state, round.federation.present())


def plan_for(
    problem: Simulation,
    config: Config | None = None,
    client: int = 0,
    method: Method = methods.fedavg,
    w: np.ndarray[Any, Any] | None = None,
) -> Plan:
    """Return the first round of arm 0 with one client; what its configuration does not name has the default."""
    job = Job(client, (Choice(0, {**defaults(method.client), **(config or {})}),))
    w = problem.task.initial(3) if w is None else w
    return Plan(0, 0, 0, "valid", defaults(method.server), 0.0, w, {}, (job,))


def report_of(problem: Simulation, plan: Plan, method: Method = methods.fedavg) -> Report:
    """Return what the plan's first client reports."""
    return work(method, problem, plan, plan.jobs[0])
