"""What `fedtuner theory` prints, keeps and draws: the regret of `theory.measure` beside the theorem's bound."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from fedtuner import __version__, store
from fedtuner.errors import SpecError
from fedtuner.experiments import tables, theory
from fedtuner.experiments.results import machine, versions
from fedtuner.experiments.statistics import summary
from fedtuner.experiments.theory import Setting, Tell
from fedtuner.fedex import Floats

Record = dict[str, Any]

LABELS = {
    "best": "best fixed step in hindsight, 0 included",
    "known": "step for a known V",
    "full": "full information",
    "full_same": "full information, FedEx's k",
    "fedex": "FedEx",
    "fedex_start": "FedEx, regret against the start",
    "uniform": "steps drawn uniformly",
    "naive": "naive step D / (G sqrt m)",
}
RATED = ("fedex", "full", "full_same", "uniform")  # the tuners whose excess should vanish, or is said to


def record(setting: Setting, tau: int, seeds: int, tell: Tell = lambda done, total: None) -> Record:
    """Run the experiment and return all that is known of it, ready for JSON; regret in units of D G sqrt(m)."""
    made = theory.measure(setting, tau, seeds, tell)
    runs, shares = [], []
    for h, t in enumerate(made["tau"]):
        for s, similarity in enumerate(setting.similarities):
            v = made["v"][h, s]
            limits = [_bound(setting, t, x) for x in v]
            regret = {name: made["regret"][name][h, s] for name in theory.TUNERS}
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
        "difference_from_fedex": theory.check(setting),
        "command": f"fedtuner theory --tau {tau} --seeds {seeds} --m {setting.m}"
        + (f" --k {setting.k}" * bool(setting.k)),
        "versions": versions(),
        "machine": machine(),
    }


def kept(folder: Path, setting: Setting, tau: int, seeds: int) -> Record | None:
    """Return what an earlier run of the same experiment has written to the folder, if one has."""
    file = folder / "theory.json"
    if not file.exists():
        return None
    found = store.read_json(file)
    same = isinstance(found, dict) and found.get("settings") == _settings(setting, tau, seeds)
    return found if same else None


def write(told: Record, folder: Path) -> list[Path]:
    """Write the record and, where matplotlib is installed, the picture; return the files."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        files = [folder / "theory.json"]
        store.write_json(files[0], told)
        for kind, data in picture(told).items():
            files.append(folder / f"theory.{kind}")
            store.replace_file(files[-1], data)
    except OSError as error:
        raise SpecError(f"cannot write to {folder}: {error.strerror}") from error
    return files


def _settings(setting: Setting, tau: int, seeds: int) -> Record:
    settings = {"setting": asdict(setting), "tau": tau, "seeds": seeds, "version": __version__}
    return dict(json.loads(json.dumps(settings)))  # tuples become lists, as in a file


def _bound(setting: Setting, tau: int, v: float) -> dict[str, float]:
    return {k: x / setting.unit for k, x in theory.bound(setting, tau, v * setting.diameter).items()}


def _mean(values: Any) -> float:
    return float(np.mean(list(values)))


def _rates(setting: Setting, tau: Sequence[int], regret: Mapping[str, Floats], runs: Sequence[Record]) -> list[Record]:
    """Return the exponents with which the excess over the best fixed step falls, and those of the bound's own terms."""
    found = []
    for s, similarity in enumerate(setting.similarities):
        here = [run["bound"] for run in runs if run["similarity"] == similarity]
        vanishing = np.array([[limit["total"] - limit["similarity"]] for limit in here])
        exponents = {}
        for name in RATED:
            slopes = theory.rate(tau, regret[name][:, s] - regret["best"][:, s])
            whole = summary(slopes.tolist())
            exponents[name] = {"mean": whole.mean, "half": whole.half}
        found.append({"similarity": similarity, "bound": float(theory.rate(tau, vanishing)[0]), "exponents": exponents})
    return found


# Print


