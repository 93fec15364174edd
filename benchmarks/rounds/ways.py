"""Ways to spend T rounds on a problem: not tuning, the tuners of the literature, ``auto``, and ``auto`` without a part.

All of them tune FedAvg. Tuners of the literature search the paper's ranges and score arms by validation error. Their
longest arm has the paper's share of the rounds, a tenth, or another of ``SHARES``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import fedtuner as ft
from fedtuner import Simulation, Study, methods, samplers
from fedtuner.core.federation import Federation
from fedtuner.core.method import default_space
from fedtuner.run.auto import COOLING
from schedules import RungAndRun

Run = Callable[[Simulation, int, str, int], Study]
PAPERS_SHARE = 0.1


@dataclass(frozen=True)
class Way:
    """A way to spend rounds."""

    run: Run
    both: bool = False  # its training does not depend on the target, so one study serves both
    part: str = "tuner"  # of the table: "alone", "tuner", "auto", or "without" (auto without a part)


def study(problem: Simulation, target: str, seed: int, **settings: Any) -> Study:
    """Run a study in this process, without a word."""
    return ft.tune(problem, target=target, seed=seed, workers=1, progress=False, **settings)


def alone(method: methods.Method, cooling: float, problem: Simulation, budget: int, target: str, seed: int) -> Study:
    """Train one configuration, the method's default, for all rounds."""
    schedule = ft.random_search(budget, budget)
    return study(
        problem, target, seed, space=ft.Space(), fedex=None, method=method, cooling=cooling, schedule=schedule
    )  # fmt: skip


def tuned(
    schedule: Callable[[int, int], Any], share: float, problem: Simulation, budget: int, target: str, seed: int,
    *, tuner: Any, sampler: Any = None,
) -> Study:  # fmt: skip
    """Tune by a schedule whose longest arm has a share of the rounds, over the paper's ranges."""
    more = {} if sampler is None else {"sampler": sampler}
    return study(
        problem, target, seed, method=methods.paper_ranges(methods.fedavg), fedex=None, tuner=tuner,
        schedule=schedule(budget, max(1, round(share * budget))), **more,
    )  # fmt: skip


def fedpop(
    share: float, problem: Simulation, budget: int, target: str, seed: int, *, paired: bool = False
) -> Study:  # fmt: skip
    """FedPop over the paper's ranges, the server's momentum 0 or 0.9; ``paired`` on shared cohorts."""
    method = methods.paper_ranges(methods.fedavg)
    usual = default_space(method, problem.model.hyperparameters)
    space = ft.Space(usual.client, {**usual.server, "momentum": [0.0, 0.9]})
    schedule = ft.fedpop(budget, max(1, round(share * budget)), paired=paired)
    return study(problem, target, seed, space=space, method=method, schedule=schedule)


def auto(problem: Simulation, budget: int, target: str, seed: int, **settings: Any) -> Study:
    """What ``tune(problem, budget=...)`` does, with other settings where they are given."""
    return study(problem, target, seed, **({"budget": budget} if "recipe" not in settings else {}), **settings)


def changed(change: Callable[[int, Mapping[str, Any]], Mapping[str, Any]]) -> Run:
    """Return ``auto`` with some of the settings that it chooses replaced."""

    def run(problem: Simulation, budget: int, target: str, seed: int) -> Study:
        def recipe(federation: Federation, given: Mapping[str, Any]) -> dict[str, Any]:
            chosen = ft.auto(budget)(federation, given)
            return {**chosen, **change(budget, chosen)}

        return auto(problem, budget, target, seed, recipe=recipe)

    return run


def _uniform(budget: int, chosen: Mapping[str, Any]) -> dict[str, Any]:
    return {"sampler": samplers.Include(chosen["sampler"].configs, samplers.uniform)}


def _no_duel(budget: int, chosen: Mapping[str, Any]) -> dict[str, Any]:
    given: ft.schedules.Duel = chosen["schedule"]
    return {"schedule": RungAndRun(given.budget, given.arms, step=given.step)}


def _no_net(budget: int, chosen: Mapping[str, Any]) -> dict[str, Any]:
    return {"schedule": replace(chosen["schedule"], returns=0)}


def _only_steps(budget: int, chosen: Mapping[str, Any]) -> dict[str, Any]:
    space = {name: domain for name, domain in chosen["space"].client.items() if name == "lr"}
    return {"space": ft.Space(space)}


none, fedex = ft.tuners.none, ft.FedEx()
rs, sha, hyperband = ft.random_search, ft.halving, partial(ft.hyperband, fill=True)
tpe = samplers.optuna("tpe")
SHARES = (PAPERS_SHARE, 0.2, 0.4, 0.64)
TUNERS: dict[str, Callable[..., Study]] = {
    "RS": partial(tuned, rs, tuner=none),
    "RS + FedEx": partial(tuned, rs, tuner=fedex),
    "SHA": partial(tuned, sha, tuner=none),
    "SHA + FedEx": partial(tuned, sha, tuner=fedex),
    "SHA + kernel FedEx": partial(tuned, sha, tuner=ft.tuners.Kernel()),
    "SHA + Gaussian": partial(tuned, sha, tuner=ft.tuners.Gaussian()),
    "Hyperband": partial(tuned, hyperband, tuner=none),
    "TPE": partial(tuned, partial(rs, together=1), tuner=none, sampler=tpe),
    "BOHB": partial(tuned, hyperband, tuner=none, sampler=tpe),
    "FedPop": fedpop,
    "FedPop, paired": partial(fedpop, paired=True),
}


def named(tuner: str, share: float) -> str:
    """Return the name of a tuner's way."""
    return f"{tuner}, T/10" if share == PAPERS_SHARE else f"{tuner}, {share:g} T"


def without(run: Run) -> Way:
    """Return the way of ``auto`` without one of its parts, or with another."""
    return Way(run, both=True, part="without")


WAYS: dict[str, Way] = {
    "untuned": Way(partial(alone, methods.fedavg, 0.0), both=True, part="alone"),
    "default+": Way(partial(alone, methods.fedavg.stepping_by("fedexp"), COOLING), both=True, part="alone"),
    "FedExP": Way(partial(alone, methods.fedavg.stepping_by("fedexp"), 0.0), both=True, part="alone"),
    "Delta-SGD": Way(partial(alone, methods.deltasgd, 0.0), both=True, part="alone"),
    "FedHyper": Way(partial(alone, methods.fedavg.stepping_by("fedhyper"), 0.0), both=True, part="alone"),
    **{named(name, share): Way(partial(run, share)) for share in SHARES for name, run in TUNERS.items()},
    "auto": Way(auto, both=True, part="auto"),
    "auto, own cohorts": without(partial(auto, cohorts="independent")),
    "auto, own weights and cohorts": without(partial(auto, cohorts="independent", weights="independent")),
    "auto, server's mean": without(partial(auto, method=methods.fedavg.with_defaults(server={"optimiser": "sgd"}))),
    "auto, no cooling": without(partial(auto, cooling=0.0)),
    "auto, no duel": without(changed(_no_duel)),
    "auto, no net": without(changed(_no_net)),
    "auto, uniform arms": without(changed(_uniform)),
    "auto, lr alone": without(changed(_only_steps)),
    "auto + FedEx": without(partial(auto, fedex=fedex)),
}
