"""FedEx through secure aggregation: the server receives sums over the cohort, and each client's part under a mask.

FedEx's update needs only S_j = sum |V| v and N_j = sum |V| over the clients with candidate j, and the model's update
only sum |T| (w_i - w) and sum |T|. These are sums, which Flower's SecAgg+ (Bell et al., CCS 2020) can compute under
masks. The server sends w, theta and all candidates; the client draws its candidate, trains, and sends one vector of

    |T| (w_i - w), |T|, |V|, |V| loss and |V| error before and after, 1 if its update broke, 1 if it was cut to the
    range, S_1..S_k, N_1..N_k,

and, where the server's optimiser asks for numbers of a change (FedExP's |w_i - w|^2), a vector of |T| times these;
and, where the metric is pooled (F1, AUC), the sums that it is computed from, before and after.

The server, and anybody who reads its messages, still sees which nodes take part and when, how long they take, the sizes
of messages, the ids and model sizes of the handshake, which clients dropped out, and the sums. A sum over few clients
is not private: if one client alone drew candidate j, S_j and N_j are that client's (the server cannot tell which client
it is as long as clients draw from their own randomness). No metrics and no number of examples are sent in plaintext.

The masking is Flower's own and not of cryptographic strength: masks come from NumPy's Mersenne Twister with seeds of 32
bits, and to remove them the server is given the private seeds of the clients that took part. A server that wants to can
search for the other seeds and read a single update. What is prevented is that a server that follows the protocol, its
logs or its operators see an update by accident. Masks do not prevent a client from sending false values.

Cost: four round trips per round, and the arms of a study one after the other. Entries of the weighted update beyond
``clip``, |T| and |V| beyond ``most_examples`` and losses beyond ``most_loss`` are cut. Every entry is rounded at random
to a multiple of 2^-21 of its range, so a mean over n clients of about T examples each has an error of about
``clip * 5e-7 * most_examples / (T sqrt(n))``. What an optimiser asks for has a scale of its own, which nobody knows
beforehand: such a number is sent in three parts, like a number's digits, of which only the last is rounded. It may be
up to 10^9, and is right to 10^-9; the server learns the sum of each part.

Masks and rounding are random: runs are not equal to the bit.
"""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flwr.app import Context, Message
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.common import Code, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.compat.common.recorddict_compat import fitres_to_recorddict, recorddict_to_fitins

from fedtuner import tables, tuners
from fedtuner.core.method import Method
from fedtuner.core.model import Learner, Metrics, Task, Vector, Vectors
from fedtuner.core.records import Arm, Choice, Job, Plan, Report, Seen, Tally
from fedtuner.core.setup import Setup
from fedtuner.core.tuner import Floats, Tuner
from fedtuner.core.work import work
from fedtuner.errors import ClientError, SpecError
from fedtuner.federations import Client, Simulation
from fedtuner.flower.messages import text
from fedtuner.rng import stream
from fedtuner.space import Config, Space

FEWEST = 3  # clients in a sum: in a sum of two, each could subtract its own part
MOST = 1000  # clients in a sum: each adds up to 2^22, and Flower's sums are modulo 2^32
TOTALS = 8  # |T|, |V|, loss and error before and after, broken, cut: before the k-vectors
_PARTS = 3  # of a number that an optimiser asks for
_BASE, _TOP = 2.0**20, 2.0**30  # of a part, and the largest number

Extra = Callable[[Vector], Vectors]


