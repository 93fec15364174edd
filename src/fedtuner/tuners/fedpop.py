"""FedPop's client vectors: as many client configurations as the cohort has clients, which evolve while an arm is young.

Chen et al., "FedPop: Federated Population-Based Hyperparameter Tuning", AAAI 2025: the local evolution. An arm has a
base beta_0, its own client configuration, and vectors beta_1..beta_k around it. Each client of a round trains with
another vector. Every ``every`` rounds the vectors are ranked by the discounted mean of their clients' validation losses
since the last time; the worst 30 % become perturbations of one of the best 30 %, drawn at random, or with probability
0.1 of the base. Once the arm is no longer young, all clients use the best vector. The global evolution, of arms, is
``schedules.Population``; a child with a changed base begins with new vectors, and is young again.

Where the paper is silent, or this differs:

- Which client has which vector is drawn anew in each round, so that all vectors are tried where fewer clients are
  there than vectors; where there are more, several clients share a vector, and its loss is their mean by |V|.
- A vector that nobody tried since the last evolution is not ranked. One whose loss is not finite is the worst.
- At the last evolution, after which only the best vector is used, no vector is replaced.
- Rounds in which nobody validated do not count.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from fedtuner import checks
from fedtuner.core.evolution import around, extremes
from fedtuner.core.model import Vectors
from fedtuner.core.records import Arm, Choice, Seen, Summary, Tried
from fedtuner.core.tuner import Floats, Streams
from fedtuner.rng import stream
from fedtuner.space import Choice as OneOf
from fedtuner.space import Config, Space, Value, When, unconditional

METRICS = ("error", "loss")
MOST = 10_000  # vectors: every arm draws all of them and the journal lists them
_ABSENT, _REAL, _WHOLE, _WORD = -1, 0, 1, 2  # what a packed value is; from _WORD on, the number of a word


@dataclass(frozen=True)
class FedPop:
    """FedPop's local evolution: client vectors, of which the worst become perturbations of the best."""

    kind: ClassVar[str] = "fedpop"
    k: int = 10  # vectors: as many as the cohort has clients
    eps: float = 0.1  # size of a perturbation, and how far vectors may be from the base: a part of each range
    every: int = 5  # rounds between two evolutions
    young: int = 20  # rounds of an arm in which vectors evolve; then all clients use the best
    share: float = 0.3  # of the vectors: the worst that are replaced, and the best that replace them
    discount: float = 0.9  # weight of a round's loss relative to the next one's
    fresh: float = 0.1  # how often a vector is replaced by a perturbation of the base
    metric: str = "loss"  # what vectors are ranked by: the clients' loss or error after local training
    tried: ClassVar[int] = 1

    def __post_init__(self) -> None:
        wholes = {"k": checks.whole("tuner.k", self.k, 1, MOST)}
        wholes |= {name: checks.whole(f"tuner.{name}", getattr(self, name)) for name in ("every", "young")}
        shares = {name: checks.number(f"tuner.{name}", getattr(self, name), 0, 1) for name in ("discount", "fresh")}
        checks.one_of("tuner.metric", self.metric, METRICS)
        eps, share = checks.number("tuner.eps", self.eps), checks.number("tuner.share", self.share, 0, 0.5)
        checks.settle(self, **wholes, **shares, eps=eps, share=share)

    @property
    def labels(self) -> int:
        """k: the mean loss of each vector's clients is enough."""
        return self.k

    def begin(self, arm: Arm, space: Space, seed: int, parent: Belief | None) -> Belief:
        """Return vectors around the arm's configuration; a child with its parent's configuration keeps its vectors."""
        if parent is not None and parent.base == arm.client:
            return replace(parent, arm=arm.id, server=arm.server)
        drawn = (stream(seed, "arm", arm.id, "candidate", j) for j in range(self.k))
        made = (around(space, arm.client, arm.server, self.eps, rng) for rng in drawn)
        vectors = tuple(_ordered(config, arm.client) for config in made)
        return Belief(
            arm.id, seed, space, arm.server, arm.client, vectors, total=np.zeros(self.k), mass=np.zeros(self.k)
        )

    def choose(self, belief: Belief, n: int, streams: Streams) -> tuple[tuple[Choice, ...], ...]:
        """Give each client another vector; the best one to all, once the arm is no longer young."""
        order = streams("choose").permutation(self.k).tolist()
        if belief.age >= self.young:
            order = [belief.selected]
        return tuple((Choice(j, belief.vectors[j]),) for j in (order[i % len(order)] for i in range(n)))

    def value(self, tried: Tried) -> float:
        return float(getattr(tried.after, self.metric))

    def update(self, belief: Belief, seen: Sequence[Seen]) -> Belief:
        """Add the round's values to the vectors' sums; every few rounds let the vectors evolve."""
        seen = [one for one in seen if one.weight > 0]
        if not seen or belief.age >= self.young:
            return belief
        sums, weights = np.zeros(self.k), np.zeros(self.k)
        with np.errstate(over="ignore", invalid="ignore"):
            for one in seen:
                sums[one.labels[0]] += one.weight * one.values[0]
                weights[one.labels[0]] += one.weight
            values = np.divide(sums, weights, out=np.zeros(self.k), where=weights > 0)
        values[~np.isfinite(values)] = math.inf
        summed = replace(
            belief, age=belief.age + 1, total=self.discount * belief.total + values,
            mass=self.discount * belief.mass + (weights > 0),
        )  # fmt: skip
        return self._evolved(summed) if summed.age % self.every == 0 else summed

    def _evolved(self, belief: Belief) -> Belief:
        scores = {j: float(belief.total[j] / belief.mass[j]) for j in range(self.k) if belief.mass[j] > 0}
        order = sorted(scores, key=lambda j: (scores[j], j))
        best, worst = extremes(order, self.share)
        vectors = list(belief.vectors)
        for j in worst if belief.age < self.young else ():
            rng = stream(belief.seed, "arm", belief.arm, "vector", belief.age, j)
            base, place = rng.random() < self.fresh, int(rng.integers(len(best)))
            start = belief.base if base else belief.vectors[best[place]]
            made = around(belief.space, start, belief.server, self.eps, rng, centre=belief.base)
            vectors[j] = _ordered(made, belief.base)
        return replace(
            belief, vectors=tuple(vectors), selected=order[0], total=np.zeros(self.k), mass=np.zeros(self.k)
        )  # fmt: skip

    def best(self, belief: Belief) -> Config:
        return belief.vectors[belief.selected]

    def offers(self, belief: Belief) -> tuple[tuple[Config, ...], Floats]:
        p = np.full(self.k, 1 / self.k)
        if belief.age >= self.young:
            p = np.zeros(self.k)
            p[belief.selected] = 1.0
        return belief.vectors, p

    def summary(self, belief: Belief) -> Summary:
        if belief.age >= self.young:
            return Summary(0.0, belief.selected, 1.0)
        return Summary(math.log(self.k), belief.selected, 1 / self.k)

    def pack(self, belief: Belief) -> Vectors:
        """Return vectors and sums as arrays; ``begin`` gives the base and the space again."""
        words = _words(belief)
        pairs = [_packed(config.get(name), words[name]) for config in belief.vectors for name in words]
        return {
            "kinds": np.array([kind for kind, _ in pairs], np.int64), "values": np.array([x for _, x in pairs]),
            "at": np.array([belief.selected, belief.age]), "total": belief.total, "mass": belief.mass,
        }  # fmt: skip

    def unpack(self, begun: Belief, arrays: Vectors) -> Belief:
        words = _words(begun)
        read = iter(zip(arrays["kinds"].tolist(), arrays["values"].tolist(), strict=True))
        vectors = []
        for _ in range(self.k):
            held = {name: _unpacked(*next(read), words[name]) for name in words}
            made = {name: value for name, value in begun.base.items() if name not in words}
            made |= {name: value for name, value in held.items() if value is not None}
            vectors.append(_ordered(made, begun.base))
        selected, age = map(int, arrays["at"])
        total, mass = (np.array(arrays[name], np.float64) for name in ("total", "mass"))
        return replace(begun, vectors=tuple(vectors), selected=selected, age=age, total=total, mass=mass)


