"""Rounds without a session: what laws and tests of methods, tuners and executors need. Also a call that must fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fedtuner import samplers
from fedtuner.core.executor import Advance
from fedtuner.core.federation import Federation
from fedtuner.core.method import Method, defaults
from fedtuner.core.records import Arm, Plan, Record, Report, State
from fedtuner.core.round import Round
from fedtuner.core.setup import Setup
from fedtuner.run.executors.serial import advance as advancing
from fedtuner.run.executors.serial import fetched
from fedtuner.run.store import InMemory
from fedtuner.run.store.states import pack
from fedtuner.schedules import RandomSearch
from fedtuner.space import Config, Space
from fedtuner.tuners import none

_STORE = InMemory()  # for client memory, should it be too large for a state


def a_round(method: Method, federation: Federation, **settings: Any) -> Round:
    """Return the rounds of a study with four clients each; nothing is tuned unless ``settings`` have a tuner."""
    usual: dict[str, Any] = {
        "space": Space(), "schedule": RandomSearch(20, 20), "tuner": none, "sampler": samplers.uniform, "cohort": 4,
    }  # fmt: skip
    return Round(Setup(method=method, **(usual | settings)), federation)


def an_arm(method: Method, client: Config | None = None, server: Config | None = None, id: int = 0) -> Arm:
    """Return the arm of a method's default configuration, but for the values that are given."""
    return Arm(id, {**defaults(method.client), **(client or {})}, {**defaults(method.server), **(server or {})})


def advance(round: Round, arm: Arm, until: int, state: State | None = None) -> State:
    """Return the arm's state after round ``until``; without a ``state`` it begins."""
    return history(round, arm, until, state)[0]


def history(round: Round, arm: Arm, until: int, state: State | None = None) -> tuple[State, list[Record]]:
    """Return the arm's state after round ``until``, and the records of the rounds that led there."""
    state, records = round.begin(arm) if state is None else state, list[Record]()
    for progress in advancing(round, _STORE.blobs, Advance(arm, state, until), lambda: False):
        assert progress.state is not None
        state = progress.state
        records += progress.records
    return state, records


def reported(round: Round, arm: Arm, state: State) -> tuple[Plan, list[Report]]:
    """Return an arm's next plan, and the reports of its clients."""
    plan = fetched(round.plan(arm, state, round.federation.present()), _STORE.blobs)
    return plan, [round.work(plan, job) for job in plan.jobs]


def settle(round: Round, arm: Arm, state: State, *reports: Report | None) -> tuple[State, Record]:
    """Return what the server makes of these reports of an arm's next round."""
    plan = round.plan(arm, state, round.federation.present())
    return round.settle(arm, state, round.tally(plan, reports))


def bits(round: Round, state: State) -> bytes:
    """Return a state as the bytes that a store keeps: equal for equal states."""
    return pack(state, round.setup.tuner.pack(state.belief))


def refused(kind: type[Exception], call: Callable[[], object]) -> str:
    """Return what the error of a call says that must raise one of this kind."""
    try:
        call()
    except kind as error:
        return str(error)
    raise AssertionError(f"there was no {kind.__name__}")
