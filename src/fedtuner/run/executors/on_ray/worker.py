"""A worker of a cluster: an actor with the federation in its memory and one arm at a time.

An arm is handed over once (``take``) and advanced by calls that each return after a moment with the rounds done, now
and then with the state. The worker keeps its latest state, so that calls carry no model; the driver has an earlier one
from which another worker continues if this one dies. Workers without an arm do shares of other arms' rounds.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, cast

from fedtuner.core.executor import Advance
from fedtuner.core.federation import HasData, described
from fedtuner.core.records import Job, Plan, Record, Report, State
from fedtuner.core.round import Round
from fedtuner.core.setup import Setup
from fedtuner.core.store import Blobs
from fedtuner.errors import FAILURES, ClusterError, FedtunerError, one_line
from fedtuner.run.executors import policy
from fedtuner.run.executors.channel import aligned, own
from fedtuner.run.executors.on_ray.answer import answering, value_of
from fedtuner.run.executors.on_ray.cluster import load
from fedtuner.run.executors.serial import advance, measure
from fedtuner.run.executors.worker import one_thread
from fedtuner.tables import Table

_WORTH_SHARING = 0.05  # seconds; a shorter round takes less time to do than to send


@dataclass(frozen=True)
class Study:
    """What a worker is given to begin with: the round, or the setup and what makes the federation where it is."""

    round: Any  # a list of the reference to it, so that it is fetched in the worker's own time; None: it is made
    setup: Setup | None = None
    problem: Any = None
    known: Table | None = None  # how the driver's federation is described


@dataclass(frozen=True)
class Stretch:
    """Rounds that were done, and the state after them if it was asked for or is the last."""

    arm: int
    records: tuple[Record, ...]
    state: State | None
    reached: int
    error: str = ""  # what ended the arm, where an error ends its arm alone
    lost: tuple[int, ...] = ()  # helpers that have died


class Worker:
    """The actor."""

    def __init__(self, paths: Sequence[str], folder: str) -> None:
        sys.path += [path for path in paths if path not in sys.path]
        with suppress(OSError):  # there may be no such folder on this machine
            os.chdir(folder)

    @answering
    def begin(self, study: Study, blobs: Blobs) -> tuple[str, dict[str, str]]:
        """Load the study; return this node's id and its versions."""
        from fedtuner.run.versions import versions

        ray = load()
        node = ray.get_runtime_context().get_node_id()
        self._work: Advance | None = None
        self._round_takes = 0.0
        self._lost: set[int] = set()
        try:
            self._round = _loaded(study)
        except FAILURES as error:
            said = str(error) if isinstance(error, FedtunerError) else f"{type(error).__name__}: {error}"
            if isinstance(error, ray.exceptions.RaySystemError):  # its text ends with what was raised while unpickling
                said = str(error).strip().splitlines()[-1]
            where = f"node {ray.util.get_node_ip_address()} cannot load the study"
            raise ClusterError(f"{where} ({one_line(said, 200)}): {_remedy(said)}") from error
        self._blobs = blobs
        self._engine = self._round.federation.model.engine(self._round.setup.engine)
        return node, versions()

    @answering
    def take(self, work: Advance) -> None:
        """Take an arm over; its arrays are copied, so that they leave the object store."""
        self._work = own(work)

    @answering
    def continue_to(self, until: int) -> None:
        """Go on with the arm that was advanced last, up to a later round."""
        assert self._work is not None
        self._work = replace(self._work, until=until)

    @answering
    def advance(self, seconds: float, ship: bool, helpers: Mapping[int, Any]) -> Stretch | None:
        """Advance the arm for so long, by at least a round; None if there is nothing left of it."""
        work, self._work = self._work, None  # if it fails, calls that are under way must not try again
        if work is None or work.done:
            self._work = work
            return None
        end, records, state = time.monotonic() + seconds, list[Record](), work.state
        one_thread()

        def work_all(plan: Plan) -> list[Report]:
            return self._work_all(plan, {n: helper for n, helper in helpers.items() if n not in self._lost})

        error = ""
        for step in advance(self._round, self._blobs, work, lambda: time.monotonic() >= end, work_all):
            assert step.state is not None
            state, records, error = step.state, [*records, *step.records], step.error
        after = replace(work, state=state)
        self._work = None if error else after
        lost, self._lost = tuple(self._lost), set()
        shipped = state if ship or after.done or error else None
        return Stretch(work.arm.id, tuple(records), shipped, state.round, error, lost)

    @answering
    def state(self) -> Stretch | None:
        """Return the arm's latest state."""
        work = self._work
        return None if work is None else Stretch(work.arm.id, (), work.state, work.state.round)

    @answering
    def share(self, plan: Plan, jobs: Sequence[Job], evaluation: bool = False) -> list[Report]:
        """Do some jobs of a plan, which is sent without them."""
        one_thread()
        plan = replace(own(plan), jobs=tuple(own(jobs)))
        if evaluation:
            return measure(self._round, self._blobs, plan)
        return [self._round.work(plan, job) for job in plan.jobs]

    def _work_all(self, plan: Plan, helpers: Mapping[int, Any]) -> list[Report]:
        """Do a round's jobs, with the helpers if they take long enough to be worth it."""
        if helpers and self._round_takes >= _WORTH_SHARING:
            return self._shared(plan, helpers)
        began = time.monotonic()
        reports = self._engine.work_all(self._round, plan)
        self._round_takes = time.monotonic() - began
        return reports

    def _shared(self, plan: Plan, helpers: Mapping[int, Any]) -> list[Report]:
        """Do a round's jobs together; what a helper that dies leaves is done here."""
        import ray

        federation = cast(HasData, self._round.federation)
        costs = [policy.cost(federation.size(job.client, "train"), job) for job in plan.jobs]
        mine, *theirs = policy.shares(costs, 1 + len(helpers))
        common = ray.put(replace(plan, jobs=()))  # the model is sent once per node
        calls = [
            (numbers, n, helper.share.remote(common, [plan.jobs[i] for i in numbers]))
            for numbers, (n, helper) in zip(theirs, helpers.items(), strict=False)
        ]
        done = self._alone(plan, mine)
        for numbers, n, call in calls:
            try:
                reports = value_of(call)
            except ray.exceptions.RayError:
                self._lost.add(n)
                done |= self._alone(plan, numbers)
            else:
                # What stays in the state must not pin the object store.
                kept = (replace(report, memory=own(report.memory)) for report in aligned(reports))
                done |= dict(zip(numbers, kept, strict=True))
        return [done[i] for i in range(len(plan.jobs))]

    def _alone(self, plan: Plan, numbers: Sequence[int]) -> dict[int, Report]:
        return {i: self._round.work(plan, plan.jobs[i]) for i in numbers}


def _loaded(study: Study) -> Round:
    """Return the study's round: as it was sent, or with the federation made here, if it is the same."""
    import ray

    if study.round is not None:
        return cast(Round, ray.get(study.round[0]))
    from fedtuner.run.spec import load_problem

    assert study.setup is not None
    made = load_problem(study.problem) if isinstance(study.problem, str) else study.problem()
    assert study.known is not None
    device = study.known.get("device", "cpu")
    made = made if device == "cpu" else made.on(device)
    made.name = study.known.get("name", made.name)
    if (here := described(made)) != study.known:
        raise ClusterError(f"the problem that is made there is another: {here}, and the driver's is {study.known}")
    return Round(study.setup, made)


def _remedy(said: str) -> str:
    if "No module named" in said or "ImportError" in said:
        return "install it there, or send it: code = ['FOLDER or FILE.py']"
    return "the same code and data must be there as here"
