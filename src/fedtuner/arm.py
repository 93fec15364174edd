"""An arm of a study: one federated training with FedEx inside it. plan -> work -> fold is one communication round.

Khodak et al., NeurIPS 2021, Algorithms 1 to 3. A plain arm is an arm with one candidate. ``plan`` and ``fold`` are
pure; ``work`` is a pure function of its job. What goes wrong is an ordinary event, recorded in the round's record:

- a client that does not report is absent;
- a client whose update is not finite is left out of the aggregation and counts as the worst value for theta; a
  client's memory that is not finite is not kept: it goes on with what it remembered before;
- a client without training examples changes nothing (weight |T| = 0), one without validation examples says nothing
  about theta or the score (weight |V| = 0); a round in which nobody validated has no score (NaN);
- an arm whose model is not finite is diverged: its score is infinite and it spends no further rounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedtuner import fedex
from fedtuner.errors import ClientError, SpecError, suggest
from fedtuner.federation import Federation, Report, Simulation, Try
from fedtuner.fedex import Belief, FedEx
from fedtuner.memory import Memory, recall, spill
from fedtuner.methods.base import Contribution, Job, Local, Method, Server, Update, Vectors, finite
from fedtuner.methods.server import mean_change
from fedtuner.rng import number, stream
from fedtuner.space import Config
from fedtuner.task import Metrics, Vector, evaluate, shape

TARGETS = ("personalized", "global")
COHORTS = ("independent", "shared")


@dataclass(frozen=True)
class Setting:
    """What all arms of a study have in common."""

    method: Method
    fedex: FedEx
    cohort: int = 10  # clients per round
    cohorts: str = "independent"  # shared: all arms meet the same clients in the same round
    target: str = "personalized"  # what arms are compared by: the clients' models or the server's
    seed: int = 0
    engine: str = "sequential"  # how a round's jobs are done (engines.py); the engines agree up to rounding

    def __post_init__(self) -> None:
        if isinstance(self.cohort, bool) or not isinstance(self.cohort, int) or self.cohort < 1:
            raise SpecError(f"cohort = {self.cohort!r}, but must be a whole number >= 1")
        if isinstance(self.seed, bool) or not isinstance(self.seed, int):
            raise SpecError(f"seed = {self.seed!r}, but must be a whole number")
        for name, known in (("target", TARGETS), ("cohorts", COHORTS)):
            value = getattr(self, name)
            if value not in known:
                raise SpecError(f"{name} = {value!r}, but must be one of {known}{suggest(str(value), known)}")


@dataclass(frozen=True)
class Arm:
    """The hyperparameters of one training: b, the candidates c_1..c_k, and FedEx's baseline discount."""

    id: int
    server: Config
    candidates: tuple[Config, ...]
    gamma: float


@dataclass(frozen=True)
class State:
    """An arm after ``round`` rounds: saving it saves everything."""

    round: int
    w: Vector
    belief: Belief
    slots: Vectors = field(default_factory=dict)  # the server's vectors
    memory: Memory = field(default_factory=dict)  # the clients' vectors
    diverged: bool = False


@dataclass(frozen=True)
class Record:
    """What happened in one round of one arm."""

    arm: int
    round: int
    clients: int  # planned
    dropped: int  # did not report
    broken: int  # reported an update that is not finite
    examples: int  # |T| of those aggregated
    validated: int  # |V| of those who reported
    loss_before: float  # |V|-weighted means before local training (global) and after it (personalized)
    loss_after: float
    error_before: float
    error_after: float
    loss: float  # of the target: what arms are compared by; infinite once diverged
    error: float
    entropy: float  # of theta after the round, in nats
    mode: int  # theta's most probable candidate, and its probability
    confidence: float
    diverged: bool


def begin(setting: Setting, problem: Federation, arm: Arm) -> State:
    """Return an arm before its first round: fresh weights, theta uniform."""
    w = problem.task.initial(number(setting.seed, "initial", arm.id))
    return State(0, w, fedex.uniform(len(arm.candidates)))


