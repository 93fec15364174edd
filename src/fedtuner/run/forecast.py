"""What a study will do and take, before anything runs: ``study.forecast()``, ``fedtuner run --dry-run``."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, cast

from fedtuner import checks
from fedtuner.core.federation import Federation, HasData
from fedtuner.core.records import Arm, Plan
from fedtuner.core.round import Round
from fedtuner.core.schedule import Outline, Play, outline
from fedtuner.core.setup import Setup, size_of
from fedtuner.rng import stream
from fedtuner.run.executors import cores
from fedtuner.run.sampling import usual_sample
from fedtuner.run.session import Session
from fedtuner.run.store import InMemory
from fedtuner.run.where import Where

_LEAST = 5  # a trial has at least so many parts, even if they take longer than it should
_GAIN = 0.85  # of a worker beside another, against one alone (docs/speed.md)


@dataclass(frozen=True)
class Group:
    """Arms that start together: how many of them train up to which rounds."""

    arms: int
    rungs: tuple[tuple[int, int], ...]  # (round, arms that train up to it)
    children: bool  # they go on from other arms' models


@dataclass(frozen=True)
class Forecast:
    """What a study will do; where it depends on scores, as it is on random ones."""

    groups: tuple[Group, ...]
    arms: int
    rounds: int
    longest: int  # rounds of the longest arm
    cohort: int  # clients of a round
    messages: int  # one to each client of a round, and its answer
    sent: int  # bytes of a message to a client
    received: int  # bytes of its answer
    bytes: int  # of all messages
    trainings: int  # local trainings
    at_once: int  # trainings that one client may do in the same round: with shared cohorts, one for every arm
    examples: int | None  # training examples that are processed, about; None where the clients' data is not here
    seconds: float | None  # on this machine, about; None where the clients are elsewhere


def forecast(setup: Setup, federation: Federation, where: Where, seconds: float = 1.0) -> Forecast:
    """Return what a study will do; the time is estimated from a trial of so many seconds."""
    seconds = checks.number("seconds", seconds)
    known, model, method = outline(setup.schedule), federation.model, setup.method
    size = size_of(setup.cohort, federation.population())
    sent = 4 * (model.size + len(method.sends) * model.trainable)
    received = 4 * (model.size + len(method.extra) * model.trainable)
    groups = tuple(_group(known, arms) for arms in known.groups)
    trainings = known.cost * size * setup.tuner.tried
    shared = setup.shares_cohorts(federation.population())
    at_once = (max(group.arms for group in groups) if shared else 1) * setup.tuner.tried
    examples = took = None
    if federation.executor is None:
        sizes = cast(HasData, federation).sizes("train")
        mean = int(sizes.sum()) / max(1, len(sizes))
        often = fmean(passes(setup, arm.client) for arm, _ in _first_plans(setup, federation))
        examples = round(trainings * mean * often)
        pace, _ = calibrate(setup, federation, seconds)
        rounds = known.cost + (usual_sample(federation) or len(sizes)) / size  # the evaluation is the work of all
        took = pace * rounds / speedup(where.workers or cores())
    return Forecast(
        groups=groups, arms=known.arms, rounds=known.cost, longest=setup.schedule.longest, cohort=size,
        messages=2 * known.cost * size, sent=sent, received=received, bytes=known.cost * size * (sent + received),
        trainings=trainings, at_once=at_once, examples=examples, seconds=took,
    )  # fmt: skip


def _group(known: Outline, arms: tuple[int, ...]) -> Group:
    alive = [(t, sum(known.reach[arm] >= t for arm in arms)) for t in known.rungs[arms[0]]]
    last = [pair for pair, after in zip(alive, [*alive[1:], (0, -1)], strict=True) if pair[1] != after[1]]
    return Group(len(arms), tuple(last), bool(known.children.intersection(arms)))


def speedup(workers: int) -> float:
    """Return how much faster so many workers are than one."""
    return 1.0 if workers == 1 else _GAIN * min(workers, cores())


def passes(setup: Setup, config: Mapping[str, Any]) -> float:
    """Return how often a client passes over its data in a round."""
    work = (name for name, hyper in setup.method.client.items() if hyper.role == "work" and name in config)
    return math.prod(float(config[name]) for name in work)


def calibrate(setup: Setup, federation: Federation, seconds: float) -> tuple[float, float]:
    """Return the seconds that a round takes on one worker, and the processor's seconds.

    Clients of the first arms' first rounds work until the time is up: whole rounds where the engine does them at once,
    else one by one; in a random order, so that several arms' configurations (batch sizes above all) are among them.
    What they took is scaled by examples times epochs, theirs against those of an arm's round.
    """
    data, plans = cast(HasData, federation), [plan for _, plan in _first_plans(setup, federation)]
    round, engine = Round(setup, federation), federation.model.engine(setup.engine)
    parts = [replace(plan, jobs=(job,)) for plan in plans for job in plan.jobs] if engine.divisible else plans
    took: list[tuple[float, float, float]] = []  # by part: seconds, the processor's, and examples times epochs
    for place in stream(0, "calibrate").permutation(len(parts)):
        began, before = time.perf_counter(), time.process_time()
        engine.work_all(round, parts[place])
        took.append((time.perf_counter() - began, time.process_time() - before, _amount(data, parts[place])))
        if sum(t for t, _, _ in took) > seconds and len(took) >= _LEAST:
            break
    wall, processor, amount = (sum(column) for column in zip(*(took[1:] or took), strict=True))  # the first prepares
    a_round = fmean(_amount(data, plan) for plan in plans)
    return wall / amount * a_round, processor / amount * a_round


def _first_plans(setup: Setup, federation: Federation) -> list[tuple[Arm, Plan]]:
    """Return the arms that a study starts with, and their first rounds."""
    step = Play(setup.schedule).step
    with Session(setup, federation, Where(InMemory(), 1)) as session:
        session.start(step.start if step else {})
        arms = session.journal.arms.values()
        return [(arm, session.round.plan(arm, session.latest(arm.id), federation.present())) for arm in arms]


def _amount(data: HasData, plan: Plan) -> float:
    return sum(max(1, data.size(job.client, "train")) * float(job.config.get("epochs", 1)) for job in plan.jobs)
