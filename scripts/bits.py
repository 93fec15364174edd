"""Fingerprints of small studies: whatever changes inside the package, the same studies should give the same bits.

    python scripts/bits.py [--only NAME ...] [--out FILE]    run the studies, one line each
    python scripts/bits.py --compare BEFORE AFTER            compare two such outputs

``make bits`` does this for the tree as it is and for an earlier commit. Only the public interface of fedtuner is used,
so that the same script runs on both. A line has hashes of the winner's weights, of its theta, of all records, of what
else is known of the winner, and of its errors and losses on the test data; then the errors, to be read. Bits are those
of one machine with one set of libraries: lines of different machines need not be equal.

Secure sums are masked and rounded at random. Their lines have numbers instead of hashes (after a ``~``), which are
compared up to ``TOLERANCE``; they are chosen so that nothing depends on the order of equal scores.
"""

from __future__ import annotations

import argparse
import fnmatch
import logging
import os
import sys
import traceback
import warnings
from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

TOLERANCE = 2e-4  # of the numbers of secure studies, absolute; runs were seen to differ by up to 3e-5


# Studies whose bits changed on purpose since the commit that they are compared with, and why.
_TELESCOPE = "what clients of SCAFFOLD and FedDyn keep adds up to its mean over all clients"
CHANGED = dict.fromkeys(
    (
        "scaffold", "scaffold-option-1", "batched-scaffold", "fleet-scaffold-tries", "feddyn", "memory-in-files",
        "killed",
    ),
    _TELESCOPE,
)  # fmt: skip


def compare(before: Iterable[str], after: Iterable[str]) -> list[str]:
    """Return what differs between two outputs, as lines that begin with - or +; a study that failed always differs.

    Studies whose bits changed on purpose are left out.
    """
    old, new = (dict(line.split(maxsplit=1) for line in lines) for lines in (before, after))
    differing = []
    for name in {**old, **new}:
        if name in CHANGED and name in new and not new[name].startswith("FAILED"):
            continue
        if not _same(old.get(name, "FAILED"), new.get(name, "FAILED")):
            differing += [f"{sign} {name} {lines[name]}" for sign, lines in (("-", old), ("+", new)) if name in lines]
    return differing


def _same(one: str, other: str) -> bool:
    if one.startswith("~") and other.startswith("~"):
        values = [[part.partition("=") for part in line.split()[1:]] for line in (one, other)]
        names, texts = zip(*[([p[0] for p in line], [p[2].split(",") for p in line]) for line in values], strict=True)
        if names[0] != names[1] or [len(t) for t in texts[0]] != [len(t) for t in texts[1]]:
            return False
        return all(_close(x, y) for a, b in zip(*texts, strict=True) for x, y in zip(a, b, strict=True))
    return one == other and not one.startswith("FAILED")


def _close(one: str, other: str) -> bool:
    return one == other or abs(float(one) - float(other)) <= TOLERANCE  # NaN and infinity are equal as text


def run(names: Iterable[str], out: Any) -> int:
    """Run studies, write their lines, and return how many failed or are not as another should be."""
    from bits_studies import SAME, STUDIES

    lines: dict[str, str] = {}
    for name in names:
        try:
            lines[name] = STUDIES[name]()
        except Exception as error:
            traceback.print_exc()
            lines[name] = f"FAILED {type(error).__name__}: {' '.join(str(error).split())}"
        print(f"{name:22} {lines[name]}", file=out, flush=True)
    wrong = [name for name, line in lines.items() if line.startswith("FAILED")]
    for name, other in SAME.items():
        if name in lines and other in lines and lines[name] != lines[other]:
            print(f"{name} should have the same bits as {other}", file=sys.stderr)
            wrong.append(name)
    return len(wrong)


def main() -> int:
    """Run or compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="NAME", default=["*"], help="studies, also as patterns: 'fleet*'")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the lines there")
    parser.add_argument("--compare", nargs=2, type=Path, metavar=("BEFORE", "AFTER"), help="compare two outputs")
    parser.add_argument("--until-killed", nargs=3, metavar=("NAME", "ROUNDS", "STORE"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.compare:
        before, after = (path.read_text().splitlines() for path in given.compare)
        differing = compare(before, after) if before and after else ["there is nothing to compare"]
        names = ", ".join(CHANGED)
        print(
            "\n".join(differing or [f"the same bits, but for studies that changed on purpose ({names}): {_TELESCOPE}"])
        )
        return 1 if differing else 0
    with given.out.open("w") if given.out else nullcontext(sys.stdout) as out:
        from bits_studies import STUDIES, until_killed

        import fedtuner

        wanted, found = os.environ.get("PYTHONPATH", "").split(os.pathsep)[0], Path(fedtuner.__file__).resolve()
        if wanted and (Path(wanted) / "fedtuner").is_dir() and not found.is_relative_to(Path(wanted).resolve()):
            parser.error(f"fedtuner is to come from {wanted}, but comes from {found.parent}")
        for pattern in given.only:
            if not fnmatch.filter(STUDIES, pattern):
                parser.error(f"no study {pattern!r}: there are {', '.join(STUDIES)}")
        warnings.simplefilter("ignore")  # Optuna's and Flower's, about themselves
        logging.disable(logging.INFO)  # Flower's, about every round
        if given.until_killed:
            name, rounds, store = given.until_killed
            until_killed(name, int(rounds), store)
            return 1  # it should not have come to this
        names = [name for name in STUDIES if any(fnmatch.fnmatch(name, pattern) for pattern in given.only)]
        return 1 if run(names, out) else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