def plan(setting: Setting, problem: Federation, arm: Arm, state: State) -> list[Job]:
    """Return the round's jobs: a cohort of distinct clients, and a candidate for each drawn from theta.

    The cohort is drawn from the clients who are there; with fewer than asked for, it is all of them.
    """
    t = state.round
    clients = cohort(setting, problem, arm, t)
    choices = fedex.choose(state.belief, len(clients), stream(setting.seed, "choose", arm.id, t), setting.fedex.cutoff)
    tries = setting.fedex.tried_at(state.belief.entropy)
    others = fedex.also(choices, len(arm.candidates), tries, stream(setting.seed, "tries", arm.id, t))
    slots = {name: state.slots[name] for name in setting.method.sends if name in state.slots}
    return [
        Job(
            setting.seed, arm.id, t, i, j, arm.candidates[j], arm.server, state.w, slots,
            recall(state.memory.get(i, {})), others=tuple((o, arm.candidates[o]) for o in also),
        )
        for i, j, also in zip(clients, choices, others, strict=True)
    ]  # fmt: skip


def cohort(setting: Setting, problem: Federation, arm: Arm, round: int) -> list[int]:
    """Return the distinct clients of a round, in the order in which their reports fold."""
    who = ("shared",) if setting.cohorts == "shared" else ("arm", arm.id)
    there = problem.available()
    size = min(setting.cohort, len(there))
    return [there[i] for i in stream(setting.seed, "cohort", *who, round).choice(len(there), size, replace=False)]


def work(method: Method, problem: Simulation, job: Job) -> Report:
    """Do one client's work: validate, train locally, validate again; then try what other candidates would give."""
    client = problem.clients[job.client]
    try:
        with np.errstate(over="ignore", invalid="ignore"):  # numbers that go bad are dealt with, not warned about
            return _work(method, problem, job)
    except Exception as error:
        raise ClientError(
            f"arm {job.arm}, round {job.round + 1}, client {client.id!r}, configuration {dict(job.config)}: "
            f"{type(error).__name__}: {error}"
        ) from error


def _work(method: Method, problem: Simulation, job: Job) -> Report:
    before: dict[Any, Metrics] = {}  # by the shape of the model, for the few models that have several
    report = _train(method, problem, job, before)
    others = [_train(method, problem, replace(job, candidate=j, config=c), before) for j, c in job.others]
    return replace(report, tried=tuple(Try(other.candidate, other.before, other.after) for other in others))


def _train(method: Method, problem: Simulation, job: Job, known: dict[Any, Metrics]) -> Report:
    """Do the work with one candidate; all of a client's candidates see the same batches and dropout."""
    task = problem.task
    train, valid = problem.data(job.client, "train"), problem.data(job.client, job.split)
    name = ("work", job.split, job.arm, job.round, problem.clients[job.client].id)
    form = shape(task, job.config)
    if form not in known:
        known[form] = readable(evaluate(task, job.w, valid, job.config), task.worst_error)
    with task.training(train, job.config, number(job.seed, *name)) as trainer:
        rng = stream(job.seed, *name)
        held = problem.data(job.client, "valid")
        update = method.local(Local(trainer, train, held, task.trainable, task.smallest_batch, rng), job)
    ok = finite(update.w, *update.extra.values())
    model = update.w if update.personal is None else update.personal
    after = evaluate(task, model, valid, job.config) if ok else Metrics(math.nan, math.nan, len(valid))
    after = readable(after, task.worst_error)
    return Report(job.client, job.candidate, update, len(train), known[form], after, ok)


def readable(metrics: Metrics, worst_error: float) -> Metrics:
    """Return the metrics; if the loss is not finite, with an infinite loss and the worst error."""
    return metrics if metrics.finite or not metrics.count else Metrics(math.inf, worst_error, metrics.count)


