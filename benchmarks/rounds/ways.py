"""Ways to spend T rounds on a problem: not tuning, the tuners of the literature, ``auto``, and ``auto`` without a part.

All of them tune FedAvg. Tuners of the literature search the paper's ranges and score arms by validation error. Their
longest arm has the paper's share of the rounds, a tenth, or another of ``SHARES``. Ways with the same ``arms`` train
the same arms, whatever their budget and target: shared.py computes their rounds once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import fedtuner as ft
from fedtuner import Simulation, Study, methods, samplers
from fedtuner.core.federation import Federation
from fedtuner.core.method import default_space
from fedtuner.run.auto import COOLING
from schedules import OnceOnly, RungAndRun

Run = Callable[[Simulation, int, str, int], Study]
Settings = Callable[[int], dict[str, Any]]
PAPERS_SHARE = 0.1


@dataclass(frozen=True)
class Way:
    """A way to spend rounds: a study of its own, or with ``settings`` those of a study, by its budget."""

    run: Run
    both: bool = False  # its training does not depend on the target, so one study serves both
    part: str = "tuner"  # of the table: "alone", "tuner", "auto", or "without" (auto without a part)
    arms: str = ""  # ways that share their arms have the same; empty: it has arms of its own
    settings: Settings | None = None  # of a way that shares its arms: of ``fedtuner.prepare``


def study(problem: Simulation, target: str, seed: int, **settings: Any) -> Study:
    """Run a study in this process, without a word."""
    return ft.tune(problem, target=target, seed=seed, workers=1, progress=False, **settings)


def with_settings(settings: Settings, problem: Simulation, budget: int, target: str, seed: int) -> Study:
    """Run the study that has these settings."""
    return study(problem, target, seed, fedex=None, **settings(budget))


def alone(method: methods.Method, cooling: float, budget: int) -> dict[str, Any]:
    """Return the settings that train one configuration, the method's default, for all rounds."""
    return {
        "space": ft.Space(), "method": method, "cooling": cooling, "schedule": ft.random_search(budget, budget)
    }  # fmt: skip


def tuned(
    share: float, budget: int, *, schedule: Callable[[int, int], Any], tuner: Any, sampler: Any = None
) -> dict[str, Any]:  # fmt: skip
    """Return the settings that tune over the paper's ranges; the longest arm has a share of the rounds."""
    more = {} if sampler is None else {"sampler": sampler}
    return {
        "method": methods.paper_ranges(methods.fedavg), "tuner": tuner, **more,
        "schedule": schedule(budget, max(1, round(share * budget))),
    }  # fmt: skip


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


def _once_only(budget: int, chosen: Mapping[str, Any]) -> dict[str, Any]:
    given: ft.schedules.Duel = chosen["schedule"]
    return {"schedule": OnceOnly(**{field.name: getattr(given, field.name) for field in fields(given)})}


def _no_net(budget: int, chosen: Mapping[str, Any]) -> dict[str, Any]:
    return {"schedule": replace(chosen["schedule"], returns=0)}


def _only_steps(budget: int, chosen: Mapping[str, Any]) -> dict[str, Any]:
    space = {name: domain for name, domain in chosen["space"].client.items() if name == "lr"}
    return {"space": ft.Space(space)}


none, fedex = ft.tuners.none, ft.FedEx()
rs, sha, hyperband = ft.random_search, ft.halving, partial(ft.hyperband, fill=True)
tpe = samplers.optuna("tpe")
SHARES = (PAPERS_SHARE, 0.2, 0.4, 0.64)
# By name, and by the arms that they share: those of TPE and BOHB depend on the scores of earlier ones.
TUNERS: dict[str, tuple[str, Callable[[float, int], dict[str, Any]]]] = {
    "RS": ("plain", partial(tuned, schedule=rs, tuner=none)),
    "RS + FedEx": ("FedEx", partial(tuned, schedule=rs, tuner=fedex)),
    "SHA": ("plain", partial(tuned, schedule=sha, tuner=none)),
    "SHA + FedEx": ("FedEx", partial(tuned, schedule=sha, tuner=fedex)),
    "SHA + kernel FedEx": ("kernel", partial(tuned, schedule=sha, tuner=ft.tuners.Kernel())),
    "SHA + Gaussian": ("Gaussian", partial(tuned, schedule=sha, tuner=ft.tuners.Gaussian())),
    "Hyperband": ("plain", partial(tuned, schedule=hyperband, tuner=none)),
    "TPE": ("", partial(tuned, schedule=partial(rs, together=1), tuner=none, sampler=tpe)),
    "BOHB": ("", partial(tuned, schedule=hyperband, tuner=none, sampler=tpe)),
}
POPULATIONS: dict[str, Callable[..., Study]] = {"FedPop": fedpop, "FedPop, paired": partial(fedpop, paired=True)}


def named(tuner: str, share: float) -> str:
    """Return the name of a tuner's way."""
    return f"{tuner}, T/10" if share == PAPERS_SHARE else f"{tuner}, {share:g} T"


def tuners(share: float) -> dict[str, Way]:
    """Return the ways of the literature's tuners whose longest arm has a share of the rounds."""
    ways = {}
    for name, (arms, of) in TUNERS.items():
        settings = partial(of, share)
        ways[named(name, share)] = Way(partial(with_settings, settings), arms=arms, settings=settings)
    return ways | {named(name, share): Way(partial(run, share)) for name, run in POPULATIONS.items()}


def trained(arms: str, method: methods.Method, cooling: float = 0.0) -> Way:
    """Return the way that trains a method's default for all rounds; cooled arms depend on the budget."""
    settings = partial(alone, method, cooling)
    return Way(
        partial(with_settings, settings), both=True, part="alone", arms="" if cooling else arms, settings=settings
    )


def without(run: Run) -> Way:
    """Return the way of ``auto`` without one of its parts, or with another."""
    return Way(run, both=True, part="without")


WAYS: dict[str, Way] = {
    "untuned": trained("untuned", methods.fedavg),
    "default+": trained("default+", methods.fedavg.stepping_by("fedexp"), COOLING),
    "FedExP": trained("FedExP", methods.fedavg.stepping_by("fedexp")),
    "Delta-SGD": trained("Delta-SGD", methods.deltasgd),
    "FedHyper": trained("FedHyper", methods.fedavg.stepping_by("fedhyper")),
    **{name: way for share in SHARES for name, way in tuners(share).items()},
    "auto": Way(auto, both=True, part="auto"),
    "auto, own cohorts": without(partial(auto, cohorts="independent")),
    "auto, own weights and cohorts": without(partial(auto, cohorts="independent", weights="independent")),
    "auto, server's mean": without(partial(auto, method=methods.fedavg.with_defaults(server={"optimiser": "sgd"}))),
    "auto, no cooling": without(partial(auto, cooling=0.0)),
    "auto, no duel": without(changed(_no_duel)),
    "auto, no net": without(changed(_no_net)),
    "auto, no last step": without(changed(_once_only)),
    "auto, uniform arms": without(changed(_uniform)),
    "auto, lr alone": without(changed(_only_steps)),
    "auto + FedEx": without(partial(auto, fedex=fedex)),
}
