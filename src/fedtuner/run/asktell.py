"""A study whose rounds are computed outside: ``ask`` for a plan, do its jobs by any means, ``tell`` the reports."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedtuner.core.executor import Advance
from fedtuner.core.method import Method
from fedtuner.core.model import Vector, Vectors
from fedtuner.core.records import Plan, Report, Tally
from fedtuner.core.reports import completed
from fedtuner.core.schedule import Play, Step
from fedtuner.errors import SpecError, brief, suggest
from fedtuner.run.executors.serial import fetched, settled
from fedtuner.run.session import Session


class AskTell:
    """A schedule over an open session, with several rounds in flight, at most one of each arm."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._course = Play(session.setup.schedule)
        self._in_flight: dict[int, tuple[Advance, Plan]] = {}  # by arm
        self._taken: Step | None = None  # the step whose arms are started
        self._go_on()

    def ask(self) -> Plan | None:
        """Return the next round of an arm that has none in flight; None if no arm can go on now."""
        session, step = self.session, self._course.step
        for arm, until in step.until.items() if step else ():
            if arm not in self._in_flight and not (work := session.work(arm, until)).done:
                plan = session.round.plan(work.arm, work.state, session.federation.present())
                plan = fetched(plan, session.where.store.blobs)
                self._in_flight[arm] = work, plan
                return plan
        return None

    def tell(self, plan: Plan, reports: Sequence[Report | None] | Tally) -> None:
        """Settle a round that is in flight; it is saved when this returns.

        After an error it is still in flight, and ``tell`` can be called again.
        """
        if not isinstance(plan, Plan):
            raise SpecError(f"plan = {brief(plan)}, but must be one that ask() gave")
        work, asked = self._in_flight.get(plan.arm, (None, None))
        name = f"arm {plan.arm}, round {plan.round + 1}"
        if work is None or asked is None or asked.round != plan.round:
            raise SpecError(f"{name} is not in flight: tell each plan that ask() gave once, before close()")
        if not _same(asked, plan):
            raise SpecError(f"{name} is in flight, but this plan is another one: was it asked of another study?")
        session = self.session
        if isinstance(reports, Tally):
            if session.setup.privacy is not None:
                raise SpecError(f"{name}: a tally, but privacy bounds single reports: tell the reports")
            _check_change(name, reports.change, asked)
            _check_extra(name, reports.extra, session.setup.method, asked)
            tally = reports
        else:
            _check(name, asked, reports)
            method, federation = session.setup.method, session.round.federation
            whole = [None if r is None else completed(method, federation, asked, r) for r in reports]
            tally = session.round.tally(asked, whole)
        session.accept(settled(session.round, session.where.store.blobs, work, tally), save=True)
        if self._in_flight.keys() == {plan.arm}:  # the last round in flight
            self._go_on()
        del self._in_flight[plan.arm]

    def _go_on(self) -> None:
        """Go on to the first step that has something left to do, or to the end."""
        session, schedule = self.session, self.session.setup.schedule
        while (step := self._course.step) is not None:
            if step is not self._taken:
                session.take(step)
                session.until, self._taken = step.until, step
            if any(not session.work(arm, until).done for arm, until in step.until.items()):
                return
            self._course.tell(session.evidence(step.until, schedule.scoring, session.setup.target))
        assert self._course.winner is not None
        session.finish(self._course.winner)


def _same(asked: Plan, given: Plan) -> bool:
    """Return whether two plans, which may be copies, are the same round of the same study."""
    jobs = [[(job.client, job.choices) for job in plan.jobs] for plan in (asked, given)]
    return asked.seed == given.seed and jobs[0] == jobs[1] and np.array_equal(asked.w, given.w)


def _check(name: str, plan: Plan, reports: Sequence[Report | None]) -> None:
    """Refuse reports that are not those of the plan's jobs."""
    if not isinstance(reports, Sequence) or isinstance(reports, str):
        raise SpecError(f"{name}: {brief(reports)}, but must be a list of reports, or a Tally: see plan.report()")
    if len(reports) != len(plan.jobs):
        raise SpecError(
            f"{name}: {len(reports)} reports, but the plan has {len(plan.jobs)} jobs: give None for a client that "
            "did not answer"
        )
    for n, (job, report) in enumerate(zip(plan.jobs, reports, strict=True)):
        if report is None:
            continue
        if not isinstance(report, Report):
            raise SpecError(f"{name}: report {n} is {type(report).__name__}, but must be a Report: see plan.report()")
        if report.client != job.client:
            raise SpecError(
                f"{name}: report {n} is of client {report.client}, but job {n} is of client {job.client}: give reports "
                "in the order of the plan's jobs"
            )
        if [tried.label for tried in report.tried] != [choice.label for choice in job.choices]:
            raise SpecError(
                f"{name}: client {job.client} tried {[t.label for t in report.tried]}, but its job has the choices "
                f"{[c.label for c in job.choices]}"
            )
        _check_change(f"{name}, client {job.client}", report.change, plan)


def _check_extra(name: str, given: Vectors, method: Method, plan: Plan) -> None:
    """Refuse means of vectors that neither the server's optimiser nor the method asks for, or of another size."""
    asked = method.optimiser(plan.server).extra(np.zeros_like(plan.w))
    known = {**asked, **method.extra}
    for vector, value in given.items():
        if vector not in known:
            raise SpecError(f"{name}: extra has {brief(vector)}{suggest(vector, list(known))}")
        if vector in asked and value.shape != asked[vector].shape:
            rule = f"but must be of {asked[vector].shape}"
            raise SpecError(f"{name}: extra[{vector!r}] is of shape {value.shape}, {rule}")


def _check_change(name: str, change: Vector | None, plan: Plan) -> None:
    if change is not None and np.shape(change) != plan.w.shape:
        raise SpecError(f"{name}: the change is of shape {np.shape(change)}, but the model is {plan.w.shape}")
