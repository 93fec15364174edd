"""The command line. Exit codes: 0 done, 1 failed in a client's work, 2 bad input, 3 interrupted and resumable."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedtuner import __version__
from fedtuner.errors import ClientError, FedtunerError, Interrupted, SpecError, StoreError, WorkerError


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    arguments = parser().parse_args(argv)
    try:
        code = int(arguments.command(arguments) or 0)
        sys.stdout.flush()
        return code
    except Interrupted as stop:
        print(f"fedtuner: {stop}", file=sys.stderr)
        return 3
    except KeyboardInterrupt:
        print("fedtuner: stopped at once; run the same command again to continue", file=sys.stderr)
        return 3
    except FedtunerError as error:
        print(f"fedtuner: {error}", file=sys.stderr)
        return 1 if isinstance(error, (ClientError, WorkerError)) else 2
    except BrokenPipeError:  # the reader of our output has gone, as in `fedtuner show ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is still to be written goes nowhere
        return 0


def parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    top = argparse.ArgumentParser(prog="fedtuner", description="Tune the hyperparameters of federated learning.")
    top.add_argument("--version", action="version", version=f"fedtuner {__version__}")
    commands = top.add_subparsers(required=True, metavar="COMMAND")

    run = commands.add_parser("run", help="run a study, or continue one", description="Run a study, or continue one.")
    run.add_argument("study", help="a study.toml, or a preset (fedtuner list presets)")
    run.add_argument("--store", type=Path, help="the study's folder (default: runs/NAME-seedN)")
    run.add_argument("--workers", type=int, help="worker processes (default: one per core)")
    run.add_argument("--seed", type=int, help="the seed, in place of the file's")
    run.add_argument("--engine", choices=("auto", "sequential", "batched"), help="how clients' work is done")
    run.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="such as schedule.budget=200")
    run.add_argument("--baseline", action="store_true", help="also train the untuned default, to compare with")
    run.add_argument("--json", action="store_true", help="print the result as JSON")
    run.add_argument("--quiet", action="store_true", help="no progress")
    run.set_defaults(command=_run)

    show = commands.add_parser("show", help="show a study", description="Show a study, finished or not.")
    show.add_argument("store", type=Path, help="the study's folder")
    show.add_argument("--json", action="store_true", help="print it as JSON")
    show.set_defaults(command=_show)

    export = commands.add_parser(
        "export", help="write the model and the configuration", description="Write the tuned model and configuration."
    )
    export.add_argument("store", type=Path, help="the study's folder")
    export.add_argument("--to", type=Path, help="where to (default: STORE/export)")
    export.set_defaults(command=_export)

    lists = commands.add_parser("list", help="list methods, presets, problems", description="List what there is.")
    lists.add_argument("what", choices=("methods", "presets", "problems"), nargs="?", help="only these")
    lists.add_argument("--json", action="store_true", help="print it as JSON")
    lists.set_defaults(command=_list)

    data = commands.add_parser("data", help="get, list and show data sets", description="Get, list and show data sets.")
    what = data.add_subparsers(required=True, metavar="WHAT")
    get = what.add_parser("get", help="download and convert", description="Download data sets and convert them.")
    get.add_argument("names", nargs="+", metavar="NAME", help="femnist, shakespeare or cifar10")
    get.add_argument("--quiet", action="store_true", help="no progress")
    get.set_defaults(command=_data_get)
    known = what.add_parser("list", help="which there are", description="List the data sets and where they are.")
    known.add_argument("--json", action="store_true", help="print it as JSON")
    known.set_defaults(command=_data_list)
    look = what.add_parser("show", help="how one is spread over its clients", description="Show a problem's clients.")
    look.add_argument("name", help="a data set, a problem (fedtuner list problems), or package.module:function")
    look.add_argument("--json", action="store_true", help="print it as JSON")
    look.set_defaults(command=_data_show)

    init = commands.add_parser("init", help="write a commented study.toml", description="Write a commented study.toml.")
    init.add_argument("file", type=Path, nargs="?", default=Path("study.toml"))
    init.add_argument("--force", action="store_true", help="replace the file if it exists")
    init.set_defaults(command=_init)
    return top


def _run(arguments: argparse.Namespace) -> None:
    from fedtuner import spec
    from fedtuner.driver import run
    from fedtuner.tuning import untuned

    name, table = spec.read(arguments.study)
    if Path(arguments.study).is_file():
        sys.path.insert(0, str(Path(arguments.study).resolve().parent))  # for a problem beside its study.toml
    table = spec.override(table, arguments.set)
    for key in ("seed", "engine"):
        if getattr(arguments, key) is not None:
            table[key] = getattr(arguments, key)
    parsed = spec.parse(table)
    store = arguments.store or Path("runs") / f"{name}-seed{parsed.seed}"
    study = parsed.study(store, arguments.workers)
    if not arguments.json and not arguments.quiet:
        print(_headline(study.describe(), study.schedule.arms), file=sys.stderr)
    progress = not arguments.quiet
    run(study, progress)
    study.evaluate("test")
    if arguments.baseline:
        untuned(study, progress).evaluate("test")
    _print_study(store, arguments.json)


def _show(arguments: argparse.Namespace) -> None:
    _print_study(arguments.store, arguments.json)


def _export(arguments: argparse.Namespace) -> None:
    from fedtuner import report, store

    spec, states, _, result = store.read(arguments.store)
    if result is None:
        raise SpecError(f"{arguments.store} is not finished, so there is no winner: 'fedtuner run' continues it")
    if result["arm"] not in states:
        raise StoreError(
            f"{arguments.store} has lost the winner, arm {result['arm']}: 'fedtuner run' computes it again"
        )
    to = arguments.to or arguments.store / "export"
    for file in report.export(spec, states[result["arm"]], result, to):
        print(file)


def _list(arguments: argparse.Namespace) -> None:
    from fedtuner import report

    listing = report.listing()
    chosen = {arguments.what: listing[arguments.what]} if arguments.what else listing
    if arguments.json:
        print(json.dumps(chosen, indent=2))
    else:
        report.print_listing(chosen)


def _data_get(arguments: argparse.Namespace) -> None:
    from fedtuner.data import show, sources

    for name in arguments.names:
        sources.named(name)  # a wrong name is told before the first long download
    for name in arguments.names:
        with show.telling(arguments.quiet) as tell:
            folder = sources.get(name, tell)
        print(f"{name} is in {folder}; look at it with: fedtuner data show {name}")


def _data_list(arguments: argparse.Namespace) -> None:
    from fedtuner.data import show

    listed = show.listing()
    if arguments.json:
        print(json.dumps(listed, indent=2))
    else:
        show.print_listing(listed)


def _data_show(arguments: argparse.Namespace) -> None:
    from fedtuner.data import show

    told = show.summary(show.load(arguments.name))
    if arguments.json:
        print(json.dumps(told, indent=2))
    else:
        show.print_summary(told)


def _init(arguments: argparse.Namespace) -> None:
    from fedtuner import spec

    if arguments.file.exists() and not arguments.force:
        raise SpecError(f"{arguments.file} exists: give another name, or --force to replace it")
    try:
        arguments.file.write_text(spec.template())
    except OSError as error:
        raise SpecError(f"cannot write {arguments.file}: {error.strerror}") from error
    print(f"wrote {arguments.file}; run it with: fedtuner run {arguments.file}")


def _headline(spec: dict[str, Any], arms: int) -> str:
    from fedtuner import report

    return report.headline(spec, arms)


def _print_study(store: Path, as_json: bool) -> None:
    from fedtuner import report

    summary = report.summary(store)
    if as_json:
        print(json.dumps(report.strict(summary), indent=2))
    else:
        report.print_summary(summary)


if __name__ == "__main__":
    sys.exit(main())
