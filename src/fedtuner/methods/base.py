"""The decomposition of the paper's Section 2: a method is local training Loc_c and an aggregation Agg_b.

``local`` is a pure function of its client and its job; ``aggregate`` of the server's state and the clients' updates.
A method that keeps state names it: ``Update.memory`` stays with the client and comes back in its next ``Job.memory``;
``Server.slots`` stays with the server, and those named in ``Method.sends`` travel to the clients in ``Job.slots``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field, replace

import numpy as np

from fedtuner.errors import SpecError, suggest
from fedtuner.rng import Generator
from fedtuner.space import Config, Space, Value
from fedtuner.task import Hyper, Rows, Trainer, Vector

Vectors = Mapping[str, Vector]


@dataclass(frozen=True)
class Job:
    """One client's work in one round: all that it needs, so that it can run anywhere."""

    seed: int
    arm: int
    round: int
    client: int
    candidate: int
    config: Config  # c
    server: Config  # b: some methods' local training must know it
    w: Vector
    slots: Vectors = field(default_factory=dict)
    memory: Vectors = field(default_factory=dict)  # what the client remembers of its last job
    split: str = "valid"
    others: tuple[tuple[int, Config], ...] = ()  # further candidates to try: for theta, not for the model


@dataclass(frozen=True)
class Update:
    """What local training gives back."""

    w: Vector
    extra: Vectors = field(default_factory=dict)  # further vectors for the aggregation
    memory: Vectors = field(default_factory=dict)  # what the client keeps for its next job
    personal: Vector | None = None  # the model that the personalized objective validates; None is w


@dataclass(frozen=True)
class Server:
    """What aggregation starts from: the model (its trainable part), the server's slots, the round from 0."""

    w: Vector
    slots: Vectors
    round: int
    clients: int  # all there are, not only the round's


@dataclass(frozen=True)
class Contribution:
    """A client's update with its share |T_i| / sum |T|; its vectors are cut to the trainable part."""

    share: float
    update: Update


@dataclass(frozen=True)
class Local:
    """What local training sees of a client."""

    trainer: Trainer
    train: Sized
    valid: Sized
    trainable: int
    smallest_batch: int
    rng: Generator

    @property
    def examples(self) -> int:
        """|T|."""
        return len(self.train)

    def batches(self, epochs: int, batch: int) -> Iterator[Rows]:
        """Yield the rows of each batch: a fresh permutation every epoch, the last batch as small as it comes."""
        for _ in range(epochs):
            order = self.rng.permutation(self.examples)
            for start in range(0, self.examples, batch):
                rows = order[start : start + batch]
                if rows.size >= self.smallest_batch:
                    yield rows

    def gradient(self, w: Vector, rows: Rows) -> Vector:
        """Return the gradient of the mean loss on these rows; the array is the caller's until the next call."""
        return self.trainer.gradient(w, rows)

    def full_gradient(self, w: Vector, chunk: int = 1024) -> Vector:
        """Return the gradient of the mean loss over all training examples, as a new array."""
        total = np.zeros(self.trainable, np.float32)
        for start in range(0, self.examples, chunk):
            rows = np.arange(start, min(start + chunk, self.examples))
            total += self.gradient(w, rows) * np.float32(len(rows) / self.examples)
        return total


LocalTraining = Callable[[Local, Job], Update]
Aggregation = Callable[[Server, Sequence[Contribution], Config], tuple[Vector, Vectors]]


@dataclass(frozen=True)
class Method:
    """A federated method: Loc_c, Agg_b, and their hyperparameters."""

    name: str
    paper: str
    local: LocalTraining
    aggregate: Aggregation
    client: Mapping[str, Hyper]
    server: Mapping[str, Hyper]
    sends: tuple[str, ...] = field(default=())  # the server's slots that travel to the clients

    def with_defaults(self, client: Config | None = None, server: Config | None = None) -> Method:
        """Return the same method with other default values.

        >>> from fedtuner import methods
        >>> methods.fedavg.with_defaults(client={"lr": 0.5}).client["lr"].default
        0.5
        """
        check(self, Space(client, server), {})
        return replace(
            self,
            client={**self.client, **{k: replace(self.client[k], default=v) for k, v in (client or {}).items()}},
            server={**self.server, **{k: replace(self.server[k], default=v) for k, v in (server or {}).items()}},
        )


def defaults(hypers: Mapping[str, Hyper]) -> dict[str, Value]:
    """Return the untuned configuration."""
    return {name: hyper.default for name, hyper in hypers.items()}


def default_space(method: Method, of_task: Mapping[str, Hyper]) -> Space:
    """Return the space that is tuned when none is given: the method's own and the model's."""
    return Space(
        client={name: hyper.domain for name, hyper in {**method.client, **of_task}.items() if hyper.domain},
        server={name: hyper.domain for name, hyper in method.server.items() if hyper.domain},
    )


def check(method: Method, space: Space, of_task: Mapping[str, Hyper]) -> None:
    """Refuse hyperparameters that neither the method nor the model has, and values that are not legal."""
    for side, domains, known in (
        ("client", space.client, {**method.client, **of_task}),
        ("server", space.server, dict(method.server)),
    ):
        for name, domain in domains.items():
            if name not in known:
                hint = suggest(name, {other: hyper.about for other, hyper in known.items()})
                if name == "dropout":
                    hint = "; the model has no dropout layer: add one (torch.nn.Dropout) or leave dropout out"
                elif not hint.startswith("; known"):
                    hint += f" ({side} hyperparameters: {', '.join(known)})"
                raise SpecError(f"no {side} hyperparameter {name!r} in {method.name}{hint}")
            for value in domain.ends():
                rule = known[name].wrong(value)
                if rule:
                    raise SpecError(f"{side}.{name} = {value!r}, but {rule}")


def finite(*vectors: Vector) -> bool:
    """Return whether all entries are numbers."""
    return all(bool(np.isfinite(v).all()) for v in vectors)
