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
from collections.abc import Sequence, Sized
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from fedtuner.core.across import ALL, across
from fedtuner.core.federation import Federation, HasData
from fedtuner.core.method import Local, Method, Server, Update
from fedtuner.core.model import LARGE, NOTHING, Learner, Metrics, Task, Vector, Vectors, finite
from fedtuner.core.records import Arm, Choice, Job, Plan, Record, Report, Row, Seen, State, Tally, Tried
from fedtuner.core.schedule import value_of
from fedtuner.core.setup import Setup, size_of
from fedtuner.core.tally import Reports, penalised, sums, without
from fedtuner.core.tuner import Floats
from fedtuner.errors import FAILURES, ClientError, TaskError
from fedtuner.rng import number, stream
from fedtuner.space import Config

UNUSABLE = 3  # replies in a row that cannot be used, after which a device is drawn less often
COOLEST = 0.02  # the least part of its step that the server takes
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
        return self._plan(arm, state, "valid", jobs)

    def survey(self, arm: Arm, state: State, clients: Sequence[int], split: str, config: str = "mode") -> Plan:
        """Return the plan of an evaluation: with the tuner's best configuration, or ("sample") draws from theta."""
        setup, jobs = self.setup, []
        candidates, theta = setup.tuner.offers(state.belief)
        edges = np.cumsum(theta)
        best = Choice(setup.tuner.summary(state.belief).mode, setup.tuner.best(state.belief))
        for i in clients:
            choice = best
            if config == "sample":
                u = stream(setup.seed, "evaluate", split, self.federation.id_of(i)).random()
                label = int(np.searchsorted(edges / edges[-1], u, side="right"))
                choice = Choice(label, candidates[label])
            jobs.append(Job(i, (choice,), state.memory.get(i, {})))
        return self._plan(arm, state, split, tuple(jobs))

    def _plan(self, arm: Arm, state: State, split: str, jobs: tuple[Job, ...]) -> Plan:
        slots = {name: state.slots[name] for name in self.setup.method.sends if name in state.slots}
        return Plan(
            seed=self.setup.seed, arm=arm.id, round=state.round, split=split, server=arm.server,
            progress=progress(arm, state), w=state.w, slots=slots, jobs=jobs,
        )  # fmt: skip

    def work(self, plan: Plan, job: Job) -> Report:
        """Do one client's work."""
        return work(self.setup.method, cast(HasData, self.federation), plan, job)

    def completed(self, plan: Plan, report: Report) -> Report:
        """Return a report that ``Plan.report`` made, with what ``work`` would have added.

        These are the vectors that the server's optimiser needs of each client, and the worst values for metrics that
        are not numbers.
        """
        model, worst = self.federation.model, self.federation.model.metric.worst
        with np.errstate(over="ignore", invalid="ignore"):
            extra = self.setup.method.optimiser(plan.server).extra(report.change[: model.trainable])
        tried = tuple(Tried(t.label, penalised(t.before, worst), penalised(t.after, worst)) for t in report.tried)
        sound = report.finite and finite(report.change, *extra.values())
        return replace(report, extra={**extra, **report.extra}, tried=tried, finite=sound)

    def tally(self, plan: Plan, reports: Reports) -> Tally:
        """Return the tally of a round's reports, in plan order; None stands for a client that did not answer."""
        return self.combine(plan, reports, self.screen(plan, reports))

    def screen(self, plan: Plan, reports: Reports) -> list[Report | None]:
        """Return the reports after the study's screens; None where one is dropped."""
        screened, privacy = list(reports), self.setup.privacy
        for screen in self.setup.screens if privacy is None else (*self.setup.screens, privacy.bound):
            after = screen(plan, screened)
            screened = [self._recomputed(plan, *three) for three in zip(plan.jobs, screened, after, strict=True)]
        return screened

    def _recomputed(self, plan: Plan, job: Job, given: Report | None, screened: Report | None) -> Report | None:
        """Return a screened report; what is computed from its change, its |T| and its memory is computed again."""
        if given is None or screened is None:
            return screened
        method, made = self.setup.method, screened
        if screened.change is not given.change:
            extra = method.optimiser(plan.server).extra(screened.change[: self.federation.model.trainable])
            made = replace(made, extra={**made.extra, **extra}) if extra else made
        same = screened.examples == given.examples and screened.memory is given.memory
        if not same and method.recount is not None and screened.memory:
            with np.errstate(over="ignore", invalid="ignore"):
                sent, kept = method.recount(job, screened.examples, screened.memory)
            made = replace(made, extra={**made.extra, **sent}, memory={**made.memory, **kept})
        return made

    def combine(self, plan: Plan, reports: Reports, screened: Reports) -> Tally:
        """Return the tally of ``screened``; ``reports`` are the same before the screens, to count the changed ones."""
        setup = self.setup
        arrived = [r for r in screened if r is not None]
        bounded = sum(a is not b for a, b in zip(reports, screened, strict=True))
        seen = tuple(self._seen(job, r) for job, r in zip(plan.jobs, screened, strict=True) if r is not None)
        summed = setup.method.sums
        averaged = [without(r, summed) if r and summed else r for r in screened]
        combined, breakdown = setup.combine(plan, averaged), self._breakdown(arrived)
        if not self.federation.model.metric.pooled:
            breakdown[ALL] = combined.before, combined.after
        before, after = breakdown.get(setup.across, (NOTHING, NOTHING))
        tally = replace(
            combined, sums=sums(summed, screened) if summed else {}, bounded=bounded, seen=seen,
            before=before, after=after, breakdown=breakdown, rows=tuple(map(self._row, arrived)),
        )  # fmt: skip
        return tally if setup.privacy is None else setup.privacy.release(tally, (plan.arm, plan.round), setup.seed)

    def _breakdown(self, reports: Sequence[Report]) -> dict[str, tuple[Metrics, Metrics]]:
        """Return metrics over clients, before and after local training, in every way that there is."""
        groups = self.federation.groups
        of = [groups.get(self.federation.id_of(r.client), "") if groups else "" for r in reports]
        metric = self.federation.model.metric
        before, after = across([r.before for r in reports], of, metric), across([r.after for r in reports], of, metric)
        return {name: (before.get(name, NOTHING), after.get(name, NOTHING)) for name in (before | after)}

    def _seen(self, job: Job, report: Report) -> Seen:
        labels = tuple(t.label for t in report.tried)
        configs = {choice.label: choice.config for choice in job.choices}
        values = tuple(map(self.setup.tuner.value, report.tried))
        undefined = any(m.undefined for t in report.tried for m in (t.before, t.after))  # it says nothing of candidates
        weight = 0 if undefined and any(map(math.isnan, values)) else report.after.count
        return Seen(labels, values, weight, tuple(configs[label] for label in labels))

    def _row(self, report: Report) -> Row:
        before, after = report.before, report.after
        return Row(
            self.federation.id_of(report.client), report.tried[0].label, report.examples, after.count,
            before.loss, after.loss, before.error, after.error,
        )  # fmt: skip

    def settle(self, arm: Arm, state: State, tally: Tally) -> tuple[State, Record]:
        """Return the arm's state after the round, and the round's record."""
        tuner = self.setup.tuner
        w, slots = self._aggregate(arm, state, tally)
        belief = tuner.update(state.belief, tally.seen)
        diverged = not finite(w, *slots.values())
        memory = {**state.memory, **tally.memory} if tally.change is not None else state.memory
        broken = state.broken + bool(tally.broken) if tally.change is None else 0
        ended = "diverged" if diverged else "stalled" if broken >= max(STALL, tuner.labels or 0) else ""
        failed = {i: state.unusable.get(i, 0) + 1 for i, usable in tally.usable.items() if not usable}
        unusable = {i: n for i, n in {**state.unusable, **failed}.items() if not tally.usable.get(i)}
        following = State(state.round + 1, w, belief, slots, memory, ended, broken=broken, unusable=unusable)
        summary = tuner.summary(belief)
        record = Record(
            arm=arm.id, round=following.round, clients=tally.asked, dropped=tally.asked - tally.reported,
            broken=tally.broken, bounded=tally.bounded, examples=tally.examples, validated=tally.after.count,
            trainings=tally.trainings,
            loss_before=tally.before.loss, loss_after=tally.after.loss,
            error_before=tally.before.error, error_after=tally.after.error, loss=math.nan, error=math.nan,
            entropy=summary.entropy, mode=summary.mode, confidence=summary.confidence, diverged=diverged,
            rows=tally.rows, unusable=tuple(map(self.federation.id_of, failed)),
        )  # fmt: skip
        loss, error = (value_of(record, metric, self.setup.target) for metric in ("loss", "error"))
        return following, replace(record, loss=loss, error=error)

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


