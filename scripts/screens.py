"""What a fleet's screens do to honest clients, and to attacks, on scikit-learn's digits: test errors over some seeds.

    python scripts/screens.py [--seeds N] [--theta | --least-squares]

Simulations, with the screens that a ``Fleet`` has by default and without. An attack is a screen before them that
changes the reports of three of the 56 clients or, for the last column, of one of them. Federations: by writer, and
dealt by label from a Dirichlet distribution (0.1), in which clients differ far more in their labels and in their size.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

import fedtuner as ft
from fedtuner.core.metric import mean_metrics
from fedtuner.core.records import Plan, Report, Tried
from fedtuner.core.round import Round
from fedtuner.core.screens import Norm, Values, Weights
from fedtuner.core.survey import survey
from fedtuner.data import digits, partition
from fedtuner.problems.digits import problem
from fedtuner.rng import stream
from fedtuner.testing.toys import Quadratics, optimum

LIARS = (5, 25, 45)
SCHEDULE = ft.halving(budget=60, longest=30, eta=3, eliminations=1)
SPACE = ft.Space(client={"lr": ft.Float(0.01, 1, log=True), "batch": ft.PowerOfTwo(8, 32), "epochs": ft.Int(1, 3)})


def by_label() -> ft.Simulation:
    """Return the digits of 56 clients that have few labels each, and very different numbers of examples."""
    whole = [part for c in digits.clients() for part in (c.train, c.valid, c.test)]
    x, y = (np.concatenate([part[n] for part in whole]) for n in (0, 1))
    rows = partition.dirichlet(y, 56, 0.1)
    clients = [partition.split(i, x[r], y[r]) for i, r in enumerate(rows) if len(r) >= 5]
    return ft.Simulation(problem().model, clients, "digits-by-label")


@dataclass(frozen=True)
class Attack:
    """Changes the reports of the liars."""

    kind: str
    liars: tuple[int, ...] = LIARS

    def __call__(self, plan: Plan, reports: Any) -> list[Report | None]:
        """Return the reports, those of the liars changed."""
        lie = LIES[self.kind]
        return [lie(r) if r is not None and r.client in self.liars else r for r in reports]


def values(report: Report, **changed: float) -> Report:
    """Return a report with other values before and after."""
    tried = [Tried(t.label, replace(t.before, **changed), replace(t.after, **changed)) for t in report.tried]
    return replace(report, tried=tuple(tried))


def weight(report: Report, n: int) -> Report:
    """Return a report with other numbers of examples."""
    return replace(values(report, count=n), examples=n)


def kept(report: Report, times: float) -> Report:
    """Return a report whose SCAFFOLD's control, or FedDyn's linear term, is so many times as long."""
    longer = [
        {name: v if name == "weight" else np.float32(times) * v for name, v in vectors.items()}
        for vectors in (report.extra, report.memory)
    ]
    return replace(report, extra=longer[0], memory=longer[1])


def steer(report: Report) -> Report:
    """Return a report of 10^9 examples by which candidate 3 is the best and all others are the worst."""
    found = float(report.tried[0].label != 3)
    return values(weight(report, 10**9), loss=found, error=found)


LIES: dict[str, Callable[[Report], Report]] = {
    "theta": steer,
    "the update is 3e38": lambda r: replace(r, change=np.full_like(r.change, 3e38)),
    "the update is -100 times the true one": lambda r: replace(r, change=-100 * r.change),
    "the loss is -1e308, the error -1": lambda r: values(r, loss=-1e308, error=-1.0),
    "the loss is 1e308": lambda r: values(r, loss=1e308),
    "10^9 examples, and the update reversed": lambda r: replace(weight(r, 10**9), change=-r.change),
    "10^9 examples, and the update is -20 times the true one": lambda r: replace(
        weight(r, 10**9), change=-20 * r.change
    ),
    "10^9 examples, and the error 0": lambda r: values(weight(r, 10**9), error=0.0),
    "the kept vector is 10^9 times the true one": partial(kept, times=1e9),
    "the kept vector is 1000 times the true one": partial(kept, times=1e3),
    "the kept vector is -3 times the true one": partial(kept, times=-3),
}


def study(
    where: ft.Simulation, method: Any, attack: Attack | None, seed: int, screened: bool
) -> tuple[float, int, int]:
    """Return the test error of the winner's model, and how many reports of how many the screens have touched."""
    screens: tuple[Any, ...] = (attack,) if attack else ()
    if screened:
        screens += (Values(), Weights(), Norm(trainable=where.model.trainable))
    made = ft.tune(
        where, SPACE, method=method, fedex=ft.FedEx(k=5), schedule=SCHEDULE, target="global", seed=seed,
        screens=screens, workers=1, progress=False,
    )  # fmt: skip
    measured = [where.model.evaluate(made.best.model, where.data(i, "test"), {}) for i in where.present()]  # type: ignore[attr-defined]
    touched = sum(r.bounded for r in made.history)
    return mean_metrics(measured).error, touched, sum(r.clients for r in made.history)


