"""A study's journal in memory, made from its events: all that ``show``, ``export``, ``compare`` and resume read."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from fedtuner.core.metric import Metric
from fedtuner.core.records import Arm, Key, Record
from fedtuner.core.schedule import Score, Scoring
from fedtuner.core.store import (
    Begun,
    Done,
    Eliminated,
    Evaluated,
    Evaluation,
    Event,
    Extended,
    Failed,
    Joined,
    Late,
    Started,
    Won,
)
from fedtuner.space import Config


@dataclass(frozen=True)
class Held:
    """A configuration, and the rounds of a model's training in which it held."""

    arm: int
    first: int  # round
    last: int
    server: Config
    client: Config  # the most probable one after the last of these rounds


class Journal:
    """A study so far."""

    def __init__(self, events: Iterable[Event] = ()) -> None:
        self.begun: Begun | None = None
        self.clients: list[str | int] = []  # of a fleet, in the order in which they were met
        self.codes: dict[str | int, str] = {}  # of these, what the code of their apps was known by
        self.rounds_used = 0  # communication rounds spent so far, over all arms
        self.arms: dict[int, Arm] = {}
        self.children: dict[int, list[int]] = {}  # arm -> the arms that continue its states
        self.candidates: dict[int, tuple[Config, ...]] = {}
        self.own_records: dict[int, list[Record]] = {}  # of the arm itself, without its ancestors'
        self.saved: dict[Key, str] = {}  # the states that were saved, by their checksums
        self.beliefs: dict[Key, tuple[float, ...]] = {}  # theta of the states that were saved
        self.moved: dict[Key, tuple[Config, ...]] = {}  # candidates that differ from those that the arm began with
        self.ended: dict[int, str] = {}
        self.failed: dict[int, str] = {}  # arm -> the error that ended it
        self.eliminated: dict[int, Eliminated] = {}
        self.evaluated: dict[tuple[Key, str, str], Evaluation] = {}  # on all clients, by key, split and configuration
        self.sampled: dict[tuple[Key, str, str, int], Evaluation] = {}  # and by the size of the sample
        self.late: dict[Key, set[str | int]] = {}  # clients whose replies came after their round
        self.won: Won | None = None
        self.extended: list[Extended] = []
        self._saved_rounds: dict[int, list[int]] = {}  # by arm, in order
        self._moved_rounds: dict[int, list[int]] = {}  # those of ``moved``
        for event in events:
            self.add(event)

    def add(self, event: Event) -> None:
        """Take note of an event."""
        if isinstance(event, Done):
            self.own_records[event.record.arm].append(event.record)
            self.rounds_used += 1
            self.eliminated.pop(event.record.arm, None)  # by a timeout, after which the study goes on
            if event.state:
                self.keep(event)
        elif isinstance(event, Started):
            arm = event.arm
            self.arms[arm.id], self.candidates[arm.id] = arm, event.candidates
            self.own_records.setdefault(arm.id, [])
            if arm.parent:
                self.children.setdefault(arm.parent[0], []).append(arm.id)
                if event.state:
                    self._save((arm.id, arm.parent[1]), event.state)
        elif isinstance(event, Late):
            self.late.setdefault((event.arm, event.round), set()).add(event.client)
        elif isinstance(event, Failed):
            self.failed[event.arm], self.ended[event.arm] = event.error, "failed"
        elif isinstance(event, Eliminated):
            self.eliminated[event.arm] = event
        elif isinstance(event, Evaluated):
            at = ((event.arm, event.round), event.split, event.config)
            if event.result.sample:
                self.sampled[(*at, event.result.sample)] = event.result
            else:
                self.evaluated[at] = event.result
        elif isinstance(event, Won):
            self.won = event
        elif isinstance(event, Joined):
            self.clients += event.ids
            self.codes |= {id: code for id, code in zip(event.ids, event.codes, strict=False) if code}
        elif isinstance(event, Extended):
            self.extended.append(event)
            self.won = None
        else:
            self.begun = event

    def keep(self, event: Done) -> None:
        """Take note of the state that was saved after a round."""
        key = (event.record.arm, event.record.round)
        self._save(key, event.state)
        self.beliefs[key] = event.belief
        if event.candidates:
            self.moved[key] = event.candidates
            self._moved_rounds.setdefault(key[0], []).append(key[1])
        if event.ended:
            self.ended[event.record.arm] = event.ended

    def _save(self, key: Key, checksum: str) -> None:
        self.saved[key] = checksum
        self._saved_rounds.setdefault(key[0], []).append(key[1])

    def drop(self, keys: Iterable[Key]) -> None:
        """Take note that states are no longer kept."""
        for arm, round in keys:
            del self.saved[arm, round]
            self._saved_rounds[arm].remove(round)

    @property
    def trainings(self) -> int:
        """Local trainings done so far, over all arms."""
        return sum(record.trainings for record in self.history())

    @property
    def unusable(self) -> dict[str | int, int]:
        """How many replies of each device could not be used; devices without such replies are left out."""
        counted = Counter(id for record in self.history() for id in record.unusable)
        return dict(sorted(counted.items(), key=lambda item: (-item[1], str(item[0]))))

    def replies_of(self, record: Record) -> tuple[int, int, int]:
        """Return how many of a round's clients that did not report failed, were late, and were silent.

        Who failed has replied with an error, or with what could not be used or was refused.
        """
        reported = {row.client for row in record.rows}
        failed = min(len(set(record.unusable) - reported), record.dropped)
        came = self.late.get((record.arm, record.round), set()) - reported - set(record.unusable)
        late = min(len(came), record.dropped - failed)
        return failed, late, record.dropped - failed - late

    @property
    def late_by_client(self) -> dict[str | int, int]:
        """How many replies of each client came after their round; clients without such replies are left out."""
        counted = Counter(id for clients in self.late.values() for id in clients)
        return dict(sorted(counted.items(), key=lambda item: (-item[1], str(item[0]))))

    @property
    def group_of(self) -> dict[str | int, str]:
        """The group of each client that is in one."""
        groups = {} if self.begun is None else self.begun.groups
        return {id: group for group, ids in groups.items() for id in ids}

    @property
    def fine_tuning_pays(self) -> bool:
        """Whether local training lowered the clients' validation error in the last quarter of the winner's rounds.

        Those count that had its clients' configuration; and those of arms that went on from the same one with it.
        """
        assert self.won is not None
        winner, records = self.arms[self.won.arm], _known(self.records(self.won.arm, self.won.round))
        since = self._unchanged(winner)
        last = [r for r in records[-max(1, len(records) // 4) :] if r.round > since]
        for arm in self.arms.values():
            last += _known(self.own_records[arm.id]) if self._twins(arm, winner) else []
        return sum(r.error_after for r in last) <= sum(r.error_before for r in last)

    def _unchanged(self, arm: Arm) -> int:
        """Return the round since which an arm and its ancestors have had its clients' configuration."""
        if arm.parent is None:
            return 0
        parent = self.arms[arm.parent[0]]
        return self._unchanged(parent) if parent.client == arm.client else arm.parent[1]

    def _twins(self, arm: Arm, other: Arm) -> bool:
        """Return whether an arm trained its parent's last rounds once more with what another then went on with."""
        if arm.parent is None or other.parent is None or arm.parent[0] != other.parent[0]:
            return False
        return arm.client == other.client and arm.parent[1] < self.round_of(arm.id) == other.parent[1]

    @property
    def processed(self) -> int:
        """Training examples that clients have worked through so far, over all arms, each as often as it was passed."""
        return self.processed_in(self.history())

    def processed_in(self, records: Iterable[Record]) -> int:
        """Training examples that clients have worked through in some rounds."""
        return round(sum(map(self._processed, records)))

    def _processed(self, record: Record) -> float:
        """Return a round's examples.

        Where only sums are known, or clients draw from the whole space, as if all had the most probable configuration.
        """
        passes = dict(enumerate(map(self._passes, self.candidates_at(record.arm, record.round))))
        likely = passes.get(record.mode, 1.0)
        if not record.rows:
            return record.examples * likely
        done = sum(row.examples * passes.get(row.label, likely) for row in record.rows)
        return done * record.trainings / len(record.rows)

    def _passes(self, config: Config) -> float:
        return math.prod(float(config[name]) for name in self.setup.get("work", ()) if name in config)

    def history(self) -> list[Record]:
        """Return one record per arm and round, in the order of arms and rounds."""
        return [record for arm in sorted(self.own_records) for record in self.own_records[arm]]

    def records(self, arm: int, until: int | None = None, after: int = 0) -> list[Record]:
        """Return an arm's rounds up to one, after those of its ancestors; ``after`` leaves out the first ones."""
        parent, own = self.arms[arm].parent, self.own_records[arm]
        first = 0 if parent is None else parent[1]
        last = max(0, (first + len(own) if until is None else until) - first)
        if parent is None or after >= first:
            return own[after - first : last]
        return self.records(parent[0], first if until is None else min(first, until), after) + own[:last]

    def score(self, arm: int, until: int | None = None) -> Score:
        """Return an arm's score, as the study's schedule and target have it, after its rounds up to one."""
        setup = self.setup
        scoring = Scoring(setup["schedule"]["score"], setup["schedule"]["discount"])
        return scoring.score(self.records(arm, until), setup["target"])

    def round_of(self, arm: int) -> int:
        """Return an arm's last round."""
        own, parent = self.own_records[arm], self.arms[arm].parent
        return own[-1].round if own else (parent[1] if parent else 0)

    def offers(self, key: Key) -> tuple[tuple[Config, ...], tuple[float, ...]]:
        """Return the configurations that an arm's tuner chose from when a state was saved, and their probabilities."""
        arm, _ = key
        candidates = self.moved.get(key, self.candidates[arm])
        if key in self.beliefs:
            return candidates, self.beliefs[key]
        parent = self.arms[arm].parent  # it has done no round of its own
        if parent is not None and self.offers(parent)[0] == candidates:
            return self.offers(parent)
        return candidates, (1 / len(candidates),) * len(candidates)

    def held(self, key: Key) -> tuple[Held, ...]:
        """Return the configurations that a state's model was trained with: its ancestors', then its arm's own."""
        arm, round = key
        known, own = self.arms[arm], [r for r in self.own_records[arm] if r.round <= round]
        before = () if known.parent is None else self.held(known.parent)
        if not own:
            return before
        client = self.offers((arm, own[-1].round))[0][own[-1].mode]
        return (*before, Held(arm, own[0].round, own[-1].round, known.server, client))

    def trained(self, key: Key) -> Held:
        """Return the configuration that a state's model was trained with at last.

        It is not that of a budget's very last round alone, which is there for clients to fine-tune with.
        """
        *before, last = self.held(key)
        schedule = self.setup["schedule"]
        while "first" in schedule:  # it is around another one
            schedule = schedule["first"]
        while before and last.first == last.last and schedule["kind"] == "duel":
            last = before.pop()
        return last

    def candidates_at(self, arm: int, round: int) -> tuple[Config, ...]:
        """Return the configurations that an arm's tuner chose from, as of its latest state saved up to a round."""
        rounds = self._moved_rounds.get(arm, [])
        known = bisect_right(rounds, round)
        return self.moved[arm, rounds[known - 1]] if known else self.candidates[arm]

    def saved_rounds(self, arm: int) -> list[int]:
        """Return the rounds after which an arm's states were saved and are still kept."""
        return list(self._saved_rounds.get(arm, ()))

    def saved_round(self, arm: int) -> int | None:
        """Return the round of an arm's latest saved state."""
        rounds = self._saved_rounds.get(arm)
        return rounds[-1] if rounds else None

    def evaluation(self, key: Key, split: str, config: str, sample: int | None) -> Evaluation | None:
        """Return an evaluation, if there is one that lacks no client."""
        kept = self.sampled.get((key, split, config, sample)) if sample else self.evaluated.get((key, split, config))
        return None if kept is None or kept.missing else kept

    @property
    def evaluations(self) -> dict[tuple[Key, str, str], Evaluation]:
        """What is known best: evaluations on all clients and, where there are none, on the largest samples."""
        by_size = sorted(self.sampled.items(), key=lambda item: item[1].sample)
        return {**{(key, split, config): found for (key, split, config, _), found in by_size}, **self.evaluated}

    def heirs(self, arm: int) -> set[int]:
        """Return an arm and all its descendants."""
        found, todo = set[int](), [arm]
        while todo:
            found.add(todo[-1])
            todo += self.children.get(todo.pop(), ())
        return found

    @property
    def budget(self) -> int:
        """The rounds that the study may use, over all arms."""
        return self.extended[-1].budget if self.extended else int(self.setup["schedule"]["budget"])

    @property
    def untuned(self) -> str:
        """The folder, inside the study's, of the untuned default with as many rounds."""
        return f"untuned-{self.budget}" if any(one.by != "rest" for one in self.extended) else "untuned"

    @property
    def metric(self) -> Metric:
        assert self.begun is not None
        return Metric.of(self.begun.federation)

    @property
    def setup(self) -> dict[str, Any]:
        """The table of the study's setup."""
        assert self.begun is not None
        return dict(self.begun.setup)


def _known(records: Iterable[Record]) -> list[Record]:
    """Return the rounds in which somebody validated before and after local training."""
    return [r for r in records if not math.isnan(r.error_before + r.error_after)]
