"""Commands on studies: run, show, export, diff, and the lists of what a study can name."""

from __future__ import annotations

import json
import re
import sys
import warnings
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fedtuner.cli.output import print_found, printing, tell
from fedtuner.core.place import Place, place
from fedtuner.errors import FedtunerWarning, SpecError


def run(arguments: Namespace) -> None:
    """Run a study, or continue one."""
    from fedtuner import checks
    from fedtuner.core.schedule import outline
    from fedtuner.report.forecast import print_forecast
    from fedtuner.report.show import headline
    from fedtuner.run import sampling, spec
    from fedtuner.run.result import load
    from fedtuner.run.store import at
    from fedtuner.run.tuning import check_for_real, for_real, untuned

    name, table = spec.read(arguments.study)
    table = spec.override(table, arguments.set)
    file = Path(arguments.study)
    find_modules(file.resolve().parent if file.is_file() else Path.cwd(), table)
    for key in ("seed", "engine", "device", "start_from", "proxy", "patience"):
        if getattr(arguments, key) is not None:
            table[key] = getattr(arguments, key)
    if arguments.budget is not None:
        table = {k: v for k, v in table.items() if k not in ("schedule", "fedex", "tuner")} | {
            "budget": arguments.budget
        }
    if arguments.executor is not None or arguments.address is not None:
        table["executor"] = _executor(table.get("executor"), arguments.executor, arguments.address)
    parsed = spec.parse(table)
    said = "" if arguments.budget is None else f"-{arguments.budget}-rounds"
    store = arguments.store or Path("runs") / f"{name}-{parsed.method.rpartition(':')[2]}{said}-seed{parsed.seed}"
    for option in ("extend", "resume_winner", "retrain"):  # refused before the work, not after it
        if getattr(arguments, option) is not None:
            checks.whole("--" + option.replace("_", "-"), getattr(arguments, option))
    proxy = None if parsed.proxy is None else parsed.load(parsed.proxy)
    study = parsed.study(store / "proxy" if proxy else store, arguments.workers, proxy)
    real = None if proxy is None else check_for_real(study, parsed.load(parsed.problem))
    if arguments.evaluate_sample:
        sampling.checked(study.problem, arguments.evaluate_sample)
    if not arguments.json and not arguments.quiet:
        tell(headline(study.describe(), outline(study.schedule).proposed))
    if arguments.dry_run:
        parts = [(study, store if real is None else store / "proxy"), *([] if real is None else [(real, store)])]
        ahead = [(one.forecast(), load(kept).rounds_used if at(kept).exists() else 0) for one, kept in parts]
        with printing():
            if arguments.json:
                first, *then = [{**asdict(found), "done": done} for found, done in ahead]
                print(json.dumps({**first, **({"then": then[0]} if then else {})}, indent=2))
                return
            print_forecast(*ahead[0])
            if real is not None:
                print(f"Then the configuration that is found is trained on {real.problem.name}:")
                print_forecast(*ahead[1])
            if arguments.baseline:
                print(f"--baseline adds {study.schedule.budget:,} rounds of the untuned default")
        return
    progress = not arguments.quiet
    study.run(progress, timeout=arguments.timeout)
    if real is not None:
        study = for_real(study, real.problem, store).run(progress, "training")
    if arguments.extend is not None:
        study.extend(arguments.extend, progress)
    if arguments.resume_winner is not None:
        study.resume_winner(arguments.resume_winner, progress)
    sample = (
        sampling.usual_sample(study.problem) if arguments.evaluate_sample is None else arguments.evaluate_sample or None
    )
    how: dict[str, Any] = {"sample": sample, "progress": progress}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*no client has", FedtunerWarning)  # what is printed says it, once
        study.evaluate("test", **how)
        if arguments.retrain is not None:
            study.retrain(arguments.retrain, progress).evaluate("test", **how)
        if arguments.baseline:
            default = untuned(study, progress)
            default.evaluate("test", **how)
            default.evaluate("test", rounds=min(study.schedule.longest, study.schedule.budget), **how)
            for each in (study, default):  # to say whether tuning has paid, without a look at the test data
                each.evaluate("valid", **how)
    _print_study(store, arguments.json, kept=f"fedtuner show {store}", arms=False)


