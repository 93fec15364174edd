"""Commands that show a study: a page, a live page, a figure."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from fedtuner.cli.output import printing, tell
from fedtuner.cli.studies import inside
from fedtuner.errors import SpecError

# The figures of page/plots.py, which is imported only when one is drawn.
KINDS = (
    "race", "incumbent", "configurations", "importance", "theta", "clients", "served", "lineage", "health",
    "comparison",
)  # fmt: skip


def report(arguments: Namespace) -> None:
    """Write the page of one or several studies."""
    from fedtuner.page import html

    stores = list(dict.fromkeys(arguments.stores))
    out = arguments.out or (inside(stores[0], "report.html") if len(stores) == 1 else Path("report.html"))
    if out.suffix != ".html":
        raise SpecError(f"--out {out}, but a page's name must end in .html")
    written = html.report(stores, out)
    with printing(str(written)):
        print(f"wrote {written}: open it in a browser")


def watch(arguments: Namespace) -> None:
    """Serve a study's page while it runs."""
    from fedtuner.page import serve

    serve.watch(arguments.store, arguments.port, tell)


def plot(arguments: Namespace) -> None:
    """Write a figure of one or several studies."""
    from fedtuner.page import plots

    written = plots.write(arguments.kind, list(dict.fromkeys(arguments.stores)), arguments.out, arguments.arm)
    with printing(str(written)):
        print(f"wrote {written}")
