"""``tune``: from a problem and settings to a finished study."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from fedtuner import engines, methods, samplers
from fedtuner.arm import Setting
from fedtuner.driver import run
from fedtuner.errors import SpecError
from fedtuner.executors import cores
from fedtuner.federation import Federation, Simulation
from fedtuner.fedex import FedEx
from fedtuner.methods.base import Method, check, default_space
from fedtuner.progress import Show
from fedtuner.samplers import Proposer
from fedtuner.schedules import Schedule, halving, random_search
from fedtuner.space import Space
from fedtuner.study import Study

_TOLD = {"server-round", "split"}  # beside their hyperparameters, to clients that train by code of their own


def tune(
    problem: Federation,
    space: Space | None = None,
    method: Method = methods.fedavg,
    fedex: FedEx | None = FedEx(),  # noqa: B008 (frozen)
    schedule: Schedule | None = None,
    cohort: int = 10,
    target: str = "personalized",
    seed: int = 0,
    store: str | Path | None = None,
    workers: int | None = None,
    cohorts: str = "independent",
    progress: bool | Show | None = None,
    engine: str = "auto",
    sampler: Proposer = samplers.uniform,
) -> Study:
    """Tune a method's hyperparameters on a problem and return the finished study.

    ``space`` is by default the method's own (the paper's) with what the model has; ``fedex=None`` leaves the client's
    hyperparameters to the schedule alone; ``schedule`` is by default the paper's halving of 2000 rounds. With a
    ``store`` the study continues when the same call is made again. ``workers`` is by default one per core; the result
    does not depend on it. ``progress=True`` prints lines where there is no terminal for a bar, as a fleet does without
    being asked. ``engine`` is by default ``batched`` for small networks that it covers, else ``sequential``.
    ``sampler`` proposes the arms: uniform draws, or ``samplers.optuna("tpe")``, which learns from finished ones.
    """
    study = prepare(
        problem, space, method, fedex, schedule, cohort, target, seed, store, workers, cohorts, engine, sampler
    )
    run(study, progress)
    return study


def prepare(
    problem: Federation,
    space: Space | None,
    method: Method,
    fedex: FedEx | None,
    schedule: Schedule | None,
    cohort: int,
    target: str,
    seed: int,
    store: str | Path | None,
    workers: int | None,
    cohorts: str,
    engine: str = "auto",
    sampler: Proposer = samplers.uniform,
) -> Study:
    """Check everything and return the study, not yet run."""
    if not isinstance(problem, Federation):
        raise SpecError(f"problem is {type(problem).__name__}, but must be a Simulation(task, clients)")
    if not isinstance(method, Method):
        raise SpecError(f"method = {method!r}, but must be a Method such as fedtuner.methods.fedavg")
    for name, value, kind in (("space", space, Space), ("fedex", fedex, FedEx), ("schedule", schedule, Schedule)):
        if value is not None and not isinstance(value, kind):
            raise SpecError(f"{name} = {value!r}, but must be a fedtuner.{kind.__name__}")
    if workers is not None and (isinstance(workers, bool) or not isinstance(workers, int) or workers < 1):
        raise SpecError(f"workers = {workers!r}, but must be a whole number >= 1")
    device = engines.device(problem.task)
    if device != "cpu":
        if workers not in (None, 1):
            raise SpecError(f"workers = {workers}, but work on {device} is done by one process: leave workers out")
        workers = 1
    # Clients that live elsewhere work one by one.
    how = engines.choose(engine if isinstance(problem, Simulation) else "sequential", problem.task)
    if problem.own_code:
        method, space = _on_the_server(method, space)
    setting = Setting(method, fedex or FedEx(k=1), cohort, cohorts, target, seed, how)
    problem.check(cohort, method, setting.fedex)
    of_task = problem.task.hyperparameters
    for name in of_task.keys() & method.client.keys():
        raise SpecError(f"the model and {method.name} both have a client hyperparameter {name!r}: rename the model's")
    space = default_space(method, of_task) if space is None else space
    check(method, Space(server=space.server) if problem.own_code else space, of_task)
    least = min(space.client["batch"].ends()) if "batch" in space.client else problem.task.smallest_batch
    if not isinstance(least, str) and least < problem.task.smallest_batch:
        raise SpecError(f"client.batch = {least}, but a model with batch-norm cannot train on fewer than 2 examples")
    if not isinstance(sampler, Proposer):
        raise SpecError(f"sampler = {sampler!r}, but must be such as fedtuner.samplers.optuna('tpe')")
    schedule = schedule or halving()
    sampler.check(space, schedule)
    path = None if store is None else Path(store)
    return Study(problem, setting, schedule, space, path, workers or cores(), sampler)


def _on_the_server(method: Method, space: Space | None) -> tuple[Method, Space]:
    """Return what is left of a method where clients train by code of their own: its aggregation."""
    if method.local is not methods.fedavg.local:
        raise SpecError(
            f"method = {method.name}, but these clients train by code of their own: use fedavg or reptile, whose part "
            "is on the server"
        )
    if space is None:
        raise SpecError("these clients train by code of their own: give space= with the hyperparameters that it reads")
    for name in _TOLD & space.client.keys():
        raise SpecError(f"client.{name}: clients that train by code of their own are told {name!r} besides: rename it")
    return replace(method, client={}), space


def untuned(study: Study, progress: bool | Show | None = None) -> Study:
    """Train the method's default configuration for as many rounds as the study's longest arm: the thing to beat.

    It is kept in the folder ``untuned`` of the study's own.
    """
    longest = study.schedule.longest
    setting, path = study.setting, study.path and study.path / "untuned"
    default = prepare(
        study.problem, Space(), setting.method, None, random_search(longest, longest), setting.cohort, setting.target,
        setting.seed, path, study.workers, setting.cohorts, setting.engine,
    )  # fmt: skip
    run(default, progress, "untuned")
    return default
