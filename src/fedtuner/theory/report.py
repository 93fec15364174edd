"""What `fedtuner theory` prints and writes: the regret of every tuner beside the theorem's bound."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from fedtuner import __version__
from fedtuner.experiments import pictures, tables
from fedtuner.experiments.statistics import summary
from fedtuner.run.store.files import read_json
from fedtuner.run.versions import machine, versions
from fedtuner.tables import plain
from fedtuner.theory import experiment
from fedtuner.theory.experiment import TUNERS, Progress, rate, straightness
from fedtuner.theory.picture import picture
from fedtuner.theory.theorem import Floats, Setting, bound

Record = dict[str, Any]

RATED = ("fedex", "full", "full_same", "uniform")  # the tuners whose excess over the best step is fitted


def record(setting: Setting, tau: int, seeds: int, progress: Progress = lambda done, total: None) -> Record:
    """Run the experiment and return its results as plain values for JSON; regret is in units of D G sqrt(m)."""
    made = experiment.measure(setting, tau, seeds, progress)
    runs, shares = [], []
    for h, t in enumerate(made["tau"]):
        for s, similarity in enumerate(setting.similarities):
            v = made["v"][h, s]
            limits = [_bound(setting, t, x) for x in v]
            regret = {name: made["regret"][name][h, s] for name in TUNERS}
            shares.append(max(r / limit["total"] for r, limit in zip(regret["fedex"], limits, strict=True)))
            runs.append(
                {
                    "similarity": similarity,
                    "tau": t,
                    "k": made["k"][h][0],
                    "k_full": made["k"][h][1],
                    "v": float(v.mean()),
                    "bound": {name: _mean(limit[name] for limit in limits) for name in limits[0]},
                    "regret": {name: [round(float(x), 9) for x in values] for name, values in regret.items()},
                    "mode": float(made["mode"][h, s].mean()),
                }
            )
    return {
        "settings": _settings(setting, tau, seeds),
        "runs": runs,
        "rates": _rates(setting, made["tau"], made["regret"], runs),
        "largest_share_of_bound": float(max(shares)),
        "lowest_move": dict(zip(("fedex", "fedex_start"), made["lowest"].tolist(), strict=True)),
        "difference_from_fedex": experiment.check(setting),
        "command": f"fedtuner theory --tau {tau} --seeds {seeds} --m {setting.m}"
        + (f" --k {setting.k}" * bool(setting.k)),
        "versions": versions(),
        "machine": machine(),
    }


def kept(folder: Path, setting: Setting, tau: int, seeds: int) -> Record | None:
    """Return the record that an earlier run of the same experiment has written to the folder, or None."""
    file = folder / "theory.json"
    if not file.exists():
        return None
    found = read_json(file)
    same = isinstance(found, dict) and found.get("settings") == _settings(setting, tau, seeds)
    return found if same else None


def write(result: Record, folder: Path) -> list[Path]:
    """Write the record and, where matplotlib is installed, the picture; return the files."""
    parts = {"json": (json.dumps(plain(result), indent=2) + "\n").encode(), **picture(result)}
    return pictures.write(folder, {f"theory.{suffix}": data for suffix, data in parts.items()})


def _settings(setting: Setting, tau: int, seeds: int) -> Record:
    settings = {"setting": asdict(setting), "tau": tau, "seeds": seeds, "version": __version__}
    return dict(json.loads(json.dumps(settings)))  # tuples become lists, as in a file


def _bound(setting: Setting, tau: int, v: float) -> dict[str, float]:
    return {k: x / setting.unit for k, x in bound(setting, tau, v * setting.diameter).items()}


def _mean(values: Any) -> float:
    return float(np.mean(list(values)))


def _rates(setting: Setting, tau: Sequence[int], regret: Mapping[str, Floats], runs: Sequence[Record]) -> list[Record]:
    """Return for each V the exponents of the excess over the best fixed step, and that of the bound's other terms."""
    found = []
    for s, similarity in enumerate(setting.similarities):
        here = [run["bound"] for run in runs if run["similarity"] == similarity]
        vanishing = np.array([[limit["total"] - limit["similarity"]] for limit in here])
        exponents = {}
        for name in RATED:
            slopes = rate(tau, regret[name][:, s] - regret["best"][:, s])
            whole = summary(slopes.tolist())
            exponents[name] = {"mean": whole.mean, "half": whole.half}
        found.append({"similarity": similarity, "bound": float(rate(tau, vanishing)[0]), "exponents": exponents})
    return found


