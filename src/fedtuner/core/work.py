"""What a client does in a round: it validates the server's model w, trains it to w_i = Loc_c(T_i, w), validates w_i.

A client that tries several configurations trains with each of them from w, on the same random numbers; it sends the
change of the first, and what it measured with all.
"""

from __future__ import annotations

import math
from collections.abc import Sized
from dataclasses import replace
from typing import Any, cast

import numpy as np

from fedtuner.core.federation import HasData
from fedtuner.core.method import Local, Method, Update
from fedtuner.core.metric import penalised
from fedtuner.core.model import LARGE, Learner, Metrics, Task, Vector, finite
from fedtuner.core.records import Job, Plan, Report, Tried
from fedtuner.errors import FAILURES, ClientError, TaskError
from fedtuner.rng import number, stream
from fedtuner.space import Config


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
