"""Ways to spend the same rounds, side by side: a line of results per problem, budget, way, target and seed.

python benchmarks/rounds/run.py --problems digits writers100 --budgets 100 200 --seeds 100-103
python benchmarks/rounds/run.py --show
python benchmarks/rounds/run.py --ways auto "auto, own cohorts" --out benchmarks/rounds/results/cohorts.jsonl

Studies that have a line already are not run again, so the same command continues after an interruption. Studies that
train the same arms compute their rounds once (shared.py); only the others have a processor time of their own in their
lines. Seeds from 100 on are for choosing constants, 0 to 99 for reporting.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import signal
import time
from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import shared
from table import behind, ratios, table
from ways import WAYS

from fedtuner import Simulation
from problems import PROBLEMS

HERE = Path(__file__).parent
KEYS = ("problem", "budget", "way", "target", "seed")
FIVE = ["untuned", "default+", "SHA + FedEx, T/10", "SHA, 0.64 T", "auto"]


def line(name: str, budget: int, way: str, target: str, seed: int) -> dict[str, Any]:
    """Run a study and return its line."""
    problem, begun = _problem(name), time.process_time()
    study = WAYS[way].run(problem, budget, target, seed)
    return {
        "problem": name, "budget": budget, "way": way, "target": target, "seed": seed, **study.evaluate("test"),
        "rounds": study.rounds_used, "examples": study.examples_processed, "cpu": round(time.process_time() - begun, 1),
        "arm": study.best.arm, "client": dict(study.best.client), "fine_tune": study.best.fine_tune,
    }  # fmt: skip


def together(scratch: Path | None, keys: Sequence[shared.Key]) -> list[dict[str, Any]]:
    """Run studies that train the same arms, or one that has its own, and return their lines."""
    name, _, way, *_ = keys[0]
    return list(shared.lines(_problem(name), keys, scratch)) if WAYS[way].arms else [line(*key) for key in keys]


def family(key: shared.Key) -> Hashable:
    """Return what studies that train the same arms have in common."""
    name, _, way, _, seed = key
    return (name, seed, WAYS[way].arms) if WAYS[way].arms else key


@lru_cache(maxsize=2)
def _problem(name: str) -> Simulation:
    return PROBLEMS[name]()


def seeds(text: str) -> list[int]:
    """Return the seeds that a text such as 0-9 stands for."""
    low, _, high = text.partition("-")
    return list(range(int(low), int(high or low) + 1))


def read(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a file of results."""
    return [json.loads(text) for text in path.read_text().splitlines()] if path.exists() else []


def parser(text: str | None, ways: Sequence[str], out: Path) -> argparse.ArgumentParser:
    """Return the parser of a benchmark's arguments."""
    made = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--problems", nargs="+", default=["digits"], choices=list(PROBLEMS))
    made.add_argument("--budgets", nargs="+", type=int, default=[100])
    made.add_argument("--ways", nargs="+", default=list(ways), choices=list({**WAYS, **dict.fromkeys(ways)}))
    made.add_argument("--targets", nargs="+", default=["personalized", "global"])
    common(made, out)
    return made


def common(made: argparse.ArgumentParser, out: Path) -> None:
    """Add the arguments that all benchmarks of this folder have."""
    made.add_argument("--seeds", type=seeds, default=seeds("100-102"))
    made.add_argument("--out", type=Path, default=out)
    made.add_argument("--jobs", type=int, default=multiprocessing.cpu_count(), help="processes")
    made.add_argument("--show", action="store_true", help="only show what there is")


def add(
    asked: argparse.Namespace, make: Callable[[Sequence[Any]], list[dict[str, Any]]], groups: Sequence[Sequence[Any]],
    keys: Sequence[str],
) -> None:  # fmt: skip
    """Run what is asked for and has no line yet, in some processes, and add its lines as they come, group by group."""
    asked.out.parent.mkdir(exist_ok=True, parents=True)
    known = {tuple(r[k] for k in keys) for r in read(asked.out)}
    left = [[key for key in group if key not in known] for group in groups if not asked.show]
    left = [group for group in left if group]
    if not left:
        return
    done, of = 0, sum(map(len, left))
    context = multiprocessing.get_context("spawn")
    with context.Pool(asked.jobs, initializer=signal.signal, initargs=(signal.SIGINT, signal.SIG_IGN)) as pool:
        try:
            for made in pool.imap_unordered(make, left):
                with asked.out.open("a") as file:
                    file.writelines(json.dumps(r) + "\n" for r in made)
                for r in made:
                    done += 1
                    print(f"{done}/{of}", *(r.get(k, "") for k in (*keys, "global", "personalized", "cpu")), flush=True)
        except KeyboardInterrupt:
            raise SystemExit("stopped; the same command continues") from None


def one(make: Callable[..., dict[str, Any]], keys: Sequence[tuple[Any, ...]]) -> list[dict[str, Any]]:
    """Return the lines of studies that share nothing."""
    return [make(*key) for key in keys]


def main() -> None:
    """Run what is asked for and show it."""
    asked = parser(__doc__, FIVE, HERE / "results" / "rounds.jsonl").parse_args()
    todo = [
        (name, budget, way, target, seed)
        for name in asked.problems for seed in asked.seeds for budget in asked.budgets for way in asked.ways
        for target in (("personalized",) if WAYS[way].both else asked.targets)
    ]  # fmt: skip
    groups: dict[Hashable, list[shared.Key]] = {}
    for key in todo:
        groups.setdefault(family(key), []).append(key)
    add(asked, partial(together, asked.out.with_suffix(".scratch")), list(groups.values()), KEYS)
    lines = read(asked.out)
    print(table(lines))
    problems = {
        name: behind([r for r in lines if r["problem"] == name]) for name in sorted({r["problem"] for r in lines})
    }
    for metric, (worse, of) in behind(lines).items():
        ahead = (f"{way} {ratio:.2f} ({n})" for way, (ratio, n) in ratios(lines, metric).items())
        print(f"auto's {metric} error / that of (mean over problems and budgets):", ", ".join(ahead))
        print(f"auto is more than 0.5 points worse than untuned in {worse} of {of} studies ({metric}):")
        print("   ", ", ".join(f"{name} {found[metric][0]} of {found[metric][1]}" for name, found in problems.items()))


if __name__ == "__main__":
    main()
