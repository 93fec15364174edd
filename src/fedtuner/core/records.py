"""The records of a study: all that travels between the schedule, the server and its clients. All are frozen.

Arm     the hyperparameters of one training        State   an arm after some round
Plan    what all clients of a round are sent       Job     what one client is sent beside it
Report  what a client sends back                   Tally   what the server makes of a round's reports
Record  what is kept of a round                    Key     (arm, round): the name of a state
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from fedtuner import checks
from fedtuner.core.model import NOTHING, Metrics, Vector, Vectors, finite
from fedtuner.errors import SpecError
from fedtuner.space import Config

Key = tuple[int, int]  # (arm, round)


@dataclass(frozen=True)
class Arm:
    """The hyperparameters of one training: the server's b, and the client configuration that its tuner starts from."""

    id: int
    client: Config
    server: Config
    parent: Key | None = None  # the state that it goes on from; None: it begins with fresh weights
    horizon: int | None = None  # the round at which its training ends, if that is known from the start


@dataclass(frozen=True)
class Blob:
    """The name under which the store keeps a client's vectors that are too large for a state."""

    arm: int
    client: int
    round: int


Memory = Mapping[int, Vectors | Blob]  # by client


@dataclass(frozen=True)
class State:
    """An arm after ``round`` rounds: saving it saves everything."""

    round: int
    w: Vector
    belief: Any  # the tuner's
    slots: Vectors = field(default_factory=dict)  # the server's vectors
    memory: Memory = field(default_factory=dict)  # the clients' vectors
    ended: str = ""  # why it gets no more rounds: "diverged", "stalled"; empty while it can go on
    broken: int = 0  # rounds in a row, up to this one, in which every update was broken


@dataclass(frozen=True)
class Choice:
    """A client configuration that a client is to use, and the label by which the tuner knows it."""

    label: int
    config: Config


@dataclass(frozen=True)
class Job:
    """What one client is sent. The first choice trains the model; what others would give is only measured."""

    client: int
    choices: tuple[Choice, ...]
    memory: Vectors | Blob = field(default_factory=dict)  # what the client remembers of its last job

    @property
    def config(self) -> Config:
        """The configuration that trains the model: c."""
        return self.choices[0].config

    @property
    def remembered(self) -> Vectors:
        """What the client remembers; whoever does the work has fetched it from the store's blobs."""
        if isinstance(self.memory, Blob):
            raise SpecError(f"{self.memory} must be fetched from the store before the work")
        return self.memory


@dataclass(frozen=True)
class Plan:
    """One round of one arm: what all its clients are sent, and a job for each."""

    seed: int
    arm: int
    round: int  # rounds done before this one
    split: str  # the data that models are validated on
    server: Config  # b: some methods' local training must know it
    progress: float  # the part of the arm's horizon that is done; 0 without a horizon
    w: Vector
    slots: Vectors
    jobs: tuple[Job, ...]

    def report(self, job: Job, w: Vector, examples: int, *measured: tuple[Metrics, Metrics]) -> Report:
        """Return the report of a client whose training gave ``w``: for training loops outside fedtuner.

        ``examples`` is |T|; ``measured`` are the metrics on validation data before and after local training, for each
        of the job's choices.
        """
        count = operator.index(examples)
        checks.whole("examples", count, 0)
        change = self._change(w)
        return Report(job.client, change, {}, {}, count, self.tried(job, *measured), finite(change))

    def tried(self, job: Job, *measured: tuple[Metrics, Metrics]) -> tuple[Tried, ...]:
        """Return what a client measured, before and after, with each of the job's choices: what a tuner values."""
        if len(measured) != len(job.choices):
            raise SpecError(f"{len(measured)} pairs of metrics, but the job has {len(job.choices)} choices")
        return tuple(Tried(c.label, *pair) for c, pair in zip(job.choices, measured, strict=True))

    def tally(
        self,
        change: Vector | None,
        examples: int,
        before: Metrics,
        after: Metrics,
        values: Mapping[int, tuple[float, float]],
        reported: int | None = None,
    ) -> Tally:
        """Return the tally of a round whose reports were added up elsewhere: for servers outside fedtuner.

        ``change`` is the mean of w_i - w by |T|, None if nobody trained; ``examples`` the sum of |T|; ``before`` and
        ``after`` are means by |V|. ``values`` are, by label, what ``tuner.value`` says of those who tried it: the mean
        by |V|, and the sum of |V|. All who were asked count as ``reported`` unless it is said.
        """
        there = len(self.jobs) if reported is None else reported
        configs = {choice.label: choice.config for job in self.jobs for choice in job.choices}
        odd = sorted(set(values) - set(configs))
        if odd:
            raise SpecError(f"values of the labels {odd}, but the plan has {sorted(configs)}")
        seen = tuple(Seen((j,), (value,), weight, (configs[j],)) for j, (value, weight) in sorted(values.items()))
        return Tally(
            asked=len(self.jobs), reported=there, trained=there, examples=examples, trainings=there,
            change=None if change is None else self._fitting(change, "change"), before=before, after=after, seen=seen,
        )  # fmt: skip

    def _change(self, w: Vector) -> Vector:
        with np.errstate(over="ignore", invalid="ignore"):
            return self._fitting(w, "w") - self.w

    def _fitting(self, vector: Vector, name: str) -> Vector:
        if np.shape(vector) != self.w.shape:
            shape, remedy = np.shape(vector), "model.vector(arrays) makes it of named arrays"
            raise SpecError(f"{name} is of shape {shape}, but must be of {self.w.shape}: {remedy}")
        return np.asarray(vector, np.float32)


