"""One communication round of one arm: plan -> work -> tally -> settle.

Khodak et al., "Federated Hyperparameter Tuning", NeurIPS 2021: a round of Algorithm 2 (FedEx). The same round, with the
tuner ``none`` and its single configuration, is the inner loop of Algorithm 1; with FedEx it is that of Algorithm 3.
Their outer loop, over arms and eliminations, is in ``schedules``; Loc_c and Agg_b are in ``methods``.

    plan     the server draws a cohort and, for each of its clients, a configuration c from the tuner's belief (theta)
    work     a client validates the server's model w, trains it to w_i = Loc_c(T_i, w), and validates w_i
    tally    the server takes means over clients: of w_i - w by |T_i|; of validation errors by |V_i|, the arm's score
    settle   w becomes Agg_b(w, tally); the tuner updates its belief; the round's record is made

None of the four has side effects.

An arm *ends* before its last round in two cases. It has *diverged* once its model is not finite: its score is then
infinite. It has *stalled* once all updates of ``STALL`` rounds in a row were broken (not finite), or of as many rounds
as its tuner has configurations, if these are more: it then keeps the score of its rounds. A round that nobody trained
in for another reason neither adds to these rounds nor interrupts them. A round that nobody validated in has no score
(NaN).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np

from fedtuner.core.cooling import part_of_step, progress
from fedtuner.core.federation import Federation, HasData
from fedtuner.core.method import Server
from fedtuner.core.model import Vector, Vectors, finite
from fedtuner.core.odds import odds, unusable
from fedtuner.core.records import Arm, Job, Plan, Record, Report, State, Tally
from fedtuner.core.schedule import value_of
from fedtuner.core.setup import Setup, size_of
from fedtuner.core.stages import Reports
from fedtuner.core.tally import combine, screen
from fedtuner.core.work import work
from fedtuner.rng import number, stream

STALL = 10  # rounds


@dataclass(frozen=True)
class Round:
    """The four stages of a round, for all arms of a study."""

    setup: Setup
    federation: Federation

    def begin(self, arm: Arm, parent: State | None = None, start: Vector | None = None) -> State:
        """Return an arm's state before its first round: its parent's, or round 0 with ``start`` or new weights."""
        setup = self.setup
        belief = setup.tuner.begin(arm, setup.space, setup.seed, None if parent is None else parent.belief)
        if parent is not None:
            return replace(parent, belief=belief, ended="", broken=0)
        who = arm.id if setup.weights == "independent" else "shared"
        w = self.federation.model.initial(number(setup.seed, "initial", who)) if start is None else start
        return State(0, w, belief)

    def plan(self, arm: Arm, state: State, present: Sequence[int]) -> Plan:
        """Return the round's plan: a cohort of distinct clients, and the tuner's choices for each.

        The cohort is drawn from the clients who are present; it is all of them if they are fewer than its size.
        """
        setup, t = self.setup, state.round
        who = ("shared",) if setup.shares_cohorts(len(present)) else ("arm", arm.id)
        size = size_of(setup.cohort, len(present))
        p = odds(state, present) if size < len(present) else None
        drawn = stream(setup.seed, "cohort", *who, t).choice(len(present), size, replace=False, p=p)
        choices = setup.tuner.choose(state.belief, size, lambda purpose: stream(setup.seed, purpose, arm.id, t))
        clients = [present[i] for i in drawn]
        jobs = tuple(Job(i, c, state.memory.get(i, {})) for i, c in zip(clients, choices, strict=True))
        return self.planned(arm, state, "valid", jobs)

    def planned(self, arm: Arm, state: State, split: str, jobs: tuple[Job, ...]) -> Plan:
        """Return the plan of these jobs."""
        slots = {name: state.slots[name] for name in self.setup.method.sends if name in state.slots}
        return Plan(
            seed=self.setup.seed, arm=arm.id, round=state.round, split=split, server=arm.server,
            progress=progress(arm, state), w=state.w, slots=slots, jobs=jobs,
        )  # fmt: skip

    def work(self, plan: Plan, job: Job) -> Report:
        """Do one client's work."""
        return work(self.setup.method, cast(HasData, self.federation), plan, job)

    def tally(self, plan: Plan, reports: Reports) -> Tally:
        """Return the tally of a round's reports, in plan order; None stands for a client that did not answer."""
        screened = screen(self.setup, self.federation, plan, reports)
        return combine(self.setup, self.federation, plan, reports, screened)

    def settle(self, arm: Arm, state: State, tally: Tally) -> tuple[State, Record]:
        """Return the arm's state after the round, and the round's record."""
        tuner = self.setup.tuner
        w, slots = self._aggregate(arm, state, tally)
        belief = tuner.update(state.belief, tally.seen)
        memory = {**state.memory, **tally.memory} if tally.change is not None else state.memory
        broken = state.broken + bool(tally.broken) if tally.change is None else 0
        stalled = broken >= max(STALL, tuner.labels or 0)
        ended = "diverged" if not finite(w, *slots.values()) else "stalled" if stalled else ""
        failing = unusable(state.unusable, tally.usable)
        following = State(state.round + 1, w, belief, slots, memory, ended, broken=broken, unusable=failing)
        return following, self._record(arm, following, tally)

    def _aggregate(self, arm: Arm, state: State, tally: Tally) -> tuple[Vector, Vectors]:
        """Return the next model and slots: Agg_b on the trainable entries of w, the mean on statistics."""
        if tally.change is None:
            return state.w, state.slots
        method, n = self.setup.method, self.federation.model.trainable
        done, start = progress(arm, state), state.w[:n]
        server = Server(
            start, state.slots, state.round, self.federation.population(), method.optimiser(arm.server), done
        )  # fmt: skip
        with np.errstate(over="ignore", invalid="ignore"):
            head, slots = method.aggregate(server, replace(tally, change=tally.change[:n]), arm.server)
            if (part := part_of_step(self.setup.cooling, done)) < 1:
                head = start + np.float32(part) * (head - start)
            tail = state.w[n:] + tally.change[n:]
        w = np.concatenate([head, tail]) if tail.size else head
        return w.astype(np.float32, copy=False), slots

    def _record(self, arm: Arm, state: State, tally: Tally) -> Record:
        summary = self.setup.tuner.summary(state.belief)
        record = Record(
            arm=arm.id, round=state.round, clients=tally.asked, dropped=tally.asked - tally.reported,
            broken=tally.broken, bounded=tally.bounded, examples=tally.examples, validated=tally.after.count,
            trainings=tally.trainings,
            loss_before=tally.before.loss, loss_after=tally.after.loss,
            error_before=tally.before.error, error_after=tally.after.error, loss=math.nan, error=math.nan,
            entropy=summary.entropy, mode=summary.mode, confidence=summary.confidence,
            diverged=state.ended == "diverged", rows=tally.rows,
            unusable=tuple(self.federation.id_of(i) for i, good in tally.usable.items() if not good),
        )  # fmt: skip
        loss, error = (value_of(record, metric, self.setup.target) for metric in ("loss", "error"))
        return replace(record, loss=loss, error=error)