def fold(
    setting: Setting, problem: Federation, arm: Arm, state: State, reports: Sequence[Report | None]
) -> tuple[State, Record]:
    """Return the arm after the round: Agg_b on the model, exponentiated gradient on theta, and what happened.

    ``reports`` are in plan order; None is a client that did not answer.
    """
    arrived = [r for r in reports if r is not None]
    sound = [r for r in arrived if r.finite]
    w, slots = aggregate(setting, problem, arm, state, [r for r in sound if r.examples])
    belief = state.belief
    if belief.entropy >= setting.fedex.cutoff:
        whole = len({len(r.tried) for r in arrived}) <= 1  # else some did not try all: only what theta drew counts
        tries: list[list[Report | Try]] = [[r, *r.tried] if whole else [r] for r in arrived]
        values = [[signal(setting.fedex, t) for t in of_client] for of_client in tries]
        counts = [r.after.count for r in arrived]
        choices = [[t.candidate for t in of_client] for of_client in tries]
        belief = fedex.exponentiate(belief, choices, values, counts, setting.fedex.step, arm.gamma)
    memory = {r.client: r.update.memory for r in sound if r.update.memory and finite(*r.update.memory.values())}
    diverged = not finite(w, *slots.values())
    following = State(state.round + 1, w, belief, slots, {**state.memory, **memory}, diverged)
    before, after = mean([r.before for r in arrived]), mean([r.after for r in arrived])
    target = before if setting.target == "global" else after
    return following, Record(
        arm=arm.id,
        round=following.round,
        clients=len(reports),
        dropped=len(reports) - len(arrived),
        broken=len(arrived) - len(sound),
        examples=sum(r.examples for r in sound),
        validated=after.count,
        loss_before=before.loss,
        loss_after=after.loss,
        error_before=before.error,
        error_after=after.error,
        loss=math.inf if diverged else target.loss,
        error=math.inf if diverged else target.error,
        entropy=belief.entropy,
        mode=belief.mode,
        confidence=float(belief.theta.max()),
        diverged=diverged,
    )


def aggregate(
    setting: Setting, problem: Federation, arm: Arm, state: State, reports: Sequence[Report]
) -> tuple[Vector, Vectors]:
    """Return the next model and slots: Agg_b on what has gradients, the plain mean on statistics."""
    trainable = problem.task.trainable
    total = sum(r.examples for r in reports)
    if not total:
        return state.w, state.slots
    shares = [r.examples / total for r in reports]
    server = Server(state.w[:trainable], state.slots, state.round, problem.population)
    updates = [Update(r.update.w[:trainable], r.update.extra) for r in reports]
    with np.errstate(over="ignore", invalid="ignore"):
        head, slots = setting.method.aggregate(
            server, [Contribution(p, u) for p, u in zip(shares, updates, strict=True)], arm.server
        )
        tail = state.w[trainable:]
        tail = tail + mean_change(tail, shares, [r.update.w[trainable:] for r in reports])
    return np.concatenate([head, tail]).astype(np.float32, copy=False), slots


def signal(settings: FedEx, report: Report | Try) -> float:
    """Return the value that a client's report gives to its candidate."""
    after = float(getattr(report.after, settings.metric))
    return after - float(getattr(report.before, settings.metric)) if settings.signal == "improvement" else after


def trainings(settings: FedEx, records: Sequence[Record]) -> int:
    """Return the local trainings in an arm's rounds: one a client, or as many as candidates that it tries."""
    entered = [fedex.uniform(settings.k).entropy, *(r.entropy for r in records)]
    return sum((r.clients - r.dropped) * settings.tried_at(e) for r, e in zip(records, entered, strict=False))


def mean(metrics: Sequence[Metrics]) -> Metrics:
    """Return the mean over all examples of several clients; NaN where there are none."""
    counted = [m for m in metrics if m.count]
    total = sum(m.count for m in counted)
    if not total:
        return Metrics(math.nan, math.nan, 0)
    return Metrics(
        sum(m.count * m.loss for m in counted) / total, sum(m.count * m.error for m in counted) / total, total
    )


def finish(
    setting: Setting, problem: Federation, arm: Arm, state: State, reports: Sequence[Report | None], folder: Path
) -> tuple[State, Record]:
    """Fold the round; what clients remember goes to ``folder`` where it is too large for the state."""
    state, record = fold(setting, problem, arm, state, reports)
    return replace(state, memory=spill(state.memory, folder, state.round, problem.population)), record


def rounds(
    setting: Setting,
    problem: Federation,
    arm: Arm,
    state: State,
    until: int,
    folder: Path,
    work_all: Callable[[Sequence[Job]], list[Report]],
) -> Iterator[tuple[State, Record]]:
    """Yield the arm after each round up to ``until``; a diverged arm spends no more rounds.

    What clients remember goes to ``folder`` where it is too large for the state. ``work_all`` does a round's jobs.
    """
    while state.round < until and not state.diverged:
        jobs = plan(setting, problem, arm, state)
        state, record = finish(setting, problem, arm, state, work_all(jobs), folder)
        yield state, record
