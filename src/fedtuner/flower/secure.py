"""FedEx through secure aggregation: the server receives sums over the cohort, and each client's part under a mask.

FedEx's update needs only S_j = sum |V| v and N_j = sum |V| over the clients with candidate j, and the model's update
only sum |T| (w_i - w) and sum |T|. These are sums, which Flower's SecAgg+ (Bell et al., CCS 2020) can compute under
masks. The server sends w, theta and all candidates; the client draws its candidate, trains, and sends one vector of

    |T| (w_i - w), |T|, |V|, |V| loss and |V| error before and after, 1 if its update broke, 1 if it was cut to the
    range, S_1..S_k, N_1..N_k.

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
``clip * 5e-7 * most_examples / (T sqrt(n))``. Masks and rounding are random: runs are not equal to the bit.
"""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import Context, Message
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.common import Code, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.compat.common.recorddict_compat import fitres_to_recorddict, recorddict_to_fitins

from fedtuner import fedex as fx
from fedtuner.arm import Setting, signal, work
from fedtuner.errors import ClientError, SpecError
from fedtuner.federation import Client, Report, Simulation
from fedtuner.fedex import Belief, FedEx, Floats
from fedtuner.methods import fedavg, fedprox, reptile
from fedtuner.methods.base import Job, Method
from fedtuner.rng import stream
from fedtuner.task import Metrics, Task, Vector

LINEAR = (fedavg, fedprox, reptile)  # methods whose server needs nothing but the mean change
FEWEST = 3  # clients in a sum: in a sum of two, each could subtract its own part
MOST = 1000  # clients in a sum: each adds up to 2^22, and Flower's sums are modulo 2^32
_TOTALS = 8  # |T|, |V|, loss and error before and after, broken, cut: before the k-vectors


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
class Sums:
    """The sums of a round: all that the server receives."""

    clients: int
    broken: int
    cut: int  # clients whose change was beyond the clip
    examples: int  # sum |T|
    change: Floats  # sum |T| (w_i - w) / sum |T|
    before: Metrics
    after: Metrics
    values: Floats  # S_j
    counts: Floats  # N_j


def check(method: Method, fedex: FedEx, cohort: int | None) -> None:
    """Raise for a method, a tuner or a cohort that sums cannot serve."""
    if not any(method.local is m.local and method.aggregate is m.aggregate for m in LINEAR):
        raise SpecError(
            f"method = {method.name}, but with secure aggregation the server sees only a sum of updates: use one of "
            f"{', '.join(m.name for m in LINEAR)}"
        )
    if fedex.tried > 1:
        raise SpecError(f"fedex.tries = {fedex.tries}, but with secure aggregation a client tries one candidate")
    if cohort is not None and cohort < FEWEST:
        raise SpecError(f"cohort = {cohort}, but a secure sum needs {FEWEST} clients: raise cohort")
    if cohort is not None and cohort > MOST:
        raise SpecError(f"cohort = {cohort}, but a secure sum holds {MOST} clients at most: lower cohort")


def order(setting: Setting, ranges: SecAgg, arm: int, round: int, server: Any, candidates: Any, split: str) -> str:
    """Return the instructions that a client needs for a round, beside w and theta."""
    return json.dumps(
        {
            "method": setting.method.name, "seed": setting.seed, "arm": arm, "round": round, "server": dict(server),
            "candidates": [dict(c) for c in candidates], "split": split, "cutoff": setting.fedex.cutoff,
            "metric": setting.fedex.metric, "signal": setting.fedex.signal, "clip": ranges.clip,
            "most_examples": ranges.most_examples, "most_loss": ranges.most_loss,
        }
    )  # fmt: skip


