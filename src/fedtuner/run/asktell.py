"""A study driven from outside: ``ask`` for a round, do it by any means, ``tell`` what came back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedtuner.core.executor import Advance
from fedtuner.core.records import Key, Plan, Report, Tally
from fedtuner.core.schedule import Play, Step
from fedtuner.errors import SpecError
from fedtuner.run.executors.serial import fetched, settled
from fedtuner.run.session import Session


@dataclass
class AskTell:
    """One schedule's play over an open session, with several rounds in flight."""

    session: Session

    def __post_init__(self) -> None:
        self._course = Play(self.session.setup.schedule)
        self._in_flight: dict[Key, Advance] = {}
        self._taken: Step | None = None
        self._enter()

    def ask(self) -> Plan | None:
        """Return a round of an arm that has none in flight and is not yet where it should be; None if there is none."""
        step = self._course.step
        for arm, until in step.until.items() if step else ():
            work = Advance(self.session.journal.arms[arm], self.session.latest(arm), until)
            key = (arm, work.state.round)
            if not work.done and not any(arm == other for other, _ in self._in_flight):
                federation = self.session.federation
                plan = self.session.round.plan(work.arm, work.state, federation.present())
                self._in_flight[key] = work
                return fetched(plan, self.session.where.store.blobs)
        return None

    def tell(self, plan: Plan, reports: Sequence[Report | None] | Tally) -> None:
        """Settle a round that is in flight."""
        work = self._in_flight.get((plan.arm, plan.round))
        if work is None:
            raise SpecError(f"arm {plan.arm}, round {plan.round + 1} is not in flight: tell each plan once")
        if not isinstance(reports, Tally):
            if len(reports) != len(plan.jobs):
                raise SpecError(f"{len(reports)} reports, but the plan has {len(plan.jobs)} jobs: None for who is absent")
            reports = self.session.round.tally(plan, reports)
        self.session.accept(settled(self.session.round, self.session.where.store.blobs, work, reports))
        del self._in_flight[plan.arm, plan.round]
        self._enter()

    def _enter(self) -> None:
        """Go through the steps that are done, to the first that has something left to do."""
        session, schedule = self.session, self.session.setup.schedule
        if self._in_flight:
            return
        while (step := self._course.step) is not None:
            if step is not self._taken:
                session.take(step)
                session.until, self._taken = step.until, step
            if any(not Advance(session.journal.arms[a], session.latest(a), t).done for a, t in step.until.items()):
                return
            self._course.tell(session.evidence(step.until, schedule.scoring, session.setup.target))
        assert self._course.winner is not None
        session.finish(self._course.winner)


