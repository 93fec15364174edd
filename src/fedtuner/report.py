"""A study told to a person, or to a program: read from its folder alone, without its problem."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedtuner import methods, spec, store
from fedtuner.arm import Record, State, trainings
from fedtuner.errors import StoreError
from fedtuner.fedex import FedEx
from fedtuner.task import Hyper, Part, Vector


def summary(path: Path) -> dict[str, Any]:
    """Return what there is to say about a study: its spec, how far it is, its winner, its evaluations."""
    described, states, records, result = store.read(path)
    evaluations = {}
    for name, folder in (("tuned", path), ("untuned", path / "untuned")):
        file = folder / "evaluations.json"
        if file.exists():
            evaluations[name] = store.read_json(file)
    return {
        "store": str(path),
        "spec": described,
        "rounds_used": sum(len(r) for r in records.values()),
        "local_work": sum(trainings(FedEx(**described["fedex"]), r) for r in records.values()),
        "arms": [_arm(arm, states[arm], records[arm]) for arm in sorted(states)],
        "result": result,
        "evaluations": evaluations,
    }


def _arm(arm: int, state: State, records: list[Record]) -> dict[str, Any]:
    last = records[-1] if records else None
    return {
        "arm": arm,
        "rounds": state.round,
        "diverged": state.diverged,
        "error": last.error if last else None,
        "loss": last.loss if last else None,
        "broken": sum(r.broken for r in records),
        "dropped": sum(r.dropped for r in records),
        "entropy": state.belief.entropy,
    }


def strict(value: Any) -> Any:
    """Return a value for strict JSON: numbers that are not finite, here also as words, become null."""
    if isinstance(value, Mapping):
        return {key: strict(v) for key, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [strict(v) for v in value]
    if value in ("nan", "inf", "-inf") or (isinstance(value, float) and not math.isfinite(value)):
        return None
    return value


def headline(described: Mapping[str, Any], arms: int) -> str:
    """Return one line that says what a study is."""
    schedule, fedex = described["schedule"], described["fedex"]
    tuner = f"{schedule['kind'].replace('_', ' ')} of {arms} arms"
    inside = f" around FedEx with {fedex['k']} candidates each" if fedex["k"] > 1 else ""
    return (
        f"{described['problem']['name']}: {described['problem']['clients']} clients, {described['method']}; {tuner}"
        f"{inside}; {schedule['budget']} rounds, at most {schedule['longest']} an arm; seed {described['seed']}"
    )


def _console() -> Any:
    from rich.console import Console

    class Plain(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # the command line deals with it; rich would exit with code 1

    console = Plain(highlight=False, soft_wrap=True)
    if not console.is_terminal:
        console.width = 140  # a file or a pipe has no width of its own; 80 would break configurations
    return console


def print_summary(told: Mapping[str, Any]) -> None:
    """Print a study."""
    from rich.table import Table

    console = _console()
    result, described = told["result"], told["spec"]
    if result is None:
        console.print(headline(described, spec.schedule(described["schedule"]).arms))
        console.print(f"Not finished: {told['rounds_used']} of {described['schedule']['budget']} rounds used.")
        _print_arms(console, told["arms"])
        console.print(f"To continue, run the command that made it, with --store {told['store']}")
        return
    diverged = f"; {len(result['diverged'])} of {len(told['arms'])} arms diverged" if result["diverged"] else ""
    console.print(
        f"[bold]Best: arm {result['arm']}[/bold], trained for {result['rounds']} rounds; the study used "
        f"{result['rounds_used']} of {result['budget']}{diverged}. Clients trained {told['local_work']} times."
    )
    if result["score"] == "inf":
        console.print("[red]Every arm diverged: narrow the space (lower learning rates), or raise the budget.[/red]")
    table = Table("", "configuration found", box=None, pad_edge=False, header_style="dim")
    table.add_row("server", _config(result["server"], described["server"]))
    confidence = max(result["theta"])
    sure = (
        f"  [dim](theta {confidence:.2f} of {len(result['theta'])} candidates)[/dim]"
        if len(result["theta"]) > 1
        else ""
    )
    table.add_row("client", _config(result["client"], described["client"]) + sure)
    console.print(table)
    if told["evaluations"]:
        console.print()
        _print_evaluations(console, told["evaluations"], described["schedule"]["longest"])
    console.print(f"\nKept in {told['store']}: fedtuner show {told['store']}, fedtuner export {told['store']}")


def _print_evaluations(console: Any, evaluations: Mapping[str, Any], longest: int) -> None:
    from rich.table import Table

    table = Table("error over all clients", "global", "personalized", box=None, pad_edge=False, header_style="dim")
    errors = [
        float(e[side]) for kept in evaluations.values() for k, e in kept.items() if k.endswith(" error")
        for side in ("global", "personalized")
    ]  # fmt: skip
    rates = all(e <= 1 for e in errors if math.isfinite(e))  # a regression's errors are in units of their own
    notes = {"tuned": "", "untuned": f" (the method's default, {longest} rounds)"}
    for name, kept in evaluations.items():
        for key, value in kept.items():
            split, config, metric = key.split(" ")
            if metric == "error":
                how = f"{name}{notes[name]}, {split}" + (", sampled configurations" if config == "sample" else "")
                how += f" (missing clients: {value['missing']})" if "missing" in value else ""
                table.add_row(how, *(_error(float(value[side]), rates) for side in ("global", "personalized")))
    console.print(table)


def _error(value: float, rate: bool) -> str:
    if not math.isfinite(value):
        return "none" if math.isnan(value) else "infinite"
    return f"{100 * value:.1f} %" if rate else f"{value:.4g}"


def _print_arms(console: Any, arms: Iterable[Mapping[str, Any]]) -> None:
    from rich.table import Table

    table = Table("arm", "rounds", "error", "loss", "", box=None, pad_edge=False, header_style="dim")
    for arm in arms:
        numbers = ("-" if arm[name] is None else f"{arm[name]:.3f}" for name in ("error", "loss"))
        table.add_row(str(arm["arm"]), str(arm["rounds"]), *numbers, "diverged" if arm["diverged"] else "")
    console.print(table)


def _config(config: Mapping[str, Any], tuned: Mapping[str, Any]) -> str:
    """Return what was tuned; with nothing tuned, everything."""
    shown = {k: v for k, v in config.items() if k in tuned} or config
    return "  ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in shown.items()) or "-"


def listing() -> dict[str, list[dict[str, Any]]]:
    """Return the methods with their hyperparameters, the presets and the problems."""
    return {
        "methods": [
            {
                "name": m.name,
                "paper": m.paper,
                "client": {name: _hyper(h) for name, h in m.client.items()},
                "server": {name: _hyper(h) for name, h in m.server.items()},
            }
            for m in methods.ALL.values()
        ],
        "presets": [{"name": n, "about": _comment(text)} for n, text in spec.presets().items()],
        "problems": [{"name": name, "function": function} for name, function in spec.PROBLEMS.items()],
    }


def _hyper(hyper: Hyper) -> dict[str, Any]:
    return {
        "default": hyper.default,
        "tuned over": hyper.domain.describe() if hyper.domain else None,
        "about": hyper.about,
    }


def _comment(text: str) -> str:
    return " ".join(line.removeprefix("# ") for line in text.splitlines() if line.startswith("# "))


def print_listing(listed: Mapping[str, Any]) -> None:
    """Print what ``listing`` returns."""
    from rich.table import Table

    console = _console()
    columns = {
        "methods": ("method", "client hyperparameters (c: FedEx)", "server hyperparameters (b: wrapper)", "paper"),
        "presets": ("preset", "what it is"),
        "problems": ("problem", "function"),
    }
    for what, rows in listed.items():
        table = Table(*columns[what], box=None, pad_edge=False, header_style="dim")
        for row in rows:
            if what == "methods":
                table.add_row(row["name"], *(_names(row[side]) for side in ("client", "server")), row["paper"])
            else:
                table.add_row(*row.values())
        console.print(table)
        if what == "methods":
            console.print("In brackets: not tuned unless a study names it. Ranges and defaults: --json.")
        console.print()


def _names(hypers: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the names, those that are not tuned by default in brackets."""
    return ", ".join(name if h["tuned over"] is not None else f"({name})" for name, h in hypers.items())