def text(result: Record) -> str:
    """Return the tables and what they show."""
    settings, runs = result["settings"], result["runs"]
    tau, similarities = settings["tau"], settings["setting"]["similarities"]
    last = [run for run in runs if run["tau"] == tau]
    columns = [f"V = {similarity:g} D" for similarity in similarities]

    after = [[label, *(_interval(run["regret"][name]) for run in last)] for name, label in TUNERS.items()]
    after.append(["the bound for FedEx", *(f"{run['bound']['total']:.4f}" for run in last)])
    after.append(["its V-term, sqrt(2) V / D", *(f"{run['bound']['similarity']:.4f}" for run in last)])

    along = []
    for t in dict.fromkeys(run["tau"] for run in runs):
        here = [run for run in runs if run["tau"] == t]
        along.append([f"{t:,} tasks, k = {here[0]['k']}", *(_interval(run["regret"]["fedex"]) for run in here)])

    falls = [[TUNERS[name], *(_exponent(result, name, similarity) for similarity in similarities)] for name in RATED]
    falls.append(["the bound without its V-term", *(f"{rates['bound']:.2f}" for rates in result["rates"])])

    head = (
        f"Tuning the step size of online gradient descent: {tau:,} tasks of {settings['setting']['m']} losses, "
        f"{settings['seeds']} seeds, {last[0]['k']} steps to choose from.\n"
        "Task-averaged regret in units of D G sqrt(m), with its 90 % interval over the seeds; exponents with that of\n"
        "the straight line's fit, which is wide where the curve bends.\n"
    )
    shown = "\n".join(f"- {line}" for line in findings(result))
    titles = (f"after {tau:,} tasks", after), ("FedEx after", along), ("exponent of what is above the best step", falls)
    return "\n".join([head, *(tables.text([title, *columns], rows) for title, rows in titles), shown])


def findings(result: Record) -> list[str]:
    """Return what the numbers show, in sentences."""
    tau = result["settings"]["tau"]
    last = [run for run in result["runs"] if run["tau"] == tau]
    share = result["largest_share_of_bound"]
    verdict = "never above it" if share <= 1 else "ABOVE IT: the theorem does not cover this"
    names = [f"{run['similarity']:g}" for run in last]
    means = [{name: _mean(values) for name, values in run["regret"].items()} for run in last]
    ratios = {name: [mean[name] / mean["fedex"] for mean in means] for name in TUNERS if name != "fedex"}
    above = [mean["fedex"] - mean["best"] for mean in means]
    allowed = [run["bound"]["total"] - run["bound"]["similarity"] for run in last]
    lines = [
        f"FedEx against the theorem's bound: {verdict}; at most {100 * share:.0f} % of it, over all runs and seeds.",
        f"Regret as a multiple of FedEx's, for V / D = {', '.join(names)}: "
        + "; ".join(f"{TUNERS[name]} {', '.join(f'{x:.2f}' for x in values)}" for name, values in ratios.items())
        + ".",
        f"FedEx is above the best step in hindsight by {', '.join(f'{x:.4f}' for x in above)}; "
        f"the bound without its V-term is {', '.join(f'{x:.4f}' for x in allowed)}.",
    ]
    following = [_mean(run["regret"]["best"]) / run["similarity"] for run in last if run["similarity"] > 0]
    if following:
        lines.append(
            f"The best step's regret is {min(following):.2f} to {max(following):.2f} of G V sqrt(m) (the bound has "
            f"{math.sqrt(2):.2f}): what is left once tuning is free follows V."
        )
    lines.append(
        f"fedex.py's own functions, on the same draws, give the same theta up to {result['difference_from_fedex']:.0e}."
    )
    return lines


def _exponent(result: Record, name: str, similarity: float) -> str:
    """Return the fitted exponent with the interval of the fit; the record's ``rates`` have the interval over seeds."""
    runs = [run for run in result["runs"] if run["similarity"] == similarity]
    tau = [run["tau"] for run in runs]
    excess = np.array([run["regret"][name] for run in runs]) - np.array([run["regret"]["best"] for run in runs])
    return f"{rate(tau, excess).mean():.2f} ± {straightness(tau, excess):.2f}"


def _interval(values: Sequence[float]) -> str:
    whole = summary(values)
    return f"{whole.mean:.4f} ± {whole.half:.4f}"
