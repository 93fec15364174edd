"""Commands on suites of studies, and on the theorem."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from fedtuner.cli.output import printing, tell
from fedtuner.cli.studies import find_modules
from fedtuner.errors import Interrupted, SpecError

if TYPE_CHECKING:
    from fedtuner.experiments.suite import Suite


def bench(arguments: Namespace) -> int:
    """Run a suite of studies."""
    from fedtuner import checks
    from fedtuner.experiments import bench, plan
    from fedtuner.run.tuning import MOST_WORKERS

    if arguments.workers is not None:
        checks.whole("workers", arguments.workers, 1, MOST_WORKERS)
    read = _suite(arguments.suite)
    out = arguments.out or bench.default_out(arguments.suite)
    if arguments.dry_run:
        estimates = plan.estimate(read, out, arguments.workers, arguments.only)
        with printing():
            plan.print_estimates(estimates, arguments.json)
        return 0
    quiet = arguments.quiet or arguments.json
    done = bench.run(read, out, arguments.workers, arguments.only, None if quiet else sys.stderr)
    with printing(str(out)):
        bench.print_report(done, out, arguments.json)
    return bench.exit_code(done)


def _suite(file: Path) -> Suite:
    """Return the suite of a file; modules that it names may be beside it."""
    from fedtuner.experiments import suite
    from fedtuner.run import spec

    if file.is_file():
        find_modules(file.resolve().parent, spec.read(str(file))[1])
    return suite.read(file)


def compare(arguments: Namespace) -> None:
    """Compare runs over seeds."""
    from fedtuner.experiments import bench, compare, tabulate

    runs = [bench.default_out(run) if run.suffix == ".toml" else run for run in arguments.runs]
    made = compare.compare(runs, arguments.metric, arguments.along, arguments.columns)
    with printing():
        tabulate.show(made, arguments.format)


def figures(arguments: Namespace) -> None:
    """Plot the results of suites."""
    from fedtuner.experiments import bench, figures

    for given in arguments.results:
        of_suite = given.suffix == ".toml"
        results, read = (bench.default_out(given), _suite(given).describe()) if of_suite else (given, None)
        folder = arguments.to or results.with_suffix("")
        files = list(figures.draw(results, folder, read))
        with printing(str(folder)):
            print(*files, sep="\n")


def theory(arguments: Namespace) -> None:
    """Check the theorem on FedEx."""
    from fedtuner.data.show import telling
    from fedtuner.theory import report as theory_report
    from fedtuner.theory.theorem import Setting

    what = Setting(m=arguments.m, k=arguments.k), arguments.tau, arguments.seeds
    if arguments.out and arguments.out.exists() and not arguments.out.is_dir():  # before the long work
        raise SpecError(f"cannot write to {arguments.out}: it is a file, but --out must be a folder")
    found = theory_report.kept(arguments.out, *what) if arguments.out else None
    if found is None:
        try:
            with telling(arguments.quiet) as show:
                found = theory_report.record(*what, lambda done, total: show("tasks", done, total))
        except KeyboardInterrupt:
            raise Interrupted("stopped; nothing was written, and the same command starts again") from None
    files = theory_report.write(found, arguments.out) if arguments.out else []
    with printing(str(arguments.out or "")):
        if arguments.json:
            print(json.dumps(found, indent=2))
        else:
            print(theory_report.text(found))
            if not files:
                print("\nFor the picture and the numbers as files: --out DIR")
    if files:
        tell(f"wrote {', '.join(map(str, files))}")
    if len(files) == 1:
        tell("no picture without matplotlib: pip install 'fedtuner[plot]', then again")
