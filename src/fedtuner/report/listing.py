"""Which methods, server optimisers, schedules, tuners, presets and problems there are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedtuner import methods, schedules, tables, tuners
from fedtuner.core.model import Hyper
from fedtuner.methods.server import OPTIMISERS
from fedtuner.report.console import console
from fedtuner.run import spec


def listing() -> dict[str, list[dict[str, Any]]]:
    """Return methods and server optimisers with their hyperparameters, schedules, tuners, and the rest."""
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
        "optimisers": [
            {"name": o.name, "paper": o.paper, "server": {name: _hyper(h) for name, h in o.hypers.items()}}
            for o in OPTIMISERS.values()
        ],
        "schedules": [_kind(name, kind) for name, kind in schedules.KINDS.items()],
        "tuners": [_kind(name, kind) for name, kind in tuners.KINDS.items()],
        "presets": [{"name": n, "about": _comment(text)} for n, text in spec.presets().items()],
        "problems": [{"name": name, "function": function} for name, function in spec.PROBLEMS.items()],
    }


def _kind(name: str, kind: type) -> dict[str, Any]:
    """Return a schedule or a tuner: its settings with their defaults, and what it is."""
    about = (kind.__doc__ or "").strip().splitlines()[0].replace("``", "")
    return {"name": name, "settings": {n: getattr(kind, n, None) for n in tables.parameters(kind)}, "about": about}


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

    out = console()
    columns = {
        "methods": ("method", "client hyperparameters (c: FedEx)", "server hyperparameters (b: wrapper)", "paper"),
        "optimisers": ("server.optimiser", "server hyperparameters", "paper"),
        "schedules": ("schedule.kind", "settings", "what it is"),
        "tuners": ("tuner.kind", "settings", "what it is"),
        "presets": ("preset", "what it is"),
        "problems": ("problem", "function"),
    }
    for what, rows in listed.items():
        table = Table(*columns[what], box=None, pad_edge=False, header_style="dim")
        for row in rows:
            if what == "methods":
                table.add_row(row["name"], *(_names(row[side]) for side in ("client", "server")), row["paper"])
            elif what == "optimisers":
                table.add_row(row["name"], _names(row["server"]), row["paper"])
            elif what in ("schedules", "tuners"):
                table.add_row(row["name"], ", ".join(row["settings"]), row["about"])
            else:
                table.add_row(*row.values())
        out.print(table)
        if what == "methods":
            out.print("In brackets: not tuned unless a study names it. Ranges and defaults: --json.")
        out.print()


def _names(hypers: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the names, those that are not tuned by default in brackets."""
    return ", ".join(name if h["tuned over"] is not None else f"({name})" for name, h in hypers.items())
