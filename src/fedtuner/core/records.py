"""The records that the schedule, the server and its clients exchange. All are frozen.

Arm     the hyperparameters of one training        State   an arm after a number of rounds
Plan    what all clients of a round receive        Job     what one client receives besides
Report  what a client sends back                   Tally   what the server makes of a round's reports
Record  what the journal keeps of a round          Key     (arm, round): the name of a state
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from fedtuner import checks
from fedtuner.core.model import NOTHING, Metrics, Vector, Vectors, finite
from fedtuner.errors import SpecError, brief
from fedtuner.space import Config

Key = tuple[int, int]  # (arm, round)


@dataclass(frozen=True)
class Arm:
    """The hyperparameters of one federated training: the server's b, and the client configuration c_1."""

    id: int
    client: Config
    server: Config
    parent: Key | None = None  # the state that it continues; None: it begins with new weights
    horizon: int | None = None  # the round at which its training ends, where the schedule knows it


@dataclass(frozen=True)
class Blob:
    """The name of a client's memory in the store, where it is too large for the state."""

    arm: int
    client: int
    round: int


Memory = Mapping[int, Vectors | Blob]  # by client


@dataclass(frozen=True)
class State:
    """An arm after ``round`` rounds; no other file or object is needed to continue it."""

    round: int
    w: Vector
    belief: Any  # what the tuner has learned; FedEx: candidates and theta
    slots: Vectors = field(default_factory=dict)  # the server's vectors, such as momentum
    memory: Memory = field(default_factory=dict)  # vectors that clients keep between rounds
    ended: str = ""  # "diverged" or "stalled": it gets no more rounds; empty otherwise
    broken: int = 0  # latest rounds in a row in which all updates were broken (not finite)
    unusable: Mapping[int, int] = field(default_factory=dict)  # by client: latest replies in a row that were unusable


@dataclass(frozen=True)
class Choice:
    """A client configuration, and its label: the number by which the tuner knows it."""

    label: int
    config: Config


@dataclass(frozen=True)
class Job:
    """What one client receives. Its update is that of the first choice; further choices are only measured."""

    client: int
    choices: tuple[Choice, ...]
    memory: Vectors | Blob = field(default_factory=dict)  # what it kept from its last job

    @property
    def config(self) -> Config:
        """c: the first choice."""
        return self.choices[0].config

    @property
    def remembered(self) -> Vectors:
        """The client's memory, which ``memory.fetch`` has read if it is a blob."""
        if isinstance(self.memory, Blob):
            raise SpecError(f"{self.memory} must be fetched from the store before the work")
        return self.memory


@dataclass(frozen=True)
class Plan:
    """One round of one arm: what all its clients receive, and a job for each."""

    seed: int
    arm: int
    round: int  # number of rounds before this one
    split: str  # the clients' data on which models are validated
    server: Config  # b, for methods whose local training reads it
    progress: float  # the part of the arm's own rounds that is done, from 0 to 1; 0 without a horizon
    w: Vector
    slots: Vectors
    jobs: tuple[Job, ...]

    def report(self, job: Job, w: Vector, examples: int, *measured: tuple[Metrics, Metrics]) -> Report:
        """Return the report of a client that trained to ``w``: for training loops outside fedtuner.

        ``examples`` is |T|. ``measured`` has, for each of the job's choices, the validation metrics before and after
        local training.
        """
        count = checks.whole("examples", _index(examples), 0)
        change = self._change(w)
        return Report(job.client, change, {}, {}, count, self.tried(job, *measured), finite=finite(change))

    def tried(self, job: Job, *measured: tuple[Metrics, Metrics]) -> tuple[Tried, ...]:
        """Return a client's metrics before and after local training with the labels of the job's choices."""
        if len(measured) != len(job.choices):
            raise SpecError(f"{len(measured)} pairs of metrics, but the job has {len(job.choices)} choices")
        for pair in measured:
            if not isinstance(pair, Sequence) or len(pair) != 2 or not all(map(_are_metrics, pair)):
                rule = "must be Metrics(loss, error, count) before local training, and after it"
                raise SpecError(f"client {job.client}: {brief(pair)}, but {rule}")
        return tuple(Tried(c.label, *pair) for c, pair in zip(job.choices, measured, strict=True))

    def tally(
        self, change: Vector | None, examples: int, before: Metrics, after: Metrics,
        values: Mapping[int, tuple[float, float]], reported: int | None = None,
        *, extra: Mapping[str, Any] | None = None,
    ) -> Tally:  # fmt: skip
        """Return the tally of a round whose reports were aggregated elsewhere: for servers outside fedtuner.

        ``change`` is the mean of w_i - w by |T|, None if nobody trained; ``examples`` is the sum of |T|; ``before`` and
        ``after`` are means by |V|. ``values`` has for each label the mean of ``tuner.value`` by |V| over the clients
        that tried it, and the sum of their |V|. ``reported`` is by default the number of jobs. ``extra`` has the means
        by |T| of what the server's optimiser asks of each client, ``method.optimiser(plan.server).extra(w_i - w)``:
        FedExP does without, but then steps no further than the mean.
        """
        reported = len(self.jobs) if reported is None else reported
        configs = {choice.label: choice.config for job in self.jobs for choice in job.choices}
        unknown = sorted(set(values) - set(configs))
        if unknown:
            raise SpecError(f"values of the labels {unknown}, but the plan has {sorted(configs)}")
        seen = tuple(Seen((j,), (value,), weight, (configs[j],)) for j, (value, weight) in sorted(values.items()))
        return Tally(
            asked=len(self.jobs), reported=reported, trained=reported, examples=examples, trainings=reported,
            change=None if change is None else self._fitting(change, "change"), before=before, after=after, seen=seen,
            extra=_vectors({} if extra is None else extra),
        )  # fmt: skip

    def _change(self, w: Vector) -> Vector:
        with np.errstate(over="ignore", invalid="ignore"):
            return self._fitting(w, "w") - self.w

    def _fitting(self, vector: Vector, name: str) -> Vector:
        if np.shape(vector) != self.w.shape:
            shape, remedy = np.shape(vector), "model.vector(arrays) makes it of named arrays"
            raise SpecError(f"{name} is of shape {shape}, but must be of {self.w.shape}: {remedy}")
        return _real(vector, name)