def odds(state: State, present: Sequence[int]) -> Floats | None:
    """Return the odds of the clients who are present to be drawn; None where all have the same.

    A device whose latest ``UNUSABLE`` replies were unusable is drawn half as often as others, and with each further one
    half as often again, down to 1/64. After a reply that can be used it is drawn as often as others.
    """
    halvings = [min(6, state.unusable.get(i, 0) - UNUSABLE + 1) for i in present] if state.unusable else []
    if not any(n > 0 for n in halvings):
        return None
    weights: Floats = np.exp2(-np.maximum(halvings, 0.0))
    return np.asarray(weights / weights.sum(), np.float64)


def progress(arm: Arm, state: State) -> float:
    """Return the part of an arm's own rounds that is done, up to its horizon; 0 where it has none.

    A child's own rounds begin after the round of its parent from which it started.
    """
    if arm.horizon is None:
        return 0.0
    begun = arm.parent[1] if arm.parent else 0
    return min(1.0, (state.round - begun) / (arm.horizon - begun)) if arm.horizon > begun else 1.0


def part_of_step(cooling: float, done: float) -> float:
    """Return the part of its step that the server takes: it falls evenly over the last part of an arm's rounds.

    Whatever the method and its optimiser, the model moves by that part of the way it would; what else the server keeps
    (momentum, control variates) is that of the whole step, and statistics such as batch-norm's follow the clients.

    >>> [part_of_step(0.5, done) for done in (0.25, 0.5, 0.75, 1.0)]
    [1.0, 1.0, 0.5, 0.02]
    """
    return min(1.0, max(COOLEST, (1 - done) / cooling)) if cooling else 1.0


