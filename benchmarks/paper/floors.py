"""Print what the errors of a table's problems are to be read against: that of always guessing the commonest label.

The commonest label of the examples to train on, over all clients; and, as the personalized error's floor, of each
client's own. Both are tested on the clients' test data.

python benchmarks/paper/floors.py [mnist-writers-small shakespeare-small ...]
"""

from __future__ import annotations

import sys

import numpy as np

from fedtuner.data import labels
from fedtuner.experiments.tables import markdown
from fedtuner.federation import Simulation
from fedtuner.spec import load_problem

SETS = ("mnist-writers", "mnist-writers-iid", "cifar10", "shakespeare-iid", "shakespeare")


def floors(problem: Simulation) -> tuple[float, float, int]:
    """Return the error of guessing everybody's commonest label, that of guessing one's own, and the test examples."""
    held = [(np.asarray(labels(c.train)), np.asarray(labels(c.test))) for c in problem.clients]
    common = np.bincount(np.concatenate([train for train, _ in held])).argmax()
    total = sum(len(test) for _, test in held)
    everybody = sum(int((test != common).sum()) for _, test in held)
    own = sum(int((test != np.bincount(train).argmax()).sum()) for train, test in held)
    return everybody / total, own / total, total


def main() -> None:
    rows = []
    for name in sys.argv[1:] or [f"{name}-small" for name in SETS]:
        everybody, own, total = floors(load_problem(name))
        rows.append([name, str(total), f"{100 * everybody:.1f} %", f"{100 * own:.1f} %"])
    head = ["problem", "test examples", "commonest label of all", "commonest label of the client"]
    print(markdown(head, rows), end="")


if __name__ == "__main__":
    main()