def secure_train(
    app: ClientApp,
    task: Task,
    data: Callable[[Context], Client],
    find: Callable[[str], Method],
    secret: str | None,
) -> None:
    """Add a train function that does the work of a round under Flower's SecAgg+ to an app.

    The candidate is drawn from fresh randomness, so that the server cannot know it; with a ``secret`` the draw is
    repeatable, and unknown to the server as long as the secret is.
    """

    @app.train(mods=[secaggplus_mod])
    def train(message: Message, context: Context) -> Message:
        asked = recorddict_to_fitins(message.content, keep_input=True)
        w, log_theta = parameters_to_ndarrays(asked.parameters)
        what = json.loads(str(asked.config["fedtuner"]))
        if w.shape != (task.size,):
            raise ClientError(f"the server's model has {w.size} entries, but this client's {task.size}")
        client = data(context)
        key = secrets.token_hex(16) if secret is None else secret
        rng = stream(what["seed"], "choose", what["arm"], what["round"], client.id, key)
        j = fx.choose(Belief(log_theta), 1, rng, what["cutoff"])[0]
        job = Job(
            what["seed"], what["arm"], what["round"], 0, j, what["candidates"][j], what["server"], w,
            split=what["split"],
        )  # fmt: skip
        report = work(find(what["method"]), Simulation(task, [client]), job)
        ranges = SecAgg(what["clip"], what["most_examples"], what["most_loss"])
        settings = FedEx(metric=what["metric"], signal=what["signal"])
        vectors = contribution(report, w, log_theta.size, settings, ranges, task.worst_error)
        # SecAgg+ sends the number of examples in plaintext: with 1 for each client it reveals nothing, and SecAgg+
        # returns the plain mean.
        result = FitRes(Status(Code.OK, ""), ndarrays_to_parameters(vectors), 1, {})
        return Message(fitres_to_recorddict(result, keep_input=False), reply_to=message)


def contribution(
    report: Report, w: Vector, k: int, settings: FedEx, ranges: SecAgg, worst_error: float
) -> list[Floats]:
    """Return a client's part of the sums: its weighted change, and its numbers, all within [-clip, clip]."""
    most, (top_loss, top_error) = ranges.most_examples, _tops(ranges, worst_error)
    train = min(report.examples, most) / most if report.finite else 0.0
    valid = min(report.after.count, most) / most
    change = train * (np.asarray(report.update.w, np.float64) - w) if train else np.zeros(w.size)
    numbers = np.zeros(_TOTALS + 2 * k)
    numbers[:2] = train, valid
    if valid:
        before, after = report.before, report.after
        numbers[2:4] = valid * _part(before.loss, top_loss), valid * _part(before.error, top_error)
        numbers[4:6] = valid * _part(after.loss, top_loss), valid * _part(after.error, top_error)
        top = top_loss if settings.metric == "loss" else top_error
        numbers[_TOTALS + report.candidate] = valid * _part(signal(settings, report), top)
        numbers[_TOTALS + k + report.candidate] = valid
    kept = np.clip(change, -ranges.clip, ranges.clip)
    numbers[6:8] = not report.finite, bool((kept != change).any())
    return [kept, ranges.clip * numbers]


def totals(mean: Sequence[Floats], clients: int, settings: FedEx, ranges: SecAgg, worst_error: float) -> Sums:
    """Return the sums over ``clients`` clients, from the mean of their contributions; counts are rounded."""
    change, numbers = (clients * np.asarray(part, np.float64) for part in mean)
    numbers = numbers / ranges.clip
    most, (top_loss, top_error) = ranges.most_examples, _tops(ranges, worst_error)
    k = (numbers.size - _TOTALS) // 2
    examples, validated = (max(0, round(float(x) * most)) for x in numbers[:2])
    counts = np.maximum(0.0, np.rint(numbers[_TOTALS + k :] * most))
    top = top_loss if settings.metric == "loss" else top_error
    values = np.where(counts > 0, numbers[_TOTALS : _TOTALS + k] * most * top, 0.0)
    per_example = most / validated if validated else math.nan
    before, after = (
        Metrics(float(numbers[n] * per_example * top_loss), float(numbers[n + 1] * per_example * top_error), validated)
        for n in (2, 4)
    )
    change = change * (most / examples) if examples else np.zeros_like(change)
    broken, cut = (max(0, round(float(x))) for x in numbers[6:8])
    return Sums(clients, broken, cut, examples, change, before, after, values, counts)


def _tops(ranges: SecAgg, worst_error: float) -> tuple[float, float]:
    """Return the largest loss and the largest error that a contribution can hold."""
    return ranges.most_loss, worst_error if math.isfinite(worst_error) else ranges.most_loss


def _part(value: float, top: float) -> float:
    """Return a value as a part of the largest; NaN and infinity count as the largest."""
    return min(max(value / top, -1.0), 1.0) if math.isfinite(value) else 1.0