def work(method: Method, federation: HasData, plan: Plan, job: Job) -> Report:
    """Do one client's work: validate, train, validate again; with each of the job's choices, each time from w."""
    try:
        with np.errstate(over="ignore", invalid="ignore"):  # what overflows is found by ``finite``
            return _work(method, federation, plan, job)
    except FAILURES as error:
        raise ClientError(
            f"arm {plan.arm}, round {plan.round + 1}, client {federation.id_of(job.client)!r}, configuration "
            f"{dict(job.config)}: {type(error).__name__}: {error}"
        ) from error


def _work(method: Method, federation: HasData, plan: Plan, job: Job) -> Report:
    before: dict[Any, Metrics] = {}  # of the server's model, by the shape that a configuration gives it
    update, ok, first = _train(method, federation, plan, job, before)
    further = [_train(method, federation, plan, replace(job, choices=(c,)), before)[2] for c in job.choices[1:]]
    change = _change(update, plan.w)
    extra = {**update.extra, **method.optimiser(plan.server).extra(change[: federation.model.trainable])}
    examples = len(federation.data(job.client, "train"))
    ok = ok and finite(change, *extra.values())  # a difference or a square may overflow where w_i does not
    return Report(job.client, change, extra, update.memory, examples, (first, *further), finite=ok)


def _change(update: Update, w: Vector) -> Vector:
    """Return w_i - w; a large one is written over w_i, unless something else uses its memory."""
    if w.size < LARGE or update.w.base is not None or update.w.dtype != w.dtype:
        return update.w - w
    kept = (w, *update.extra.values(), *update.memory.values())
    return np.subtract(update.w, w, out=None if any(np.may_share_memory(update.w, v) for v in kept) else update.w)


def _train(
    method: Method, federation: HasData, plan: Plan, job: Job, known: dict[Any, Metrics]
) -> tuple[Update, bool, Tried]:
    """Validate, train with the job's first choice, and validate again.

    The random numbers do not depend on the choice: all of a client's choices see the same batches and dropout masks.
    """
    model = cast(Task, federation.model)
    train, valid = federation.data(job.client, "train"), federation.data(job.client, plan.split)
    config, worst = job.config, model.metric.worst
    shape = tuple(config.get(name) for name in model.shaping)
    if shape not in known:
        known[shape] = penalised(model.evaluate(plan.w, valid, config), worst)
    name = ("work", plan.split, plan.arm, plan.round, federation.id_of(job.client))
    if model.own_training:
        update = Update(_fitted(cast(Learner, model), plan.w, train, config, number(plan.seed, *name)))
    else:
        with model.training(train, config, number(plan.seed, *name)) as trainer:
            held, rng = federation.data(job.client, "valid"), stream(plan.seed, *name)
            client = Local(trainer, train, held, model.trainable, model.smallest_batch, rng)
            update = method.local(client, plan, job)
    ok = finite(update.w, *update.extra.values())
    personal = update.w if update.personal is None else update.personal
    after = model.evaluate(personal, valid, config) if ok else Metrics(math.nan, math.nan, len(valid))
    return update, ok, Tried(job.choices[0].label, known[shape], penalised(after, worst))


def _fitted(learner: Learner, w: Vector, train: Sized, config: Config, seed: int) -> Vector:
    """Return w after ``learner.fit``; copied before and after, as fit may change its argument or keep its result."""
    made = np.array(learner.fit(w.copy(), train, config, seed), np.float32)
    if made.shape != w.shape:
        raise TaskError(f"fit() returned an array of shape {made.shape}, but w is of shape {w.shape}")
    return made


def measured(report: Report) -> Report:
    """Return a report of metrics alone: all that an evaluation needs."""
    return replace(report, change=report.change[:0], extra={}, memory={}, examples=0)