@dataclass(frozen=True)
class SecAgg:
    """The ranges to which updates and losses are cut, and how many shares of a key unmask a sum."""

    clip: float = 1.0  # the largest entry of |T| / most_examples (w_i - w)
    most_examples: int = 1000  # |T| and |V| of a client: near the largest there are, as precision is lost beyond
    most_loss: float = 10.0
    shares: float | int = 1.0  # into which a key is split: a part of the cohort, or a number
    threshold: float | int = 0.6  # shares that unmask, at least 3 and more than half: a part, or a number

    def __post_init__(self) -> None:
        for name in ("clip", "most_examples", "most_loss"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
                raise SpecError(f"SecAgg.{name} = {value!r}, but must be a number > 0")
        for name in ("shares", "threshold"):
            value = getattr(self, name)
            whole = isinstance(value, int) and not isinstance(value, bool) and value >= FEWEST
            if not whole and not (isinstance(value, float) and 0 < value <= 1):
                raise SpecError(
                    f"SecAgg.{name} = {value!r}, but must be a part such as 0.6, or a whole number >= {FEWEST}"
                )

    def split(self, clients: int) -> tuple[int, int]:
        """Return into how many shares a key is split, and how many of them are needed to unmask a sum."""
        shares = min(clients, self.shares if isinstance(self.shares, int) else round(self.shares * clients))
        shares = max(shares, FEWEST)
        if shares < clients:
            shares += 1 - shares % 2  # SecAgg+ needs equally many neighbours on both sides
        part = self.threshold if isinstance(self.threshold, int) else math.ceil(self.threshold * shares - 1e-9)
        return shares, max(FEWEST, shares // 2 + 1, part)


@dataclass(frozen=True)
class Offer:
    """What a client draws its configuration from: the configurations by label, the tuner, and its belief, packed."""

    configs: Sequence[Config]
    tuner: Tuner = tuners.none
    belief: Vectors = field(default_factory=dict)

    @property
    def metric(self) -> str:
        """What the tuner's values are: errors, unless its own settings say that they are losses."""
        return str(tables.plain(self.tuner).get("metric", "error"))


@dataclass(frozen=True)
class Scale:
    """The largest numbers that a client's part of the sums can hold."""

    clip: float
    examples: int
    loss: float
    error: float
    value: float  # of a label

    @staticmethod
    def of(ranges: SecAgg, metric: str, worst: float) -> Scale:
        """Return the scale of a study; ``metric`` is what its tuner's values are, ``worst`` the worst error."""
        error = worst if math.isfinite(worst) else ranges.most_loss
        top = ranges.most_loss if metric == "loss" else error
        return Scale(ranges.clip, ranges.most_examples, ranges.most_loss, error, top)


def check(setup: Setup) -> None:
    """Refuse a cohort that is too small or too large for a sum, and a tuner that the clients do not have."""
    if setup.cohort < FEWEST:
        raise SpecError(f"cohort = {setup.cohort}, but a secure sum needs {FEWEST} clients: raise cohort")
    if setup.cohort > MOST:
        raise SpecError(f"cohort = {setup.cohort}, but a secure sum holds {MOST} clients at most: lower cohort")
    _tuner_of(tables.plain(setup.tuner))


def _tuner_of(table: Mapping[str, Any]) -> Tuner:
    """Return the tuner of a table, one of ours: a device must not import what a server names."""
    kind = table.get("kind")
    if kind not in tuners.KINDS:
        raise SpecError(f"tuner = {kind!r}, but with secure aggregation clients know only {tuple(tuners.KINDS)}")
    made: Tuner = tables.read(tuners.KINDS, table, "tuner", "fedex")
    return made


def order(plan: Plan, method: str, ranges: SecAgg, offer: Offer) -> str:
    """Return the instructions that a client needs for a round, beside w and the belief."""
    return text(
        {
            "method": method, "seed": plan.seed, "arm": plan.arm, "round": plan.round, "split": plan.split,
            "server": dict(plan.server), "progress": plan.progress, "configs": [dict(c) for c in offer.configs],
            "tuner": tables.plain(offer.tuner), "belief": list(offer.belief), "clip": ranges.clip,
            "most_examples": ranges.most_examples, "most_loss": ranges.most_loss,
        }
    )  # fmt: skip


def secure_train(
    app: ClientApp,
    task: Task | Learner,
    data: Callable[[Context], Client],
    find: Callable[[str], Method],
    secret: str | None,
) -> None:
    """Add a train function that does the work of a round under Flower's SecAgg+ to an app.

    The configuration is drawn from fresh randomness, so that the server cannot know it; with a ``secret`` the draw is
    repeatable, and unknown to the server as long as the secret is.
    """

    @app.train(mods=[secaggplus_mod])
    def train(message: Message, context: Context) -> Message:
        asked = recorddict_to_fitins(message.content, keep_input=True)
        w, *packed = parameters_to_ndarrays(asked.parameters)
        what = json.loads(str(asked.config["fedtuner"]))
        if w.shape != (task.size,):
            raise ClientError(f"the server's model has {w.size} entries, but this client's {task.size}")
        client, key = data(context), secrets.token_hex(16) if secret is None else secret
        seed, arm, round, configs = (what[name] for name in ("seed", "arm", "round", "configs"))
        tuner = _tuner_of(what["tuner"])
        # The belief is the arm's but for its configurations, which are the server's: only the label is drawn here.
        begun = tuner.begin(Arm(arm, configs[0], what["server"]), Space(), seed, None)
        belief = tuner.unpack(begun, dict(zip(what["belief"], packed, strict=True)))
        ((choice, *_),) = tuner.choose(belief, 1, lambda use: stream(seed, use, arm, round, client.id, key))
        job = Job(0, (Choice(choice.label, configs[choice.label]),))
        plan = Plan(seed, arm, round, what["split"], what["server"], what["progress"], w=w, slots={}, jobs=(job,))
        method = find(what["method"])
        report = work(method, Simulation(task, [client]), plan, job)
        ranges = SecAgg(what["clip"], what["most_examples"], what["most_loss"])
        scale = Scale.of(ranges, Offer(configs, tuner).metric, task.metric.worst)
        extra = asked_of(method, plan.server, task.trainable)
        value, sums = tuner.value(report.tried[0]), task.metric.sent
        vectors = contribution(report, value, len(configs), scale, extra, sums)
        # SecAgg+ sends the number of examples in plaintext: with 1 for each client it reveals nothing, and SecAgg+
        # returns the plain mean.
        result = FitRes(Status(Code.OK, ""), ndarrays_to_parameters(vectors), 1, {})
        return Message(fitres_to_recorddict(result, keep_input=False), reply_to=message)


def asked_of(method: Method, server: Config, trainable: int) -> Extra:
    """Return what the server's optimiser asks of a change."""
    return lambda change: method.optimiser(server).extra(change[:trainable])


def _nothing(change: Vector) -> Vectors:
    return {}


def contribution(
    report: Report, value: float, k: int, scale: Scale, extra: Extra = _nothing, sums: int = 0
) -> list[Floats]:
    """Return a client's part of the sums: its weighted change, and its numbers, all within [-clip, clip].

    ``value`` is what the tuner makes of its measurement, ``k`` how many labels there are, ``sums`` how many numbers a
    pooled metric is made of. Where that is not defined for the client, it says nothing of its label.
    """
    train = min(report.examples, scale.examples) / scale.examples if report.finite else 0.0
    valid = min(report.after.count, scale.examples) / scale.examples
    change = train * np.asarray(report.change, np.float64) if train else np.zeros(report.change.size)
    numbers = np.zeros(TOTALS + 2 * k)
    numbers[:2] = train, valid
    if valid:
        before, after, label = report.before, report.after, report.tried[0].label
        numbers[2:4] = valid * _part(before.loss, scale.loss), valid * _part(before.error, scale.error)
        numbers[4:6] = valid * _part(after.loss, scale.loss), valid * _part(after.error, scale.error)
        if not sums or not math.isnan(value):
            numbers[TOTALS + label] = valid * _part(value, scale.value)
            numbers[TOTALS + k + label] = valid
    kept = np.clip(change, -scale.clip, scale.clip)
    with np.errstate(over="ignore"):
        asked = extra(np.asarray(kept / (train or 1.0), np.float32))  # of the change as it is sent
    weighted = train * np.concatenate([np.zeros(0), *asked.values()], dtype=np.float64)
    sent = np.clip(weighted, -_TOP, _TOP)
    numbers[6:8] = not report.finite, bool((kept != change).any() or (sent != weighted).any())
    further = [scale.clip * np.concatenate(parts_of(sent))] if sent.size else []
    if sums:
        counted = min(1.0, scale.examples / max(report.after.count, 1))
        of_metric = np.concatenate([m.sums or np.zeros(sums) for m in (report.before, report.after)], dtype=np.float64)
        further.append(scale.clip * np.concatenate(parts_of(np.clip(counted * of_metric, -_TOP, _TOP))))
    return [kept, scale.clip * numbers, *further]


def shape_of(asked: Vectors, sums: int = 0) -> list[tuple[int]]:
    """Return the shapes of the vectors of what an optimiser asks for, and of a pooled metric's sums, if any."""
    size = sum(v.size for v in asked.values())
    return [(_PARTS * n,) for n in (size, 2 * sums) if n]


def parts_of(numbers: Floats) -> list[Floats]:
    """Return numbers of up to ``_TOP`` in parts of up to 1: all but the last are whole multiples of 1 / ``_BASE``."""
    parts, rest = [], numbers / _TOP
    for _ in range(_PARTS - 1):
        parts.append(np.trunc(rest * _BASE) / _BASE)
        rest = (rest - parts[-1]) * _BASE
    return [*parts, rest]


def number_of(parts: Floats) -> Floats:
    """Return the numbers of which these are the parts, or the sums of numbers from the sums of their parts."""
    *whole, last = parts.reshape(_PARTS, -1)
    for part in reversed(whole):  # a sum of multiples is one, up to the rounding of float64
        last = np.rint(part * _BASE) / _BASE + last / _BASE
    return np.asarray(last * _TOP)


def tally_of(mean: Sequence[Floats], clients: int, scale: Scale, asked: Vectors | None = None, sums: int = 0) -> Tally:
    """Return the tally of ``clients`` clients, from the mean of their contributions; counts are rounded.

    ``asked`` has vectors of the names and shapes of those that the optimiser asks for.
    """
    change, numbers, *further = (clients * np.asarray(part, np.float64) for part in mean)
    numbers = numbers / scale.clip
    held = (
        [tuple(map(float, part)) for part in number_of(further.pop() / scale.clip).reshape(2, -1)] if sums else [(), ()]
    )
    most, k = scale.examples, (numbers.size - TOTALS) // 2
    examples, validated = (max(0, round(float(x) * most)) for x in numbers[:2])
    broken, cut = (max(0, round(float(x))) for x in numbers[6:8])
    per_example = most / validated if validated else math.nan
    before, after = (
        Metrics(
            float(numbers[n] * per_example * scale.loss),
            float(numbers[n + 1] * per_example * scale.error),
            validated,
            of_metric,
        )
        for n, of_metric in zip((2, 4), held, strict=True)
    )
    values, counts = numbers[TOTALS : TOTALS + k] * most * scale.value, np.rint(numbers[TOTALS + k :] * most)
    seen = tuple(Seen((j,), (float(values[j] / counts[j]),), float(counts[j])) for j in range(k) if counts[j] > 0)
    return Tally(
        asked=clients,
        reported=clients,
        broken=broken,
        bounded=cut,
        trained=clients - broken,
        examples=examples,
        trainings=clients,
        change=np.asarray(change * (most / examples), np.float32) if examples else None,
        extra=_named(number_of(further[0] / scale.clip) * (most / examples), asked) if further and examples else {},
        before=before,
        after=after,
        seen=seen,
    )


def _named(numbers: Floats, asked: Vectors | None) -> Vectors:
    """Return numbers as vectors of these names and shapes."""
    made, start = {}, 0
    for name, vector in (asked or {}).items():
        made[name] = np.asarray(numbers[start : start + vector.size].reshape(vector.shape), np.float32)
        start += vector.size
    return made


def _part(value: float, top: float) -> float:
    """Return a value as a part of the largest; NaN and infinity count as the largest."""
    return min(max(value / top, -1.0), 1.0) if math.isfinite(value) else 1.0