def text(told: Record) -> str:
    """Return the tables and what they show."""
    settings, runs = told["settings"], told["runs"]
    tau, similarities = settings["tau"], settings["setting"]["similarities"]
    last = [run for run in runs if run["tau"] == tau]
    columns = [f"V = {similarity:g} D" for similarity in similarities]

    after = [[label, *(_interval(run["regret"][name]) for run in last)] for name, label in LABELS.items()]
    after.append(["the bound for FedEx", *(f"{run['bound']['total']:.4f}" for run in last)])
    after.append(["its V-term, sqrt(2) V / D", *(f"{run['bound']['similarity']:.4f}" for run in last)])

    along = []
    for t in dict.fromkeys(run["tau"] for run in runs):
        here = [run for run in runs if run["tau"] == t]
        along.append([f"{t:,} tasks, k = {here[0]['k']}", *(_interval(run["regret"]["fedex"]) for run in here)])

    falls = [[LABELS[name], *(_exponent(told, name, similarity) for similarity in similarities)] for name in RATED]
    falls.append(["the bound without its V-term", *(f"{rate['bound']:.2f}" for rate in told["rates"])])

    head = (
        f"Tuning the step size of online gradient descent: {tau:,} tasks of {settings['setting']['m']} losses, "
        f"{settings['seeds']} seeds, {last[0]['k']} steps to choose from.\n"
        "Task-averaged regret in units of D G sqrt(m), with its 90 % interval over the seeds; exponents with that of\n"
        "the straight line's fit, which is wide where the curve bends.\n"
    )
    shown = "\n".join(f"- {line}" for line in findings(told))
    titles = (f"after {tau:,} tasks", after), ("FedEx after", along), ("exponent of what is above the best step", falls)
    return "\n".join([head, *(tables.text([title, *columns], rows) for title, rows in titles), shown])


def findings(told: Record) -> list[str]:
    """Return what the numbers show, in sentences."""
    tau = told["settings"]["tau"]
    last = [run for run in told["runs"] if run["tau"] == tau]
    share = told["largest_share_of_bound"]
    verdict = "never above it" if share <= 1 else "ABOVE IT: the theorem does not cover this"
    names = [f"{run['similarity']:g}" for run in last]
    means = [{name: _mean(values) for name, values in run["regret"].items()} for run in last]
    ratios = {name: [mean[name] / mean["fedex"] for mean in means] for name in LABELS if name != "fedex"}
    above = [mean["fedex"] - mean["best"] for mean in means]
    allowed = [run["bound"]["total"] - run["bound"]["similarity"] for run in last]
    lines = [
        f"FedEx against the theorem's bound: {verdict}; at most {100 * share:.0f} % of it, over all runs and seeds.",
        f"Regret as a multiple of FedEx's, for V / D = {', '.join(names)}: "
        + "; ".join(f"{LABELS[name]} {', '.join(f'{x:.2f}' for x in values)}" for name, values in ratios.items())
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
        f"fedex.py's own functions, on the same draws, give the same theta up to {told['difference_from_fedex']:.0e}."
    )
    return lines


def _exponent(told: Record, name: str, similarity: float) -> str:
    """Return the fitted exponent with the line's interval; that over the seeds (``rates``) says nothing of the fit."""
    runs = [run for run in told["runs"] if run["similarity"] == similarity]
    tau = [run["tau"] for run in runs]
    excess = np.array([run["regret"][name] for run in runs]) - np.array([run["regret"]["best"] for run in runs])
    return f"{theory.rate(tau, excess).mean():.2f} ± {theory.straightness(tau, excess):.2f}"


def _interval(values: Sequence[float]) -> str:
    whole = summary(values)
    return f"{whole.mean:.4f} ± {whole.half:.4f}"


# Draw