@dataclass(frozen=True)
class Belief:
    """What is known of an arm's client vectors."""

    arm: int
    seed: int
    space: Space
    server: Config
    base: Config  # beta_0
    vectors: tuple[Config, ...]  # beta_1..beta_k
    total: Floats  # by vector, since the last evolution: the discounted sum of its losses
    mass: Floats  # and of their weights
    selected: int = 0  # the best vector at the last evolution
    age: int = 0  # rounds that counted, up to ``young``


def _ordered(config: Config, base: Config) -> dict[str, Value]:
    """Return a configuration in the order of the base, so that its journal line does not depend on its history."""
    return {name: config[name] for name in (*base, *sorted(config.keys() - base.keys())) if name in config}


def _words(belief: Belief) -> dict[str, list[Value]]:
    """Return what stands for values that are no numbers, by the names that may differ between vectors."""
    found: dict[str, list[Value]] = {}
    for name, domain in belief.space.client.items():
        known = unconditional(domain)
        words = list(known.values) if isinstance(known, OneOf) else []
        otherwise = domain.otherwise if isinstance(domain, When) else None
        found[name] = words + [v for v in (otherwise, belief.base.get(name)) if v is not None and v not in words]
    return found


def _packed(value: Value | None, words: Sequence[Value]) -> tuple[int, float]:
    if value is None:
        return _ABSENT, 0.0
    for place, word in enumerate(words):
        if type(word) is type(value) and word == value:
            return _WORD + place, 0.0
    return (_WHOLE if isinstance(value, int) else _REAL), float(value)


def _unpacked(kind: int, x: float, words: Sequence[Value]) -> Value | None:
    if kind >= _WORD:
        return words[kind - _WORD]
    return None if kind == _ABSENT else int(x) if kind == _WHOLE else x
