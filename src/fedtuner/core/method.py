"""The decomposition of the paper's Section 2: a method is local training Loc_c and an aggregation Agg_b.

``local`` is a pure function of the client, the round's plan and the client's job; ``aggregate`` of the server's state
and the round's tally. A method declares the vectors that it uses beside the model:

    memory   a client keeps them from one job to its next: ``Update.memory``, ``Job.remembered``
    extra    clients send them; the server gets their mean by |T| in ``Tally.extra``
    sums     names of those extra vectors that are summed instead, without weights, in ``Tally.sums``: over the clients
             whose memory is kept, so that the server can follow the sum of what all clients keep
    sends    names of the server's own vectors (``State.slots``) that clients receive in ``Plan.slots``
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sized
from dataclasses import dataclass, field, replace

import numpy as np

from fedtuner.checks import python
from fedtuner.core.model import Hyper, Rows, Trainer, Vector, Vectors
from fedtuner.core.records import Job, Plan, Tally
from fedtuner.errors import SpecError, brief, suggest
from fedtuner.rng import Generator
from fedtuner.space import Config, Float, OneMinus, Space, Value, unconditional

Shape = str | tuple[int, ...]  # a shape; or "trainable" or "all", for vectors as long as that part of w


@dataclass(frozen=True)
class Update:
    """The result of local training."""

    w: Vector
    extra: Vectors = field(default_factory=dict)  # vectors for the aggregation beside w
    memory: Vectors = field(default_factory=dict)  # what the client keeps for its next job
    personal: Vector | None = None  # the model that is validated after training; None: w


@dataclass(frozen=True)
class Server:
    """The server before an aggregation: the trainable part of the model, the slots, the number of rounds before."""

    w: Vector
    slots: Vectors
    round: int
    population: int  # number of all clients, not only the round's
    optimiser: Optimiser
    progress: float = 0.0  # the part of the arm's rounds that is done, where it has a horizon

    def step(self, change: Vector, tally: Tally, b: Config) -> tuple[Vector, Vectors]:
        """Return the model and slots after one step of the server's optimiser along ``change``."""
        return self.optimiser.step(self, change, tally, b)


