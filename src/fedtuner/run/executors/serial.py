"""Rounds in this process, one after the other. Worker processes use these functions, too."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from fedtuner.core.executor import Advance, Progress, Stop
from fedtuner.core.memory import fetch, spill
from fedtuner.core.records import Plan, Report, Tally
from fedtuner.core.round import Round
from fedtuner.core.store import Blobs
from fedtuner.core.survey import measured
from fedtuner.errors import ClientError

WorkAll = Callable[[Plan], list[Report]]


class Serial:
    """All work in this process."""

    def __init__(self, round: Round, blobs: Blobs) -> None:
        self._round, self._blobs = round, blobs

    def advance(self, work: Sequence[Advance], stop: Stop) -> Iterator[Progress]:
        for one in work:
            if not stop():
                yield from advance(self._round, self._blobs, one, stop)

    def evaluate(self, plan: Plan) -> Tally:
        return self._round.tally(plan, measure(self._round, self._blobs, plan))

    def close(self) -> None:
        """Do nothing."""


def advance(
    round: Round, blobs: Blobs, work: Advance, stop: Stop, work_all: WorkAll | None = None
) -> Iterator[Progress]:
    """Train an arm round by round until it has reached ``work.until``, has ended, fails, or is stopped."""
    engine, state = round.federation.model.engine(round.setup.engine), work.state
    while state.round < work.until and not state.ended:
        plan = fetched(round.plan(work.arm, state, round.federation.present()), blobs)
        try:
            reports = engine.work_all(round, plan) if work_all is None else work_all(plan)
        except ClientError as error:
            if round.setup.failing == "stop":
                raise
            yield Progress(work.arm.id, (), state, str(error))
            return
        progress = settled(round, blobs, replace(work, state=state), round.tally(plan, reports))
        assert progress.state is not None
        state = progress.state
        yield progress
        if stop():
            return


def settled(round: Round, blobs: Blobs, work: Advance, tally: Tally) -> Progress:
    """Settle a round; client memory that is too large for the state goes to blobs."""
    state, record = round.settle(work.arm, work.state, tally)
    memory = spill(state.memory, work.arm.id, state.round, round.federation.population(), blobs)
    return Progress(work.arm.id, (record,), replace(state, memory=memory))


def fetched(plan: Plan, blobs: Blobs) -> Plan:
    """Return a plan with the clients' memory read from blobs."""
    return replace(plan, jobs=tuple(fetch(job, blobs) for job in plan.jobs))


def measure(round: Round, blobs: Blobs, plan: Plan) -> list[Report]:
    """Do an evaluation's jobs one after the other, and return their metrics alone."""
    return [measured(round.work(plan, fetch(job, blobs))) for job in plan.jobs]
