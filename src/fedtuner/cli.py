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
    run.add_argument("--device", help="where models are trained: cpu (default), cuda, cuda:1 ...")
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
        "export",
        help="write the model and the configuration, or an Optuna study",
        description="Write the tuned model and configuration to a folder, or the arms to an Optuna storage.",
    )
    export.add_argument("store", type=Path, nargs="?", help="the study's folder")
    export.add_argument(
        "--to",
        nargs="+",
        default=[],
        metavar="FOLDER",
        help="where to (default: STORE/export); or: --to optuna URL, such as sqlite:///studies.db or a journal file",
    )
    export.add_argument("--name", help="of the Optuna study (default: the folder's name)")
    export.set_defaults(command=_export)

    bench = commands.add_parser(
        "bench", help="run a suite of studies", description="Run the studies of a suite that have no result; compare."
    )
    bench.add_argument("suite", type=Path, help="a suite, such as benchmarks/paper/table1-small.toml")
    bench.add_argument("--out", type=Path, help="the file of results (default: results/NAME.jsonl beside the suite)")
    bench.add_argument("--workers", type=int, help="worker processes (default: one per core)")
    bench.add_argument("--only", metavar="PATTERN", help="only studies such as '*SHA*seed0', or with it in the name")
    bench.add_argument("--dry-run", action="store_true", help="only say how long it will take, from a short trial")
    bench.add_argument("--json", action="store_true", help="print it as JSON")
    bench.add_argument("--quiet", action="store_true", help="no progress")
    bench.set_defaults(command=_bench)

    compare = commands.add_parser(
        "compare", help="compare runs over seeds", description="Compare runs: intervals, paired differences, tests."
    )
    compare.add_argument("runs", type=Path, nargs="+", help="suites (.toml), results (.jsonl), folders of studies")
    compare.add_argument("--format", choices=("text", "markdown", "latex", "json"), default="text")
    compare.add_argument("--metric", choices=("target", "global", "personalized"), default="target", help="which error")
    compare.add_argument("--along", metavar="AXIS", help="the axis whose values are compared in pairs with its first")
    compare.add_argument("--columns", metavar="AXIS", help="the axis to have as columns; '' for a line per study")
    compare.set_defaults(command=_compare)

    figures = commands.add_parser(
        "figures", help="plot the results of suites", description="Plot what suites found: PNG, SVG and the data."
    )
    figures.add_argument("results", type=Path, nargs="+", help="suites (.toml) or their results (.jsonl)")
    figures.add_argument("--to", type=Path, help="the folder of the figures (default: NAME beside NAME.jsonl)")
    figures.set_defaults(command=_figures)

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

    theory = commands.add_parser(
        "theory",
        help="check the theorem on FedEx",
        description="Tune the step size of online gradient descent as the paper's theorem has it: the regret of FedEx "
        "and of other tuners, beside the bound.",
    )
    theory.add_argument("--tau", type=int, default=100_000, help="tasks of the longest run (default: 100000)")
    theory.add_argument("--seeds", type=int, default=10, help="seeds, 0 to N - 1 (default: 10)")
    theory.add_argument("--m", type=int, default=9, help="losses of a task (default: 9)")
    theory.add_argument("--k", type=int, help="steps to choose from (default: the theorem's number, growing with tau)")
    theory.add_argument("--out", type=Path, metavar="DIR", help="write theory.json and the picture there")
    theory.add_argument("--json", action="store_true", help="print the result as JSON")
    theory.add_argument("--quiet", action="store_true", help="no progress")
    theory.set_defaults(command=_theory)

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
    for key in ("seed", "engine", "device"):
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

    optuna, to = arguments.to[:1] == ["optuna"], arguments.to
    if arguments.store is None and to:  # `export --to FOLDER STORE`: the last word is the store
        to, arguments.store = to[:-1], Path(to[-1])
    if arguments.store is None or len(to) > 1 + optuna or (optuna and len(to) < 2):
        raise SpecError("give a store and where to: fedtuner export STORE [--to FOLDER], or STORE --to optuna URL")
    if optuna:
        from fedtuner.export_optuna import export

        name, trials = export(arguments.store, to[1], arguments.name)
        print(f"study {name!r} with {trials} trials is in {to[1]}; look at it with: optuna-dashboard {to[1]}")
        return
    spec, states, _, result = store.read(arguments.store)
    if result is None:
        raise SpecError(f"{arguments.store} is not finished, so there is no winner: 'fedtuner run' continues it")
    if result["arm"] not in states:
        raise StoreError(
            f"{arguments.store} has lost the winner, arm {result['arm']}: 'fedtuner run' computes it again"
        )
    folder = Path(to[0]) if to else arguments.store / "export"
    for file in report.export(spec, states[result["arm"]], result, folder):
        print(file)


def _bench(arguments: argparse.Namespace) -> int:
    from fedtuner.experiments import bench, plan, suite

    read = suite.read(arguments.suite)
    sys.path.insert(0, str(arguments.suite.resolve().parent))  # for a problem beside its suite
    out = arguments.out or bench.default_out(arguments.suite)
    if arguments.dry_run:
        plan.print_estimates(plan.estimate(read, out, arguments.workers, arguments.only), arguments.json)
        return 0
    quiet = arguments.quiet or arguments.json
    done = bench.run(read, out, arguments.workers, arguments.only, None if quiet else sys.stderr)
    return bench.print_report(done, out, arguments.json)


def _compare(arguments: argparse.Namespace) -> None:
    from fedtuner.experiments import bench, compare, tabulate

    runs = [bench.default_out(run) if run.suffix == ".toml" else run for run in arguments.runs]
    made = compare.compare(runs, arguments.metric, arguments.along, arguments.columns)
    tabulate.show(made, arguments.format)


def _figures(arguments: argparse.Namespace) -> None:
    from fedtuner.experiments import bench, figures, suite

    for given in arguments.results:
        of_suite = given.suffix == ".toml"
        results, read = (bench.default_out(given), suite.read(given).describe()) if of_suite else (given, None)
        for file in figures.draw(results, arguments.to or results.with_suffix(""), read):
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


def _theory(arguments: argparse.Namespace) -> None:
    from fedtuner.data.show import telling
    from fedtuner.theory import report as theory_report
    from fedtuner.theory.theorem import Setting

    what = Setting(m=arguments.m, k=arguments.k), arguments.tau, arguments.seeds
    told = theory_report.kept(arguments.out, *what) if arguments.out else None
    if told is None:
        try:
            with telling(arguments.quiet) as tell:
                told = theory_report.record(*what, lambda done, total: tell("tasks", done, total))
        except KeyboardInterrupt:
            raise Interrupted("stopped; nothing was written, and the same command starts again") from None
    if arguments.json:
        print(json.dumps(told, indent=2))
    else:
        print(theory_report.text(told))
    if arguments.out:
        files = theory_report.write(told, arguments.out)
        print(f"wrote {', '.join(map(str, files))}", file=sys.stderr)
        if len(files) == 1:
            print("no picture without matplotlib: pip install 'fedtuner[plot]', then again", file=sys.stderr)
    elif not arguments.json:
        print("\nFor the picture and the numbers as files: --out DIR")


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