@dataclass(frozen=True)
class Local:
    """A client as its local training sees it."""

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
        """Yield the rows of each batch: a new permutation every epoch, whose last batch may be smaller."""
        for _ in range(epochs):
            order = self.rng.permutation(self.examples)
            for start in range(0, self.examples, batch):
                rows = order[start : start + batch]
                if rows.size >= self.smallest_batch:
                    yield rows

    def gradient(self, w: Vector, rows: Rows) -> Vector:
        """Return the gradient of the mean loss on these rows, in an array that the next call may overwrite."""
        return self.trainer.gradient(w, rows)

    def full_gradient(self, w: Vector, most: int = 1024) -> Vector:
        """Return the gradient of the mean loss over all training examples, as a new array; 0 if they are too few.

        It is computed in chunks of almost equal size of at most ``most`` rows, so that none is too small to train on.
        """
        total = np.zeros(self.trainable, np.float32)
        if self.examples < self.smallest_batch:
            return total
        for rows in np.array_split(np.arange(self.examples), max(1, -(-self.examples // most))):
            total += self.gradient(w, rows) * np.float32(len(rows) / self.examples)
        return total


# (job, |T|, memory) -> what a client sends for the aggregation, and what it remembers
Recount = Callable[[Job, int, Vectors], tuple[Vectors, Vectors]]


def _nothing(change: Vector) -> Vectors:
    return {}


@dataclass(frozen=True)
class Optimiser:
    """A server optimiser: a step along the mean change, and the hyperparameters that it reads."""

    name: str
    paper: str
    step: Callable[[Server, Vector, Tally, Config], tuple[Vector, Vectors]]
    hypers: Mapping[str, Hyper] = field(default_factory=dict)
    extra: Callable[[Vector], Vectors] = _nothing  # vectors that a client sends, computed from its change; averaged


@dataclass(frozen=True)
class Method:
    """A federated method: Loc_c, Agg_b, and their hyperparameters."""

    name: str
    paper: str
    local: Callable[[Local, Plan, Job], Update]
    aggregate: Callable[[Server, Tally, Config], tuple[Vector, Vectors]]
    client: Mapping[str, Hyper]
    server: Mapping[str, Hyper]
    optimisers: Mapping[str, Optimiser]  # by the values of the server's hyperparameter "optimiser"
    sends: tuple[str, ...] = ()  # the server's slots that travel to the clients
    extra: Mapping[str, Shape] = field(default_factory=dict)
    sums: tuple[str, ...] = ()  # those of extra that are summed instead of averaged
    memory: Mapping[str, Shape] = field(default_factory=dict)
    recount: Recount | None = None  # computes ``extra`` from |T| and what a client remembers, where that can be
    mean_step: bool = True  # whether the server steps along the mean change itself
    plain: bool = False  # whether a ``Learner``'s own training may replace its local training
    given: frozenset[str] = frozenset()  # the server's hyperparameters that ``with_defaults`` has set

    def __repr__(self) -> str:
        return f"<Method: {self.name} ({self.paper})>"

    def optimiser(self, b: Config) -> Optimiser:
        """Return the server optimiser that a configuration names."""
        return self.optimisers[str(b["optimiser"])]

    def with_defaults(self, client: Config | None = None, server: Config | None = None) -> Method:
        """Return the method with other default values; another optimiser brings its own for those not given.

        >>> from fedtuner import methods
        >>> methods.fedavg.with_defaults(client={"lr": 0.5}).client["lr"].default
        0.5
        """
        check(self, Space(client, server), {})
        for side, values in (("client", client or {}), ("server", server or {})):
            for name, value in values.items():
                if not isinstance(python(value), (int, float, str)):
                    raise SpecError(f"{side}.{name} = {brief(value)}, but a default is one value")
        given = dict(server or {})
        new = self.stepping_by(str(given["optimiser"])) if "optimiser" in given else self
        return replace(
            new,
            client={**new.client, **{k: replace(new.client[k], default=v) for k, v in (client or {}).items()}},
            server={**new.server, **{k: replace(new.server[k], default=v) for k, v in given.items()}},
            given=new.given | given.keys(),
        )

    def with_optimiser(self, optimiser: Optimiser) -> Method:
        """Return the method with a new server optimiser, and its hyperparameters, as the default."""
        known = {**self.optimisers, optimiser.name: optimiser}
        return replace(self, optimisers=known)._default_to(optimiser.name)

    def stepping_by(self, name: str) -> Method:
        """Return the method with another of its optimisers as the default.

        The optimiser's hyperparameters get its defaults and ranges, except those that ``with_defaults`` was given.
        """
        return self if self.server["optimiser"].default == name else self._default_to(name)

    def _default_to(self, name: str) -> Method:
        options = replace(self.server["optimiser"], default=name, options=tuple(self.optimisers))
        reads = {k: hyper for k, hyper in self.optimisers[name].hypers.items() if k not in self.given}
        return replace(self, server={**self.server, **reads, "optimiser": options})


def defaults(hypers: Mapping[str, Hyper]) -> dict[str, Value]:
    """Return the untuned configuration."""
    return {name: hyper.default for name, hyper in hypers.items()}


def default_space(method: Method, of_model: Mapping[str, Hyper]) -> Space:
    """Return the space that is tuned when none is given: the method's and the model's hyperparameters."""
    return Space(
        client={name: hyper.domain for name, hyper in {**method.client, **of_model}.items() if hyper.domain},
        server={name: hyper.domain for name, hyper in method.server.items() if hyper.domain},
    )


def check(method: Method, space: Space, of_model: Mapping[str, Hyper]) -> None:
    """Refuse hyperparameters that neither the method nor the model has, and values that are not legal."""
    for side, domains, known in (
        ("client", space.client, {**method.client, **of_model}),
        ("server", space.server, dict(method.server)),
    ):
        for name, domain in domains.items():
            if name not in known:
                hint = suggest(name, {other: hyper.about for other, hyper in known.items()})
                if name == "dropout":
                    hint = "; the model has no dropout layer: add one (torch.nn.Dropout) or leave dropout out"
                elif not hint.startswith("; known"):
                    hint += f" ({side} hyperparameters: {', '.join(known)})"
                raise SpecError(f"no {side} hyperparameter {brief(name)} in {method.name}{hint}")
            for value in domain.ends():
                rule = known[name].wrong(value)
                if rule:
                    raise SpecError(f"{side}.{name} = {brief(value)}, but {rule}")
            if known[name].whole and isinstance(unconditional(domain), (Float, OneMinus)):
                low, high = domain.ends()
                said = f"{side}.{name} = {type(unconditional(domain)).__name__}({low:g}, {high:g})"
                raise SpecError(f"{said}, but must be a whole number: give Int({low:.0f}, {high:.0f})")
