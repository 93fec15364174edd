"""How ``auto`` stands to the best that others could do: at their best share, over all rows, and to the oracle.

What is best is picked by the test errors themselves, in favour of the others. Only problems and budgets on which the
tuners of the literature have all run are compared.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from ways import SHARES, TUNERS, WAYS, named

from fedtuner.experiments.statistics import paired

Line = Mapping[str, Any]
Cell = tuple[str, int]  # problem, budget
Errors = Mapping[str, Mapping[int, float]]  # by way and seed
MOST = 0.995  # of untuned's error: an oracle that is no better leaves no distance to close


def best_shares(ways: Errors) -> dict[str, Mapping[int, float]]:
    """Return, for each tuner that has run at several shares, the errors at the one with the lowest mean.

    Shares are compared on the seeds that all of them have.
    """
    found = {}
    for tuner in TUNERS:
        of = [ways[name] for share in SHARES if (name := named(tuner, share)) in ways]
        if len(of) > 1:
            seeds = set(of[0]).intersection(*of)
            found[f"{tuner}, best share"] = min(({seed: errors[seed] for seed in seeds} for errors in of), key=mean)
    return found


def whole(ways: Errors) -> bool:
    """Return whether a problem and budget has every way of the literature at the paper's share, and ``auto``."""
    return all(name in ways for name in ("untuned", "auto", *(named(tuner, SHARES[0]) for tuner in TUNERS)))


def goals(found: Mapping[Cell, Errors]) -> str:
    """Return ``auto``'s error / that of SHA + FedEx at the paper's share, and / that of the best other row.

    A problem and budget counts with the seeds that all of its ways have.
    """
    head = "| problem | rounds | seeds | auto | SHA + FedEx, T/10 | ratio | the best other row | its error | ratio |"
    rows, kept = [head, "|---" * 9 + "|"], list[Sequence[Mapping[int, float]]]()
    for (problem, budget), all_ways in found.items():
        if not whole(all_ways):
            continue
        others = {name: of for name, of in all_ways.items() if WAYS[name].part in ("alone", "tuner")}
        seeds = set(all_ways["auto"]).intersection(*others.values())
        ways = {name: {seed: of[seed] for seed in seeds} for name, of in {**others, "auto": all_ways["auto"]}.items()}
        mine, paper = ways.pop("auto"), ways[named("SHA + FedEx", SHARES[0])]
        name, best = min(ways.items(), key=lambda pair: mean(pair[1]))
        kept.append((mine, paper, best))
        texts = (
            str(len(seeds)), _percent(mine), _percent(paper), f"{ratio(mine, paper):.2f}", name, _percent(best),
            f"{ratio(mine, best):.2f}",
        )  # fmt: skip
        rows.append(f"| {problem} | {budget} | " + " | ".join(texts) + " |")
    over_paper, over_best = (_over([(three[0], three[n]) for three in kept]) for n in (1, 2))
    return "\n".join([*rows, f"| *mean* | | | | | {over_paper} | | | {over_best} |"])


def _over(pairs: Sequence[tuple[Mapping[int, float], Mapping[int, float]]]) -> str:
    """Return the mean of ratios, and of paired differences with its interval."""
    if not pairs:
        return ""
    both = [(100 * rival[seed], 100 * mine[seed]) for mine, rival in pairs for seed in sorted(mine)]
    apart = paired([a for a, _ in both], [b for _, b in both])
    return f"{statistics.mean(ratio(*pair) for pair in pairs):.2f} ({apart.mean:+.1f} ± {apart.half:.1f} points)"


def _percent(of: Mapping[int, float]) -> str:
    return f"{100 * mean(of):.1f}"


def closed(found: Mapping[Cell, Errors], oracle: Mapping[Cell, Mapping[int, float]]) -> str:
    """Return which part of the distance from untuned to the oracle ``auto`` closes, by problem and budget."""
    rows = ["| problem | rounds | seeds | untuned | auto | oracle | closed |", "|---" * 7 + "|"]
    for cell, limit in oracle.items():
        ways = found.get(cell, {})
        seeds = sorted(set(limit) & set(ways.get("untuned", {})) & set(ways.get("auto", {})))
        if not seeds:
            continue
        untuned, auto, best = (
            statistics.mean(of[seed] for seed in seeds) for of in (ways["untuned"], ways["auto"], limit)
        )
        part = f"{(untuned - auto) / (untuned - best):.2f}" if best < MOST * untuned else ""
        errors = " | ".join(f"{100 * error:.1f}" for error in (untuned, auto, best))
        rows.append(f"| {cell[0]} | {cell[1]} | {len(seeds)} | {errors} | {part} |")
    return "\n".join(rows)


def mean(of: Mapping[int, float], along: Mapping[int, float] | None = None) -> float:
    """Return the mean over seeds, or over those that another way has, too."""
    return statistics.mean(error for seed, error in of.items() if along is None or seed in along)


def ratio(of: Mapping[int, float], over: Mapping[int, float]) -> float:
    """Return a way's mean error over another's, on the seeds that both have."""
    return mean(of, over) / mean(over, of)
