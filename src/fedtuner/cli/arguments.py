"""The arguments of all commands."""

from __future__ import annotations

import argparse
import difflib
from pathlib import Path
from typing import Any, NoReturn

from fedtuner import __version__
from fedtuner.cli import data, experiments, pages, studies
from fedtuner.cli.pages import KINDS
from fedtuner.core.place import Place
from fedtuner.core.place import place as place_of
from fedtuner.errors import FedtunerError, brief, one_line


class Parser(argparse.ArgumentParser):
    """A parser whose errors are its own command's, in one line."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Refuse arguments that are not known here: the parser of all commands would name itself."""
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            named = [option for action in self._actions for option in action.option_strings]
            near = difflib.get_close_matches(unknown[0].partition("=")[0], named, 1)
            self.error(f"unrecognized arguments: {' '.join(unknown)}" + (f"; did you mean {near[0]}?" if near else ""))
        return found, unknown

    def error(self, message: str) -> NoReturn:
        """Print the message, and exit with code 2."""
        said = one_line(message.replace("\n", "\\n"), 300)
        self.exit(2, f"{self.prog}: error: {said} ({self.prog} --help shows its arguments)\n")


def whole(text: str) -> int:
    """Return a whole number."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{brief(text)}, but must be a whole number") from None


def place(text: str) -> Path:
    """Return the path of a file or folder."""
    if not text.strip() or "\0" in text:
        raise argparse.ArgumentTypeError(f"{brief(text)}, but must be the name of a file or folder")
    return Path(text)


def store(text: str) -> Place:
    """Return a folder's path or an object store's URL."""
    try:
        return place_of("the store", text if "://" in text else place(text))
    except FedtunerError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    top = Parser(prog="fedtuner", description="Tune the hyperparameters of federated learning.")
    top.add_argument("--version", action="version", version=f"fedtuner {__version__}")
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    _on_studies(commands)
    _on_pages(commands)
    _on_suites(commands)
    _on_what_there_is(commands)
    _on_data(commands)
    _on_theory(commands)
    return top


def _on_studies(commands: Any) -> None:
    run = commands.add_parser("run", help="run a study, or continue one", description="Run a study, or continue one.")
    run.add_argument("study", help="a study.toml, or a preset (fedtuner list presets)")
    run.add_argument(
        "--store", type=store, help="the study's folder, or s3://bucket/name (default: runs/NAME-METHOD-seedN)"
    )
    run.add_argument("--budget", type=whole, help="rounds, in place of [schedule] and [fedex]: all is chosen")
    run.add_argument("--workers", type=whole, help="worker processes (default: one per core)")
    run.add_argument("--executor", choices=("processes", "ray"), help="where rounds are computed (default: processes)")
    run.add_argument("--address", help="of the Ray cluster: auto (this machine's), or HOST:PORT of its head")
    run.add_argument("--seed", type=whole, help="the seed, in place of the file's")
    run.add_argument("--engine", choices=("auto", "sequential", "batched"), help="how clients' work is done")
    run.add_argument("--device", help="where models are trained: cpu (default), cuda, cuda:1 ...")
    run.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="such as schedule.budget=200")
    run.add_argument(
        "--start-from", metavar="FOLDER", help="a study or an export: its best configurations are the first arms"
    )
    run.add_argument("--proxy", metavar="PROBLEM", help="tune on this problem, and train what is found on the study's")
    run.add_argument("--timeout", type=float, metavar="SECONDS", help="end it then, with the best arm so far")
    run.add_argument("--patience", type=whole, metavar="ROUNDS", help="end it if no score improves for ROUNDS rounds")
    run.add_argument("--extend", type=whole, metavar="BUDGET", help="go on after the end until BUDGET rounds are used")
    run.add_argument("--resume-winner", type=whole, metavar="ROUNDS", help="then train the winner on for ROUNDS rounds")
    run.add_argument("--retrain", type=whole, metavar="ROUNDS", help="then train its configuration from new weights")
    run.add_argument("--baseline", action="store_true", help="also train your own settings, to compare with")
    run.add_argument(
        "--evaluate-sample",
        type=whole,
        metavar="N",
        help="evaluate on N clients, drawn at random; 0: on all (default: all, but 10,000 of more than 100,000)",
    )
    run.add_argument(
        "--dry-run", action="store_true", help="only say what it will do and take: arms, rounds, bytes, time"
    )
    run.add_argument("--json", action="store_true", help="print the result as JSON")
    run.add_argument("--quiet", action="store_true", help="no progress")
    run.set_defaults(command=studies.run)

    show = commands.add_parser("show", help="show a study", description="Show a study, finished or not.")
    show.add_argument("store", type=store, help="the study's folder or URL")
    show.add_argument("--json", action="store_true", help="print it as JSON")
    show.set_defaults(command=studies.show)

    export = commands.add_parser(
        "export",
        help="write the model and the configuration, or an Optuna study",
        description="Write the tuned model and configuration to a folder, or the arms to an Optuna storage.",
    )
    export.add_argument("store", type=store, nargs="?", help="the study's folder or URL")
    export.add_argument(
        "--to",
        nargs="+",
        default=[],
        metavar="FOLDER",
        help="where to (default: STORE/export); or: --to optuna URL, such as sqlite:///studies.db or a journal file",
    )
    export.add_argument("--name", help="of the Optuna study (default: the folder's name)")
    export.add_argument("--force", action="store_true", help="replace the files of another export")
    export.set_defaults(command=studies.export)

    diff = commands.add_parser(
        "diff",
        help="say whether two studies are equal",
        description="Say whether two studies are equal to the bit, and where they first differ (exit code 1).",
    )
    diff.add_argument("first", type=store, help="a study's folder or URL")
    diff.add_argument("second", type=store, help="another study's folder or URL")
    diff.add_argument("--json", action="store_true", help="print it as JSON")
    diff.set_defaults(command=studies.diff)

    init = commands.add_parser("init", help="write a commented study.toml", description="Write a commented study.toml.")
    init.add_argument("file", type=place, nargs="?", default=Path("study.toml"))
    init.add_argument("--force", action="store_true", help="replace the file if it exists")
    init.set_defaults(command=studies.init)


def _on_pages(commands: Any) -> None:
    report = commands.add_parser(
        "report", help="write a study as a page", description="Write one or several studies as one page: a file."
    )
    report.add_argument("stores", type=store, nargs="+", metavar="store", help="the study's folder")
    report.add_argument("-o", "--out", type=place, metavar="FILE", help="the page (default: STORE/report.html)")
    report.set_defaults(command=pages.report)

    watch = commands.add_parser(
        "watch", help="show a study as it runs", description="Serve a study's page to this machine while it runs."
    )
    watch.add_argument("store", type=store, help="the study's folder or URL")
    watch.add_argument("--port", type=whole, default=0, help="where it listens on 127.0.0.1 (default: any free one)")
    watch.set_defaults(command=pages.watch)

    plot = commands.add_parser(
        "plot", help="draw a study for a paper", description="Draw one view of a study, sized for a two-column paper."
    )
    plot.add_argument("kind", choices=KINDS, metavar="KIND", help=", ".join(KINDS))
    plot.add_argument("stores", type=store, nargs="+", metavar="store", help="the study's folder; several to compare")
    plot.add_argument("-o", "--out", type=place, required=True, metavar="FILE", help="a name in .svg, .png or .pdf")
    plot.add_argument("--arm", type=whole, help="the arm to draw (default: the winner)")
    plot.set_defaults(command=pages.plot)


def _on_suites(commands: Any) -> None:
    bench = commands.add_parser(
        "bench", help="run a suite of studies", description="Run the studies of a suite that have no result; compare."
    )
    bench.add_argument("suite", type=place, help="a suite, such as benchmarks/paper/table1-small.toml")
    bench.add_argument("--out", type=place, help="the file of results (default: results/NAME.jsonl beside the suite)")
    bench.add_argument("--workers", type=whole, help="worker processes (default: one per core)")
    bench.add_argument("--only", metavar="PATTERN", help="only studies such as '*SHA*seed0', or with it in the name")
    bench.add_argument("--dry-run", action="store_true", help="only say how long it will take, from a short trial")
    bench.add_argument("--json", action="store_true", help="print it as JSON")
    bench.add_argument("--quiet", action="store_true", help="no progress")
    bench.set_defaults(command=experiments.bench)

    compare = commands.add_parser(
        "compare", help="compare runs over seeds", description="Compare runs: intervals, paired differences, tests."
    )
    compare.add_argument("runs", type=store, nargs="+", help="suites (.toml), results (.jsonl), folders of studies")
    compare.add_argument("--format", choices=("text", "markdown", "latex", "json"), default="text")
    compare.add_argument("--metric", choices=("target", "global", "personalized"), default="target", help="which error")
    compare.add_argument("--along", metavar="AXIS", help="the axis whose values are compared in pairs with its first")
    compare.add_argument("--columns", metavar="AXIS", help="the axis to have as columns; '' for a line per study")
    compare.set_defaults(command=experiments.compare)

    figures = commands.add_parser(
        "figures", help="plot the results of suites", description="Plot what suites found: PNG, SVG and the data."
    )
    figures.add_argument("results", type=place, nargs="+", help="suites (.toml) or their results (.jsonl)")
    figures.add_argument("--to", type=place, help="the folder of the figures (default: NAME beside NAME.jsonl)")
    figures.set_defaults(command=experiments.figures)


def _on_what_there_is(commands: Any) -> None:
    kinds = ("methods", "optimisers", "schedules", "tuners", "presets", "problems")
    lists = commands.add_parser("list", help="list methods, tuners, problems", description="List what there is.")
    lists.add_argument("what", choices=kinds, nargs="?", help="only these")
    lists.add_argument("--json", action="store_true", help="print it as JSON")
    lists.set_defaults(command=studies.list_all)


def _on_data(commands: Any) -> None:
    sets = commands.add_parser("data", help="get, list and show data sets", description="Get, list and show data sets.")
    what = sets.add_subparsers(required=True, metavar="WHAT")
    get = what.add_parser("get", help="download and convert", description="Download data sets and convert them.")
    get.add_argument("names", nargs="+", metavar="NAME", help="femnist, shakespeare or cifar10")
    get.add_argument("--quiet", action="store_true", help="no progress")
    get.set_defaults(command=data.get)
    known = what.add_parser("list", help="which there are", description="List the data sets and where they are.")
    known.add_argument("--json", action="store_true", help="print it as JSON")
    known.set_defaults(command=data.list_all)
    look = what.add_parser("show", help="how one is spread over its clients", description="Show a problem's clients.")
    look.add_argument("name", help="a data set, a problem (fedtuner list problems), or package.module:function")
    look.add_argument("--json", action="store_true", help="print it as JSON")
    look.set_defaults(command=data.show)


def _on_theory(commands: Any) -> None:
    theory = commands.add_parser(
        "theory",
        help="check the theorem on FedEx",
        description="Tune the step size of online gradient descent as the paper's theorem has it: the regret of FedEx "
        "and of other tuners, beside the bound.",
    )
    theory.add_argument("--tau", type=whole, default=100_000, help="tasks of the longest run (default: 100000)")
    theory.add_argument("--seeds", type=whole, default=10, help="seeds, 0 to N - 1 (default: 10)")
    theory.add_argument("--m", type=whole, default=9, help="losses of a task (default: 9)")
    theory.add_argument(
        "--k", type=whole, help="steps to choose from (default: the theorem's number, growing with tau)"
    )
    theory.add_argument("--out", type=place, metavar="DIR", help="write theory.json and the picture there")
    theory.add_argument("--json", action="store_true", help="print the result as JSON")
    theory.add_argument("--quiet", action="store_true", help="no progress")
    theory.set_defaults(command=experiments.theory)
