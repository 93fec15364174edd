"""The example apps as Flower runs them, on a grid in this process: what they print, before and after they are tuned.

python tests/flower/apps.py --nodes 10 --budget 100 --seeds 3
"""

from __future__ import annotations

import argparse
import importlib
import io
import re
import statistics
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any
from unittest import mock

from flwr.app import Context, RecordDict
from flwr.common.config import flatten_dict
from memory_grid import MemoryGrid

from fedtuner.flower import fleet
from fedtuner.run.spec import tomllib

EXAMPLES = Path(__file__).parents[2] / "examples"
APPS = ("flower-quickstart", "flower-sklearn", "flower-numpyclient")


def accuracy(folder: Path, nodes: int, seed: int = 0, **changed: Any) -> float:
    """Run the app of a folder with these changes of its run config, and return the accuracy that it prints last."""
    project = tomllib.loads((folder / "pyproject.toml").read_text())
    name, run_config = project["project"]["name"], flatten_dict(project["tool"]["flwr"]["app"]["config"])
    run_config = {key: value for key, value in {**run_config, **changed}.items() if key != "fedtuner.store"}
    server, client = _modules(folder, name)
    grid = MemoryGrid()
    for i in range(nodes):
        context = grid.contexts[grid.add(client.app, partition=i)]
        context.node_config["num-partitions"], context.run_config = nodes, dict(run_config)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(seed)
    printed = io.StringIO()
    with redirect_stdout(printed), mock.patch.object(fleet, "RealClock", return_value=grid.clock):
        server.app(grid, Context(1, 1, {}, RecordDict(), run_config))
    return float(re.findall(r"accuracy: (\S+)", printed.getvalue())[-1])


def _modules(folder: Path, name: str) -> list[Any]:
    """Return the app's modules, loaded anew: before and after have the same names."""
    for loaded in [key for key in sys.modules if key.partition(".")[0] == name]:
        del sys.modules[loaded]
    sys.path.insert(0, str(folder))
    try:
        return [importlib.import_module(f"{name}.{side}_app") for side in ("server", "client")]
    finally:
        sys.path.remove(str(folder))


def errors(app: str, nodes: int, budget: int, seed: int) -> tuple[float, float]:
    """Return an app's error in percent with so many rounds, untuned and tuned."""
    before = accuracy(EXAMPLES / app / "before", nodes, seed, **{"num-server-rounds": budget})
    settings = {"fedtuner.budget": budget, "fedtuner.cohort": nodes, "fedtuner.seed": seed}
    after = accuracy(EXAMPLES / app / "after", nodes, seed, **settings)
    return 100 * (1 - before), 100 * (1 - after)


def main() -> None:
    """Print a table of errors."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for option, usual in (("--nodes", 10), ("--budget", 100), ("--seeds", 3)):
        parser.add_argument(option, type=int, default=usual)
    parser.add_argument("--apps", nargs="+", default=APPS, choices=APPS)
    asked = parser.parse_args()
    print(f"| error in %, {asked.budget} rounds, seeds 0 to {asked.seeds - 1} | before | after |\n|---|---|---|")
    for app in asked.apps:
        pairs = [errors(app, asked.nodes, asked.budget, seed) for seed in range(asked.seeds)]
        cells = [f"{statistics.mean(of):.1f} ({', '.join(f'{e:.1f}' for e in of)})" for of in zip(*pairs, strict=True)]
        print(f"| {app} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