def _executor(table: Any, kind: str | None, address: str | None) -> dict[str, Any]:
    """Return a file's ``executor`` with what the command says in place of it."""
    said = {"kind": kind, "address": address}
    given = dict(table) if isinstance(table, Mapping) else {} if table is None else {"kind": table}
    made = given | {key: value for key, value in said.items() if value is not None}
    if address is not None and made.get("kind", "ray") != "ray":
        raise SpecError(f"--address {address}, but processes run on this machine: give --executor ray")
    return made


def show(arguments: Namespace) -> None:
    """Show a study, finished or not."""
    _print_study(arguments.store, arguments.json)


def export(arguments: Namespace) -> None:
    """Write the model and the configuration, or an Optuna study."""
    from fedtuner import checks
    from fedtuner.run.result import load

    optuna, to = arguments.to[:1] == ["optuna"], arguments.to
    if arguments.store is None and to:  # `export --to FOLDER STORE`: the last word is the store
        to, arguments.store = to[:-1], place("STORE", to[-1])
    if arguments.store is None or len(to) > 1 + optuna or (optuna and len(to) < 2):
        raise SpecError("give a store and where to: fedtuner export STORE [--to FOLDER], or STORE --to optuna URL")
    if optuna:
        from fedtuner.report import to_optuna

        name, trials = to_optuna.export(arguments.store, to[1], arguments.name)
        with printing(to[1]):
            print(f"study {name!r} with {trials} trials is in {to[1]}; look at it with: optuna-dashboard {to[1]}")
        return
    folder = checks.path("--to", to[0], "a folder") if to else inside(arguments.store, "export")
    written = load(arguments.store).export(folder, arguments.force)
    with printing(str(folder)):
        print(*written, sep="\n")


def diff(arguments: Namespace) -> int:
    """Say whether two studies are equal to the bit, and where they first differ."""
    from fedtuner.report import diff, journal_of

    first, second = journal_of(arguments.first), journal_of(arguments.second)
    found, names = diff.differences(first, second), (str(arguments.first), str(arguments.second))
    with printing():
        if arguments.json:
            print(json.dumps({"first": names[0], "second": names[1], **diff.as_table(found)}, indent=2))
        elif found:
            others = "; ".join(diff.versions(first, second))
            print(f"{names[0]} and {names[1]} differ" + (f" (other versions: {others})" if others else ""))
            print("\n".join(f"  {line}" for line in diff.as_lines(found, names)))
        else:
            print(f"{names[0]} and {names[1]} are equal: {len(first.arms)} arms, {first.rounds_used} rounds")
    return 1 if found else 0


def list_all(arguments: Namespace) -> None:
    """List methods, server optimisers, tuners, presets and problems."""
    from fedtuner.report import listing

    found = listing.listing()
    chosen = {arguments.what: found[arguments.what]} if arguments.what else found
    print_found(chosen, arguments.json, listing.print_listing)


def init(arguments: Namespace) -> None:
    """Write a commented study.toml."""
    from fedtuner.run import spec

    if arguments.file.exists() and not arguments.force:
        raise SpecError(f"{arguments.file} exists: give another name, or --force to replace it")
    try:
        arguments.file.write_text(spec.template())
    except OSError as error:
        raise SpecError(f"cannot write {arguments.file}: {error.strerror}") from error
    with printing(str(arguments.file)):
        print(f"wrote {arguments.file}; run it with: fedtuner run {arguments.file}")


def inside(store: Place, name: str) -> Path:
    """Return the file or folder in a study's folder; of a study in an object store, one here with the study's name."""
    return store / name if isinstance(store, Path) else Path(f"{store.name}-{name}")


def find_modules(folder: Path, table: Mapping[str, Any]) -> None:
    """Let modules in a folder be named by ``package.module:name``, if a table names any.

    Otherwise its files stay unseen: one that is called like an installed package would be imported in place of it.
    """
    if str(folder) not in sys.path and _names_modules(table):
        sys.path.insert(0, str(folder))


def _names_modules(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(map(_names_modules, value.values()))
    if isinstance(value, list):
        return any(map(_names_modules, value))
    return isinstance(value, str) and re.fullmatch(r"[\w.]+:[\w.]+", value) is not None


def _print_study(store: Place, as_json: bool, kept: str = "", arms: bool = True) -> None:
    from fedtuner import report
    from fedtuner.report.show import print_summary, without_examples

    summary = report.summary(store)
    with printing(kept):
        if as_json:
            print(json.dumps(report.strict(summary), indent=2))
            for line in without_examples(summary["evaluations"]):
                tell(f"fedtuner: {line}")
        else:
            print_summary(summary, arms)