def picture(told: Record) -> dict[str, bytes]:
    """Return the picture as {"png": ..., "svg": ...}; empty where matplotlib is not installed."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        return {}
    similarities = told["settings"]["setting"]["similarities"]
    with matplotlib.rc_context({"svg.hashsalt": "fedtuner", "svg.fonttype": "none", "font.size": 8}):
        figure = Figure(figsize=(11, 3.1 * math.ceil((len(similarities) + 2) / 3)), layout="constrained")
        panels = figure.subplots(math.ceil((len(similarities) + 2) / 3), 3, squeeze=False).ravel()
        for axes, similarity in zip(panels, similarities, strict=False):
            _draw_regret(axes, [run for run in told["runs"] if run["similarity"] == similarity])
        _draw_excess(panels[len(similarities)], told)
        _draw_similarity(panels[len(similarities) + 1], told)
        for axes in panels[len(similarities) + 2 :]:
            axes.remove()
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=5, frameon=False)
        made = {}
        for kind, about in (("png", {"Software": None}), ("svg", {"Date": None})):
            data = io.BytesIO()
            figure.savefig(data, format=kind, dpi=130, metadata=about)
            made[kind] = data.getvalue()
    return made


def _curves(runs: Sequence[Record], name: str) -> tuple[list[int], Floats, Floats]:
    wholes = [summary(run["regret"][name]) for run in runs]
    return [run["tau"] for run in runs], np.array([w.mean for w in wholes]), np.array([w.half for w in wholes])


_COLOURS = {
    "best": "black", "known": "tab:brown", "full": "tab:purple", "full_same": "tab:pink", "fedex": "tab:red",
    "uniform": "tab:blue", "naive": "tab:gray",
}  # fmt: skip


def _draw_regret(axes: Any, runs: Sequence[Record]) -> None:
    for name, colour in _COLOURS.items():
        tau, mean, half = _curves(runs, name)
        axes.plot(tau, mean, color=colour, marker=".", lw=2 if name == "fedex" else 1, label=LABELS[name])
        axes.fill_between(tau, np.maximum(mean - half, 1e-9), mean + half, color=colour, alpha=0.2, lw=0)
    limits = {name: [run["bound"][name] for run in runs] for name in runs[0]["bound"]}
    axes.plot(tau, limits["total"], "k--", lw=1, label="bound")
    axes.plot(tau, limits["feedback"], "k:", lw=1, label="its feedback term")
    axes.plot(tau, np.maximum(limits["start"], 1e-9), "k-.", lw=0.7, label="its start term")
    axes.plot(tau, np.maximum(limits["similarity"], 1e-9), color="tab:green", ls="--", lw=1, label="its V-term")
    axes.set(xscale="log", yscale="log", ylim=(2e-3, 2), title=f"V = {runs[0]['similarity']:g} D", xlabel="tasks")
    axes.set_ylabel("regret / (D G sqrt m)")


def _draw_excess(axes: Any, told: Record) -> None:
    for rate in told["rates"]:
        runs = [run for run in told["runs"] if run["similarity"] == rate["similarity"]]
        tau, mean, _ = _curves(runs, "fedex")
        label = f"V = {rate['similarity']:g} D: {_exponent(told, 'fedex', rate['similarity'])}"
        axes.plot(tau, mean - _curves(runs, "best")[1], marker=".", label=label)
    x = np.array([told["runs"][0]["tau"], told["settings"]["tau"]], dtype=float)
    axes.plot(x, 0.3 * (x / x[0]) ** (-1 / 3), "k--", lw=1, label="slope -1/3")
    axes.set(
        xscale="log", yscale="log", title="FedEx above the best fixed step; exponents ± the line's fit", xlabel="tasks"
    )
    axes.legend(frameon=False)


def _draw_similarity(axes: Any, told: Record) -> None:
    last = [run for run in told["runs"] if run["tau"] == told["settings"]["tau"]]
    v = [run["v"] for run in last]
    for name in ("best", "fedex", "uniform", "naive"):
        wholes = [summary(run["regret"][name]) for run in last]
        mean, half = [w.mean for w in wholes], [w.half for w in wholes]
        axes.errorbar(v, mean, half, color=_COLOURS[name], marker=".")
    axes.plot(v, [run["bound"]["similarity"] for run in last], color="tab:green", ls="--", lw=1)
    axes.plot(v, [run["bound"]["total"] for run in last], "k--", lw=1)
    axes.set(title=f"after {told['settings']['tau']:,} tasks, by V", xlabel="V / D", ylim=(0, None))