@dataclass(frozen=True)
class Tried:
    """What a client measured with one configuration, before and after local training."""

    label: int
    before: Metrics  # of the server's model on the client's validation data; its count is |V|
    after: Metrics  # of the model after local training


@dataclass(frozen=True)
class Report:
    """What a client sends to the server after its work."""

    client: int
    change: Vector  # w_i - w
    extra: Vectors  # further vectors for the aggregation
    memory: Vectors  # what the client keeps for its next job
    examples: int  # |T|
    tried: tuple[Tried, ...]  # one for each of the job's choices; the first is that of the change
    finite: bool  # whether all entries of change and extra are finite

    @property
    def before(self) -> Metrics:
        """Metrics of the server's model."""
        return self.tried[0].before

    @property
    def after(self) -> Metrics:
        """Metrics of the model that the client trained."""
        return self.tried[0].after


@dataclass(frozen=True)
class Seen:
    """What a tuner learns from: labels of configurations and their values, of one client or the mean of several."""

    labels: tuple[int, ...]
    values: tuple[float, ...]
    weight: float  # |V|
    configs: tuple[Config, ...] = ()


class Row(NamedTuple):
    """One client's part in a round, as the journal keeps it."""

    client: str | int
    label: int
    examples: int  # |T|
    validated: int  # |V|
    loss_before: float
    loss_after: float
    error_before: float
    error_after: float


@dataclass(frozen=True)
class Tally:
    """A round's reports as the server uses them.

    Means of vectors weigh clients by |T|, means of metrics by |V|.
    """

    asked: int = 0
    reported: int = 0
    broken: int = 0  # reported an update that is not finite
    bounded: int = 0  # reports that a screen has changed or dropped
    trained: int = 0  # clients whose change is in the mean
    examples: int = 0  # sum of |T| over those who sent a finite update
    trainings: int = 0  # local trainings done: one per client and configuration tried
    change: Vector | None = None  # mean change of w; None: nobody trained
    extra: Vectors = field(default_factory=dict)  # means
    sums: Vectors = field(default_factory=dict)  # sums over clients, without weights, of what the method declares
    before: Metrics = NOTHING
    after: Metrics = NOTHING
    seen: tuple[Seen, ...] = ()  # per client in plan order; where only sums are known, one per label
    memory: Mapping[int, Vectors] = field(default_factory=dict)
    rows: tuple[Row, ...] = ()  # per client; empty where only sums are known


@dataclass(frozen=True)
class Summary:
    """What a record keeps of a tuner's belief."""

    entropy: float = 0.0  # in nats
    mode: int = 0  # the label of the most probable configuration, and its probability
    confidence: float = 1.0


@dataclass(frozen=True)
class Record:
    """What happened in one round of one arm."""

    arm: int
    round: int
    clients: int  # planned
    dropped: int  # did not report
    broken: int  # reported an update that is not finite
    bounded: int  # reports that a screen has changed or dropped
    examples: int  # |T| of those aggregated
    validated: int  # |V| of those who reported
    trainings: int  # local trainings done
    loss_before: float  # |V|-weighted means before local training (global) and after it (personalized)
    loss_after: float
    error_before: float
    error_after: float
    loss: float  # of the target (global or personalized), by which arms are compared; infinite once diverged
    error: float
    entropy: float  # of theta after the round, in nats
    mode: int  # theta's most probable candidate, and its probability
    confidence: float
    diverged: bool
    rows: tuple[Row, ...] = ()  # per client, where it is known