def export(described: Mapping[str, Any], state: State, result: Mapping[str, Any], to: Path) -> list[Path]:
    """Write the model as named tensors (a PyTorch state_dict) and the configuration; return the files."""
    from safetensors.numpy import save

    tensors = named(state.w, [Part(p["name"], tuple(p["shape"]), tuple(p["axes"])) for p in described["layout"]])
    configuration = {
        "method": described["method"],
        "server": result["server"],
        "client": result["client"],
        "theta": result["theta"],
        "candidates": result["candidates"],
        "rounds": result["rounds"],
        "problem": described["problem"]["name"],
        "seed": described["seed"],
    }
    try:
        to.mkdir(parents=True, exist_ok=True)
        store.replace_file(to / "model.safetensors", bytes(save(tensors)))
        store.replace_file(to / "configuration.json", (json.dumps(configuration, indent=2) + "\n").encode())
    except OSError as error:
        raise StoreError(f"cannot write to {to}: {error.strerror}") from error
    return [to / "model.safetensors", to / "configuration.json"]


def named(w: Vector, layout: Iterable[Part]) -> dict[str, Vector]:
    """Return the tensors that w is made of, by their names."""
    tensors, start = {}, 0
    for part in layout:
        stored = w[start : start + part.size].reshape(part.shape)
        tensors[part.name] = np.ascontiguousarray(stored.transpose(part.axes) if part.axes else stored)
        start += part.size
    return tensors
