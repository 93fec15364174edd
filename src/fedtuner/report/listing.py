"""Which methods, schedules, tuners, presets and problems there are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedtuner import methods, schedules, tables, tuners
from fedtuner.core.model import Hyper
from fedtuner.report.console import console
from fedtuner.run import spec


def listing() -> dict[str, list[dict[str, Any]]]:
    """Return the methods with their hyperparameters, schedules and tuners with their settings, presets and problems."""
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
        "schedules": [_kind(name, kind) for name, kind in schedules.KINDS.items()],
        "tuners": [_kind(name, kind) for name, kind in tuners.KINDS.items()],
        "presets": [{"name": n, "about": _comment(text)} for n, text in spec.presets().items()],
        "problems": [{"name": name, "function": function} for name, function in spec.PROBLEMS.items()],
    }


def _kind(name: str, kind: type) -> dict[str, Any]:
    about = (kind.__doc__ or "").strip().splitlines()[0].replace("``", "")
    return {"name": name, "settings": list(tables.parameters(kind)), "about": about}


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
        "schedules": ("schedule", "settings", "what it is"),
        "tuners": ("tuner", "settings", "what it is"),
        "presets": ("preset", "what it is"),
        "problems": ("problem", "function"),
    }
    for what, rows in listed.items():
        table = Table(*columns[what], box=None, pad_edge=False, header_style="dim")
        for row in rows:
            if what == "methods":
                table.add_row(row["name"], *(_names(row[side]) for side in ("client", "server")), row["paper"])
            else:
                table.add_row(*(", ".join(v) if isinstance(v, list) else v for v in row.values()))
        out.print(table)
        if what == "methods":
            out.print("In brackets: not tuned unless a study names it. Ranges and defaults: --json.")
        out.print()


def _names(hypers: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the names, those that are not tuned by default in brackets."""
    return ", ".join(name if h["tuned over"] is not None else f"({name})" for name, h in hypers.items())