def _real(vector: Any, name: str) -> Vector:
    """Return a vector of any library as NumPy's."""
    if (kind := np.asarray(vector).dtype).kind not in "fiub":
        raise SpecError(f"{name} is of type {kind}, but must be of real numbers")
    return np.asarray(vector, np.float32)


def _vectors(extra: Any) -> Vectors:
    """Return vectors by name; a number is a vector of one."""
    if not isinstance(extra, Mapping) or not all(isinstance(name, str) for name in extra):
        raise SpecError(f"extra = {brief(extra)}, but must be vectors by name, such as the optimiser's extra() gives")
    return {name: np.atleast_1d(_real(value, f"extra[{name!r}]")) for name, value in extra.items()}


def _index(value: Any) -> Any:
    """Return a whole number of any library as Python's; other values as they are."""
    try:
        return value if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return value


def _are_metrics(value: Any) -> bool:
    """Return whether something is what a client has measured: real numbers, NaN and infinity too, and |V|."""
    if not isinstance(value, Metrics):
        return False
    real = all(isinstance(x, (int, float, np.number)) and not isinstance(x, bool) for x in (value.loss, value.error))
    return real and checks.is_whole(value.count) and value.count >= 0


@dataclass(frozen=True)
class Tried:
    """A client's validation metrics with one configuration, before and after local training."""

    label: int
    before: Metrics  # of the server's model; its count is |V|
    after: Metrics  # of the model after local training


@dataclass(frozen=True)
class Report:
    """What a client sends to the server after its work."""

    client: int
    change: Vector  # w_i - w
    extra: Vectors  # vectors for the aggregation beside the change
    memory: Vectors  # what the client keeps for its next job
    examples: int  # |T|
    tried: tuple[Tried, ...]  # one for each of the job's choices; the change comes from the first
    finite: bool  # whether change and extra are finite

    @property
    def remembered(self) -> bool:
        """Whether the client's memory is kept: it, too, is finite."""
        return self.finite and finite(*self.memory.values())

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
    """What a tuner learns from: labels and values of configurations, of one client or as the mean of several."""

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
    """A round's reports as the server uses them: means of vectors by |T|, means of metrics by |V|."""

    asked: int = 0
    reported: int = 0
    broken: int = 0  # updates that were not finite
    bounded: int = 0  # reports that a screen has changed or dropped
    trained: int = 0  # clients whose change is in the mean: the update is finite and |T| > 0
    examples: int = 0  # sum of |T| over the finite updates
    trainings: int = 0  # local trainings done: one per client and configuration tried
    change: Vector | None = None  # mean of w_i - w; None: nobody trained
    extra: Vectors = field(default_factory=dict)  # means
    sums: Vectors = field(default_factory=dict)  # unweighted, of the extra vectors that ``Method.sums`` names
    before: Metrics = NOTHING
    after: Metrics = NOTHING
    seen: tuple[Seen, ...] = ()  # one per client in plan order; one per label where the server sees only sums
    memory: Mapping[int, Vectors] = field(default_factory=dict)
    breakdown: Mapping[str, tuple[Metrics, Metrics]] = field(default_factory=dict)  # before and after: core/across.py
    rows: tuple[Row, ...] = ()  # one per client; empty where the server sees only sums
    usable: Mapping[int, bool] = field(default_factory=dict)  # by client: whether a device's reply could be used


@dataclass(frozen=True)
class Summary:
    """What a record keeps of a tuner's belief."""

    entropy: float = 0.0  # in nats
    mode: int = 0  # label of the most probable configuration
    confidence: float = 1.0  # its probability


@dataclass(frozen=True)
class Record:
    """What happened in one round of one arm."""

    arm: int
    round: int
    clients: int  # in the plan
    dropped: int  # did not report
    broken: int  # updates that were not finite
    bounded: int  # reports that a screen has changed or dropped
    examples: int  # sum of |T| over the finite updates
    validated: int  # sum of |V| over the reports
    trainings: int  # local trainings done
    loss_before: float  # means by |V|, before local training (global) and after it (personalized)
    loss_after: float
    error_before: float
    error_after: float
    loss: float  # of the study's target, global or personalized; infinite once the arm has diverged
    error: float
    entropy: float  # of theta after the round, in nats
    mode: int  # theta's most probable candidate
    confidence: float  # its probability
    diverged: bool
    rows: tuple[Row, ...] = ()  # one per client; empty where the server sees only sums
    unusable: tuple[str | int, ...] = ()  # the devices whose reply could not be used

    @property
    def undefined(self) -> int:
        """How many clients have validated and yet have no error: the metric is not defined for them."""
        return sum(row.validated > 0 and math.isnan(row.error_after) for row in self.rows)