def steered(screens: tuple[Any, ...], seed: int) -> bool:
    """Return whether theta's mode is the liar's choice, where one of ten clients lies in each of twenty rounds."""
    few = ft.Simulation(problem().model, digits.clients()[:10], "ten")
    once = ft.random_search(budget=20, longest=20)
    made = ft.tune(
        few, SPACE, fedex=ft.FedEx(k=6, eps=1.0), schedule=once, cohort=10, seed=seed, screens=screens, workers=1,
        progress=False,
    )  # fmt: skip
    return made.history[-1].mode == 3


def in_a_fleet(screens: tuple[Any, ...], fedex: ft.FedEx, seed: int) -> tuple[bool, float]:
    """Return whether theta's mode is the liar's choice, and the test error of the clients' models with that mode.

    The error is measured here: in an evaluation of the study's own the liar would have a part. The liar is one of 56
    clients, of which ten are drawn in each of fifty rounds: it lies in about nine of them.
    """
    once = ft.random_search(budget=50, longest=50)
    made = ft.tune(
        problem(), SPACE, fedex=fedex, schedule=once, cohort=10, seed=seed, screens=screens, workers=1, progress=False
    )
    rounds, (arm, _) = Round(replace(made.setup, screens=()), made.problem), made.winner
    plan = survey(rounds, made.journal.arms[arm], made.state(made.winner), made.problem.present(), "test")
    measured = [rounds.work(plan, job).after for job in plan.jobs]
    return made.history[-1].mode == 3, mean_metrics(measured).error


def print_steered(seeds: range) -> None:
    """Print in how many seeds one liar chooses theta's mode, and what that costs in a fleet."""
    lies, usual = Attack("theta", LIARS[:1]), (Values(), Weights(), Norm(trainable=problem().model.trainable))
    for name, screens in {
        "nobody lies": (),
        "no screens": (lies,),
        "the default screens": (lies, *usual),
        "Weights(most=1): all clients weigh the same": (lies, Values(), Weights(1), usual[-1]),
    }.items():
        print(f"- {name}: {sum(steered(screens, seed) for seed in seeds)} of {len(seeds)} seeds", flush=True)
    print("\n| FedEx | screens | who lies | mode is the liar's | test error | more than if nobody lies |")
    print("|---|---|---|---|---|---|")
    for fedex in (ft.FedEx(k=6, eps=1.0), ft.FedEx(k=9, eps=1.0), ft.FedEx(k=9)):
        for which, screens in (("none", ()), ("default", usual)):
            runs = [[in_a_fleet((*liar, *screens), fedex, seed) for seed in seeds] for liar in ((), (lies,))]
            errors = [np.array([100 * error for _, error in found]) for found in runs]
            more, spread = errors[1] - errors[0], float(np.std(errors[1] - errors[0], ddof=1)) / len(seeds) ** 0.5
            for who, found, error in zip(("nobody", "one of 56"), runs, errors, strict=True):
                said = f"{more.mean():+.1f} +- {spread:.1f} points" if who != "nobody" else ""
                modes = f"{sum(mode for mode, _ in found)} of {len(seeds)}"
                about = f"k = {fedex.k}, eps = {fedex.eps:g} | {which} | {who} | {modes} | {error.mean():.1f} %"
                print(f"| {about} | {said} |", flush=True)


