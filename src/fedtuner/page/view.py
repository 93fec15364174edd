"""A study as the page shows it: plain tables and lists, made from its history and nothing else."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from fedtuner import tables
from fedtuner.checks import is_number
from fedtuner.core.metric import Metric
from fedtuner.core.records import Record
from fedtuner.core.schedule import TARGETS, best
from fedtuner.errors import counted, one_line
from fedtuner.page.curves import VALUES, Curve, curves, short, window_of
from fedtuner.page.history import History
from fedtuner.page.importance import importance
from fedtuner.page.stages import stage, told
from fedtuner.page.theta import Thetas, columns
from fedtuner.report import served
from fedtuner.report.show import headline, without_examples
from fedtuner.report.summary import breakdowns, evaluations, spec, strict
from fedtuner.run.journal import Journal
from fedtuner.space import Choice, Domain, Float, Int, OneMinus, PowerOfTwo, Space, fixed, flat, unconditional

View = dict[str, Any]
COLUMNS = 120  # of a heat map
MOST_CLIENTS = 6000  # pairs of client and arm
SERVED = 60  # rounds of an arm at which it is said whom it serves
MOST_GROUPS = 12  # of clients, over rounds: those with the most clients
BINS = 60  # of rounds, for the health of cohorts


Made = TypeVar("Made")


class Views:
    """Makes views of a growing study; what does not change is not computed again.

    Most of a view belongs to one arm, and most arms have no new rounds: theirs is kept. So the lists of a view are not
    to be changed.
    """

    def __init__(self) -> None:
        self._of: tuple[History | None, History | None] = None, None
        self._forget()

    def _forget(self) -> None:
        self._thetas = Thetas()
        self._kept: dict[Hashable, tuple[Hashable, Any]] = {}  # by name: what it was made from, and what was made

    def _once(self, name: Hashable, made_from: Hashable, make: Callable[[], Made]) -> Made:
        """Return what ``make`` gives; it is asked again only if ``made_from`` has changed."""
        if name not in self._kept or self._kept[name][0] != made_from:
            self._kept[name] = made_from, make()
        return self._kept[name][1]  # type: ignore[no-any-return]

    def view(self, history: History, name: str, untuned: History | None = None) -> View:
        """Return a study's view; ``name`` is what it is called."""
        if self._of[0] is not history or self._of[1] is not untuned:  # the journal was replaced
            self._of = history, untuned
            self._forget()
        journal, described, metric = history.journal, spec(history.journal), history.journal.metric
        schedule, target = described["schedule"], described["target"]
        window = window_of(schedule["longest"])
        arms = [arm for arm in sorted(journal.arms) if journal.own_records[arm]]
        found = {arm: self._curves("curves", journal, arm, window) for arm in arms}
        default = None
        if untuned is not None and untuned.journal.rounds_used:
            default = _series(self._curves("untuned", untuned.journal, 0, window))
        when = "before" if target == "global" else "after"
        space, won = self._once("space", None, lambda: _space(journal)), journal.won
        evaluated = evaluations(journal, None if untuned is None else untuned.journal)
        shown = _configurations(journal, found, f"error_{when}", space)
        ranked = tuple((row["early"], *map(str, row["values"])) for row in shown["rows"])
        groups = journal.group_of
        made_arms = [self._arm(journal, arm, space, found[arm]) for arm in found]
        made = {
            "name": one_line(name, 200),
            "headline": self._once("headline", None, lambda: headline(described)),
            "problem": described["problem"]["name"],
            "method": described["method"],
            "seed": described["seed"],
            "target": target,
            "metric": schedule["score"],
            "window": window,
            "budget": journal.budget,
            "used": journal.rounds_used,
            "measure": {n: getattr(metric, n) for n in ("name", "rate", "maximise", "pooled")},
            "winner": None if won is None else {"arm": won.arm, "round": won.round},
            "chosen": _chosen(journal, found, when),
            "evaluations": strict(evaluated),
            "notes": [*without_examples(evaluated), *_undefined(evaluated, metric)],
            "pays": won is not None and journal.fine_tuning_pays,
            "arms": made_arms,
            "parts": told([arm["stage"] for arm in made_arms]),
            "untuned": default,
            "incumbent": _incumbent(history, found),
            "configurations": shown,
            "importance": self._once("importance", ranked, lambda: strict(importance(shown))),
            "clients": self._clients(journal, arms, groups),
            "served": {str(arm): self._served(journal, arm, groups, window) for arm in arms},
            "across": strict(_across(journal, None if untuned is None else untuned.journal)),
            "health": _health(history),
            "setup": _setup(described),
            "versions": dict(journal.begun.versions) if journal.begun else {},
            "command": journal.begun.command if journal.begun else "",
        }
        return turned(made, metric) if metric.maximise else made

    def _curves(self, name: str, journal: Journal, arm: int, window: int) -> dict[str, Curve]:
        own = len(journal.own_records[arm])
        return self._once((name, arm), own, lambda: curves(journal.records(arm), window, own))

    def _clients(self, journal: Journal, arms: Sequence[int], groups: served.Groups) -> dict[str, Any]:
        """Return of each arm its clients' errors before and after local training, over the later half of its rounds.

        The arms with the most rounds come first; where there are many clients, other arms are left out.
        """
        made: dict[str, Any] = {}
        room = MOST_CLIENTS
        for arm in sorted(arms, key=lambda a: (-journal.round_of(a), a)):
            rows = self._by_client(journal, arm)
            if rows and (len(rows) <= room or not made):
                made[str(arm)] = [
                    [one_line(str(c.client), 60), *c[1:4], *short(c[4:], 4), one_line(groups.get(c.client, ""), 60)]
                    for c in rows
                ]
                room -= len(rows)
        return made

    def _by_client(self, journal: Journal, arm: int) -> list[served.ClientMeans]:
        def make() -> list[served.ClientMeans]:
            return served.by_client(served.later(journal.records(arm)))

        return self._once(("clients", arm), len(journal.own_records[arm]), make)

    def _served(self, journal: Journal, arm: int, groups: served.Groups, window: int) -> dict[str, Any]:
        """Return errors of all clients, the worst tenth and each group: over rounds, and in the later half of them."""

        def make() -> dict[str, Any]:
            records, own = journal.records(arm), journal.own_records[arm]
            counts = Counter(groups.values())
            some = {id: g for id, g in groups.items() if g in [name for name, _ in counts.most_common(MOST_GROUPS)]}
            at = range(len(records) - 1, len(records) - len(own) - 1, -max(1, -(-len(own) // SERVED)))[::-1]
            lines = {}
            for when in ("before", "after") if records[-1].rows else ():
                means = served.over_rounds(records, some, window, when)
                lines[when] = {one_line(who, 60): short((values[n] for n in at), 4) for who, values in means.items()}
            whom = served.whom(self._by_client(journal, arm), groups)
            return {
                "rounds": [records[n].round for n in at] if lines else [],
                "lines": lines,
                "whom": [[one_line(one.who, 60), one.clients, *short(one[2:], 4)] for one in whom],
            }

        return self._once(("served", arm), len(journal.own_records[arm]), make)

    def _arm(self, journal: Journal, id: int, space: Space, found: Mapping[str, Curve]) -> dict[str, Any]:
        gone = id in journal.eliminated and not (journal.won and journal.won.arm == id)
        ended, rounds = journal.ended.get(id, ""), len(journal.own_records[id])
        # A later arm, or an extension, may say what part this one has.
        made_from = gone, ended, rounds, len(journal.arms), len(journal.extended)
        return self._once(("arm", id), made_from, lambda: self._make_arm(journal, id, space, found, gone))

    def _make_arm(
        self, journal: Journal, id: int, space: Space, found: Mapping[str, Curve], gone: bool
    ) -> dict[str, Any]:
        arm, own = journal.arms[id], journal.own_records[id]
        candidates, last = journal.candidates_at(id, own[-1].round), own[-1]
        thetas = self._thetas.of(journal, id)
        described = strict({
            "id": id,
            "parent": arm.parent,
            "stage": stage(journal, id),
            "rounds": last.round,
            "out": gone,
            "ended": journal.ended.get(id, ""),
            "client": _tuned(candidates[min(last.mode, len(candidates) - 1)], space.client),
            "server": _tuned(arm.server, space.server),
            "entropy": short(r.entropy for r in own) if len(candidates) > 1 else [],
            "candidates": [_tuned(c, space.client) for c in candidates] if len(candidates) > 1 else [],
            "theta": columns(thetas, COLUMNS) if thetas else None,
            "drawn": len(candidates) == 1 and candidates != journal.candidates[id],
            "faults": {name: sum(getattr(r, name) for r in own) for name in ("clients", "dropped", *_FAULTS)},
        })  # fmt: skip
        return {**described, **_series(found)}


def turned(view: View, metric: Metric) -> View:
    """Return a view with the values of a metric of which higher is better, in place of a study's errors."""

    def turn(values: Sequence[Any]) -> list[float | None]:
        return short(math.nan if v is None else metric.turned(v) for v in values)

    def both(series: Mapping[str, Any]) -> dict[str, Any]:
        made = {}
        for name in VALUES[:2]:
            made[name] = {**series[name], "raw": turn(series[name]["raw"]), "mean": turn(series[name]["mean"])}
        return {**series, **made}

    def evaluated(item: tuple[str, Mapping[str, Any]]) -> tuple[str, dict[str, Any]]:
        how, kept = item
        of_error = how.endswith(" error")
        return how, {side: turn([e])[0] if of_error and side in TARGETS else e for side, e in kept.items()}

    def one_served(some: Mapping[str, Any]) -> dict[str, Any]:
        lines = {when: {who: turn(values) for who, values in of.items()} for when, of in some["lines"].items()}
        return {**some, "lines": lines, "whom": [[*row[:2], *turn(row[2:])] for row in some["whom"]]}

    rows = [{**row, "error": turn([row["error"]])[0]} for row in view["configurations"]["rows"]]
    return {
        **view,
        "arms": [both(arm) for arm in view["arms"]],
        "untuned": view["untuned"] and both(view["untuned"]),
        "incumbent": {**view["incumbent"], **{name: turn(view["incumbent"][name]) for name in VALUES[:2]}},
        "configurations": {**view["configurations"], "rows": rows},
        "clients": {
            arm: [[*row[:4], *turn(row[4:6]), row[6]] for row in some] for arm, some in view["clients"].items()
        },
        "served": {arm: one_served(some) for arm, some in view["served"].items()},
        "across": {
            who: {how: {name: turn(pair) for name, pair in some.items()} for how, some in found.items()}
            for who, found in view["across"].items()
        },
        "evaluations": {who: dict(map(evaluated, found.items())) for who, found in view["evaluations"].items()},
    }


_REPLIES = ("failed", "late", "silent")  # of those that did not report
_FAULTS = ("broken", "bounded")


def _undefined(evaluated: Mapping[str, Any], metric: Metric) -> Iterator[str]:
    """Say for how many clients the winner's metric is not defined on test data."""
    n = int(evaluated.get("tuned", {}).get("test mode error", {}).get("undefined", 0))
    if n:
        yield f"{metric.name} is not defined for {counted(n, 'client')}, who {'is' if n == 1 else 'are'} left out."


def _series(found: Mapping[str, Curve]) -> dict[str, Any]:
    digits = {"raw": 5, "mean": 4, "half": 2}
    return {name: {kind: short(getattr(curve, kind), n) for kind, n in digits.items()} for name, curve in found.items()}


def _tuned(config: Mapping[str, Any], domains: Mapping[str, Domain]) -> dict[str, Any]:
    """Return of a configuration what the study tunes."""
    return {name: _brief(value) for name, value in config.items() if name in domains}


def _brief(value: Any) -> Any:
    return float(f"{value:.4g}") if isinstance(value, float) else tables.plain(value)


def _space(journal: Journal) -> Space:
    """Return what the study tunes: the domains with more than one value."""
    whole = Space.of(journal.setup)

    def varied(domains: Mapping[str, Domain]) -> dict[str, Domain]:
        return {n: d for n, d in domains.items() if not fixed(d)}

    return Space(varied(whole.client), varied(whole.server))


def _chosen(journal: Journal, found: Mapping[int, Mapping[str, Curve]], when: str) -> int | None:
    """Return the arm to show first: the winner, or the one with the most rounds and then the lowest error."""
    if journal.won is not None and journal.won.arm in found:
        return journal.won.arm
    order = {arm: (-journal.round_of(arm), curve[f"error_{when}"].mean[-1]) for arm, curve in found.items()}
    return min(order, key=lambda arm: order[arm], default=None)


def _incumbent(history: History, found: Mapping[int, Mapping[str, Curve]]) -> dict[str, Any]:
    """Return the incumbent's error against the rounds that all arms have used so far.

    The incumbent is the arm with the best score when arms were last compared. An arm that is behind is compared when
    it has had all the rounds of its step.
    """
    journal = history.journal
    scores = {}
    first = {arm: own[0].round for arm, own in journal.own_records.items() if own}
    used, leader, points = 0, -1, list[tuple[int, int, int]]()
    at: dict[int, int] = {}  # the round after which an arm was last compared
    for step in history.steps:
        arms = sorted({arm for arm, _ in step})
        leader = arms[0] if len(arms) == 1 else leader
        for arm in arms:
            rounds = [t for a, t in step if a == arm]
            points += [(used + n, arm, t) for n, t in enumerate(rounds, 1) if arm == leader]
            used, at[arm] = used + len(rounds), rounds[-1]
            scores[arm] = journal.score(arm, at[arm])
            # An arm that is eliminated later is out once a step goes on without it.
            leader = best({a: s for a, s in scores.items() if a in arms or a not in journal.eliminated}, 1)[0]
            points.append((used, leader, at[leader]))
    kept = {used: (arm, t) for used, arm, t in points}
    values = {name: short(found[arm][name].mean[t - first[arm]] for arm, t in kept.values()) for name in VALUES}
    return {"used": list(kept), "arm": [arm for arm, _ in kept.values()], **values}


def _configurations(
    journal: Journal, found: Mapping[int, Mapping[str, Curve]], value: str, space: Space
) -> dict[str, Any]:
    """Return the arms' hyperparameters, and the error of each after its last round and after one that all had."""
    domains = flat(space.client, space.server)
    rows: list[dict[str, Any]] = []
    common = min((journal.round_of(arm) for arm in found if journal.arms[arm].parent is None), default=0)
    for arm, curve in found.items():
        known, own = journal.arms[arm], journal.own_records[arm]
        candidates = journal.candidates_at(arm, own[-1].round)
        client = candidates[min(own[-1].mode, len(candidates) - 1)]
        values = flat(client, known.server)
        early = curve[value].mean[common - 1] if known.parent is None and common else math.nan
        shown = dict(zip(("error", "early"), short([curve[value].mean[-1], early]), strict=True))
        rows.append({"arm": arm, "values": [_brief(values.get(n)) for n in domains], **shown})
    seen = [[row["values"][n] for row in rows] for n in range(len(domains))]
    axes = [{"name": name, **_axis(d, values)} for (name, d), values in zip(domains.items(), seen, strict=True)]
    return {"axes": axes, "rows": rows, "common": common}


def _axis(domain: Domain, seen: Sequence[Any]) -> dict[str, Any]:
    """Return the axis of a hyperparameter: its domain, and values beyond it that an arm was given."""
    domain, seen = unconditional(domain), [value for value in seen if value is not None]
    if isinstance(domain, (PowerOfTwo, Choice)):
        return {"kind": "choice", "choices": _choices([_brief(v) for v in domain.values], seen)}
    log = isinstance(domain, (Float, Int)) and domain.log
    ends = [*domain.ends(), *(value for value in seen if value > 0 or not log)]  # 0 is on no logarithmic scale
    whole = {} if isinstance(domain, OneMinus) else {"whole": isinstance(domain, Int)}
    return {"kind": "log" if log else "linear", "low": min(ends), "high": max(ends), **whole}


def _choices(values: list[Any], seen: Sequence[Any]) -> list[Any]:
    """Return values, and those that were seen beside them at their places."""
    more = [value for value in dict.fromkeys(seen) if value not in values]
    numbers = all(is_number(value) for value in (*values, *more))
    return list(dict.fromkeys(sorted([*values, *more]) if more and numbers else [*values, *more]))


def _across(journal: Journal, untuned: Journal | None) -> dict[str, Any]:
    """Return the errors of the worst tenth of clients and of groups, where the winner or the default was evaluated."""
    found = {"tuned": breakdowns(journal), "untuned": {} if untuned is None else breakdowns(untuned)}
    return {
        who: {how: {one_line(name, 60): list(pair) for name, pair in some.items()} for how, some in kept.items()}
        for who, kept in found.items()
    }


def _health(history: History) -> dict[str, Any]:
    """Return how cohorts fared: totals, and parts of the study in the order of its rounds."""
    journal = history.journal
    records = list(_in_order(history))
    size = -(-len(records) // BINS) or 1
    bins = [records[at : at + size] for at in range(0, len(records), size)]
    names = ("clients", *_REPLIES, *_FAULTS)

    def count(some: Sequence[Record]) -> list[int]:
        replies = zip(*(journal.replies_of(r) if r.dropped else (0, 0, 0) for r in some), strict=True)
        asked, *faults = (sum(getattr(r, name) for r in some) for name in ("clients", *_FAULTS))
        return [asked, *(map(sum, replies) if some else (0, 0, 0)), *faults]

    ended = {why: sum(1 for w in journal.ended.values() if w == why) for why in ("diverged", "stalled")}
    unusable, late = journal.unusable, journal.late_by_client
    worst = sorted(unusable | late, key=lambda id: (-unusable.get(id, 0) - late.get(id, 0), str(id)))[:20]
    devices = [[one_line(str(id), 60), unusable.get(id, 0), late.get(id, 0)] for id in worst]
    total = dict(zip(names, count(records), strict=True))
    return {**total, **ended, "size": size, "bins": [count(some) for some in bins], "devices": devices}


def _in_order(history: History) -> Iterator[Record]:
    journal = history.journal
    first = {arm: own[0].round for arm, own in journal.own_records.items() if own}
    for step in history.steps:
        for arm, t in sorted(step):
            yield journal.own_records[arm][t - first[arm]]


def _setup(described: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings as a table; the layout of the model is its number of entries."""
    kept = {k: v for k, v in described.items() if k not in ("layout", "format", "fedex", "work", "defaults")}
    size = sum(math.prod(part["shape"]) for part in described["layout"])
    return {**kept, "parameters": size}