def least_squares() -> ft.Simulation:
    """Return 20 clients of 5 to 199 examples, with quadratic losses of different optima and curvatures."""
    made = []
    for i, n in enumerate(np.linspace(5, 199, 20).astype(int)):
        rng = stream(0, "least squares", i)
        x = (2 * rng.standard_normal(2) + 0.3 * rng.standard_normal((n, 2))).astype(np.float32)
        split = (x, np.exp(rng.uniform(-1.0, 0.5, 2)).astype(np.float32))
        made.append(ft.Client(i, split, split))
    return ft.Simulation(Quadratics(2), made)


def print_distances(seeds: range) -> None:
    """Print how far from the optimum of all clients' losses, weighted by |T|, 400 rounds of four clients end."""
    where, once = least_squares(), ft.random_search(400, 400)
    client = {"lr": 0.1, "batch": 256, "epochs": 5, "momentum": 0.0, "weight_decay": 0.0}
    server = {"lr": 1.0, "momentum": 0.0, "gamma": 1.0}
    for name, screens in {
        "no screens": (),
        "the default screens": (Values(), Weights(), Norm()),
        "most_examples=199, Norm(times=10)": (Values(), Weights(199, share=1.0), Norm(times=10)),
    }.items():
        for method in (ft.methods.scaffold, ft.methods.fedavg):
            models = [
                ft.tune(
                    where, ft.Space(client, server), method=method, fedex=None, schedule=once, cohort=4, seed=seed,
                    screens=screens, workers=1, progress=False,
                ).best.model
                for seed in seeds
            ]  # fmt: skip
            far = [f"{np.abs(w - optimum(where)).max():.1g}" for w in models]
            print(f"- {name}, {method.name}: {', '.join(far)}", flush=True)


def main() -> None:
    """Print how often theta is steered, or the table of errors."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--theta", action="store_true", help="how often a lying |V| chooses theta's mode")
    parser.add_argument("--least-squares", action="store_true", help="what screens do to SCAFFOLD's fixed point")
    given = parser.parse_args()
    seeds = range(given.seeds)
    if given.least_squares:
        print_distances(seeds)
    elif given.theta:
        print_steered(seeds)
    else:
        print_errors(seeds)


def print_errors(seeds: range) -> None:
    """Print the table of errors."""
    places = {"writer": problem(), "label": by_label()}
    methods = {"fedavg": ft.methods.fedavg, "scaffold": ft.methods.scaffold, "feddyn": ft.methods.feddyn}
    rows: list[tuple[str, str, str | None]] = [(p, m, None) for p in places for m in methods]
    for name in [name for name in LIES if name != "theta"]:
        rows += [("writer", method, name) for method in (("scaffold", "feddyn") if "kept" in name else ("fedavg",))]
    print("| clients by | method | attack | no screens | screens | one lies | touched |\n|---|---|---|---|---|---|---|")
    for place, method, attack in rows:
        run = partial(study, places[place], methods[method])
        lies, one = (attack and Attack(attack, LIARS[:n]) for n in (3, 1))
        without, with_ = ([run(lies, seed, screened) for seed in seeds] for screened in (False, True))
        alone = [run(one, seed, True) for seed in seeds] if attack else []
        touched, asked = (sum(found[n] for found in with_) for n in (1, 2))
        errors = " | ".join(map(percent, (without, with_, alone)))
        print(f"| {place} | {method} | {attack or 'none'} | {errors} | {touched} of {asked} |", flush=True)


def percent(runs: list[tuple[float, int, int]]) -> str:
    """Return the mean of the errors."""
    return f"{100 * np.mean([error for error, _, _ in runs]):.1f} %" if runs else ""


if __name__ == "__main__":
    main()
