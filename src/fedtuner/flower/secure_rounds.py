"""The executor over a fleet with secure aggregation: one arm and one round after the other, by Flower's SecAgg+.

Flower's workflow completes the sum without a client that drops out after the keys were exchanged. If a client drops out
earlier, the workflow ends without a sum, and the round is tried again without that client.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.common import FitIns, FitRes, NDArrays, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server.compat.legacy_context import LegacyContext
from flwr.server.strategy import Strategy
from flwr.server.workflow import SecAggPlusWorkflow
from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD, Key
from flwr.serverapp import Grid

from fedtuner.core.executor import Advance, Progress, Stop
from fedtuner.core.metric import Metric, Metrics, mean_metrics
from fedtuner.core.model import Vectors
from fedtuner.core.records import Plan, Tally
from fedtuner.core.round import Round
from fedtuner.core.store import Blobs
from fedtuner.errors import FleetError, SpecError, one_line
from fedtuner.flower import secure
from fedtuner.flower.exchange import UNDECODABLE
from fedtuner.flower.messages import reason_of
from fedtuner.flower.possible import Limits, impossible, within
from fedtuner.flower.secure import FEWEST, Offer, Scale, SecAgg, asked_of, order, shape_of, tally_of
from fedtuner.flower.secure_replies import Shapes, check
from fedtuner.flower.wire import MalformedError
from fedtuner.run.executors.serial import settled

if TYPE_CHECKING:
    from fedtuner.flower.fleet import Fleet

_TRIES = 3  # a round without a sum is tried again; after so many tries the study stops with the last reason
_REFUSED = 10  # sums in a row that cannot be, after which it stops, too


class SecureRounds:
    """Advances arms on a fleet whose server receives only sums."""

    def __init__(self, fleet: Fleet, ranges: SecAgg, round: Round, blobs: Blobs) -> None:
        self._fleet, self._ranges, self._round, self._blobs = fleet, ranges, round, blobs
        self._why = ""  # why the last sum failed
        self._refused = 0  # sums in a row that could not be

    def advance(self, work: Sequence[Advance], stop: Stop) -> Iterator[Progress]:
        """Advance the arms one after the other: a node keeps the masks of one round at a time."""
        for one in work:
            failures = 0
            while not one.done:
                if stop():
                    return
                tally = self._tally(one)
                failures = failures + 1 if tally is None else 0
                if failures >= _TRIES:
                    name = f"arm {one.arm.id}, round {one.state.round + 1}"
                    raise FleetError(f"{name}: the secure sum failed {_TRIES} times; the last: {self._why}")
                if tally is None:
                    continue  # the round is tried again, and uses no budget
                progress = settled(self._round, self._blobs, one, tally)
                assert progress.state is not None
                failing = [client for client, usable in tally.usable.items() if not usable]
                self._fleet.name_failing(f"arm {one.arm.id}, round {progress.state.round}", progress.state, failing)
                one = replace(one, state=progress.state)
                yield progress

    def _tally(self, one: Advance) -> Tally | None:
        """Return the sums of an arm's next round, whose clients draw their configurations themselves."""
        self._fleet.everyone()
        plan = self._round.plan(one.arm, one.state, self._fleet.present())
        tuner, belief = self._round.setup.tuner, one.state.belief
        return self._secure_sum(plan, Offer(tuner.offers(belief)[0], tuner, tuner.pack(belief)))

    def evaluate(self, plan: Plan) -> Tally:
        """Evaluate on all clients, with one configuration: one sum, or several where there are many clients."""
        offer = Offer([plan.jobs[0].config])
        if any(job.config != offer.configs[0] for job in plan.jobs):
            raise SpecError('config = "sample", but with secure aggregation clients are evaluated with the mode')
        groups, sums = -(-len(plan.jobs) // secure.MOST), []
        for g in range(groups):  # every groups-th client, so that all groups are of about the same size
            part = self._secure_sum(replace(plan, jobs=plan.jobs[g::groups]), offer)
            if part is None or not part.reported:
                raise FleetError(f"the secure sum of an evaluation failed: {self._why}")
            sums.append(part)
        metrics = ([getattr(part, when) for part in sums] for when in ("before", "after"))
        before, after = (self._fleet.model.metric.pool(some, mean_metrics(some)) for some in metrics)
        reported = sum(part.reported for part in sums)
        return Tally(asked=len(plan.jobs), reported=reported, trainings=reported, before=before, after=after)

    def close(self) -> None:
        """Do nothing: the fleet outlives its executors."""

    def _secure_sum(self, plan: Plan, offer: Offer) -> Tally | None:
        """Return the sums over a plan's clients, without those that failed; None if too few are left."""
        fleet, name = self._fleet, f"arm {plan.arm}, round {plan.round + 1}"
        client_at = {node: job.client for job in plan.jobs if (node := fleet.node_of(job.client)) is not None}
        nodes, unusable, sums = list(client_at), set[int](), fleet.model.metric.sent
        shapes = [plan.w.shape, (secure.TOTALS + 2 * len(offer.configs),), *shape_of(self._asked(plan), sums)]
        what = order(plan, self._round.setup.method.name, self._ranges, offer)
        if len(nodes) < FEWEST:
            raise FleetError(f"{name}: a secure sum needs {FEWEST} clients, but {len(nodes)} are there: raise least=")
        while len(nodes) >= FEWEST:
            strategy = _OneRound(nodes, [plan.w, *offer.belief.values()], what)
            watched = _WatchedGrid(fleet.grid, shapes)
            failed = self._run_workflow(watched, strategy, plan.round)
            self._why = watched.last_failure or self._why
            for node, (kind, why) in watched.failed.items():
                fleet.fault(kind, f"{name}, node {node}: {why}", arm=plan.arm, round=plan.round + 1)
                unusable |= {client_at[node]} if kind != "timeout" else set()
            if strategy.mean is not None or failed:
                tally = self._tally_of(strategy, plan, offer, failed)
                summed = {client_at[n] for n in nodes if n not in watched.failed} if tally.reported else set()
                return replace(tally, usable={i: i in summed for i in sorted(summed | unusable)})
            if not watched.failed:
                break
            nodes = [node for node in nodes if node not in watched.failed]
        return None

    def _tally_of(self, strategy: _OneRound, plan: Plan, offer: Offer, failed: str) -> Tally:
        """Return a sum as a tally; one that cannot be is left out: its round is done, and nobody has reported."""
        fleet, name, metric = self._fleet, f"arm {plan.arm}, round {plan.round + 1}", self._fleet.model.metric
        clients = strategy.clients or len(strategy.nodes)
        scale = Scale.of(self._ranges, offer.metric, metric.worst)
        limits = Limits.of(scale, metric.worst, fleet.least_loss, offer.tuner)
        wrong = (
            failed if strategy.mean is None else impossible(strategy.mean, clients, scale, limits, bool(metric.sent))
        )
        if wrong:
            self._why = f"the sum over {clients} clients is left out: {wrong}; negative losses: Fleet(least_loss=)"
            fleet.fault("impossible", f"{name}: {self._why}", arm=plan.arm, round=plan.round + 1)
            self._refused += 1
            if self._refused >= _REFUSED:
                raise FleetError(f"{name}: {_REFUSED} secure sums in a row cannot be; the last: {self._why}")
            return Tally(asked=len(plan.jobs), bounded=clients, trainings=clients)
        self._refused = 0
        assert strategy.mean is not None
        tally = within(tally_of(strategy.mean, clients, scale, self._asked(plan), metric.sent), limits)
        tally = replace(tally, before=metric.pool([tally.before], tally.before), after=self._pooled(tally, metric))
        if tally.bounded:
            cut = f"{tally.bounded} of {tally.reported} updates were cut to {scale.clip:g}: raise SecAgg(clip=)"
            fleet.fault("cut", f"{name}: {cut}", arm=plan.arm, round=plan.round + 1)
        seen = [replace(s, configs=tuple(offer.configs[j] for j in s.labels)) for s in tally.seen]
        return replace(tally, asked=len(plan.jobs), seen=tuple(seen))

    def _pooled(self, tally: Tally, metric: Metric) -> Metrics:
        """Return the metrics after local training; of a pooled metric the clients whose update broke are the worst."""
        made, broken = metric.pool([tally.after], tally.after), tally.broken / max(1, tally.reported)
        if not metric.sent or not broken:
            return made
        return replace(made, error=metric.worst if broken == 1 else (1 - broken) * made.error + broken * metric.worst)

    def _asked(self, plan: Plan) -> Vectors:
        """Return vectors of the names and shapes of those that the server's optimiser asks for."""
        model = self._fleet.model
        return asked_of(self._round.setup.method, plan.server, model.trainable)(np.zeros(model.size, np.float32))

    def _run_workflow(self, grid: _WatchedGrid, strategy: _OneRound, round: int) -> str:
        """Run Flower's workflow; return why it failed where keys or shares do not fit together."""
        shares, threshold = self._ranges.split(len(strategy.nodes))
        if threshold > shares:
            raise FleetError(
                f"{threshold} shares are needed to unmask, but a key has {shares} with {len(strategy.nodes)} clients: "
                "lower SecAgg(threshold=)"
            )
        run = Context(0, 0, {}, RecordDict(), {})
        run.state[MAIN_CONFIGS_RECORD] = ConfigRecord({Key.CURRENT_ROUND: round + 1})
        run.state[MAIN_PARAMS_RECORD] = ArrayRecord()
        workflow = SecAggPlusWorkflow(
            shares / len(strategy.nodes), threshold, max_weight=1.0, clipping_range=float(self._ranges.clip),
            timeout=self._fleet.deadline,
        )  # fmt: skip
        try:
            workflow(cast(Grid, grid), LegacyContext(run, strategy=cast(Strategy, strategy)))
        except Exception as error:
            if error is grid.raised and not isinstance(error, UNDECODABLE):  # the grid's own, not what devices sent
                raise
            return one_line(f"{type(error).__name__}: {error}", 300)
        return ""


class _WatchedGrid:
    """The grid, with a record of the nodes that failed: Flower's workflow ends without a reason if too few are left.

    A malformed reply never gets to the workflow. ``shapes`` are those of the vectors that are summed.
    """

    def __init__(self, grid: Grid, shapes: Shapes) -> None:
        self._grid, self._shapes = grid, shapes
        self.failed: dict[int, tuple[str, str]] = {}  # node -> the kind of its fault, and why
        self.last_failure = ""
        self.raised: Exception | None = None  # by the grid itself

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        try:
            return self._send_and_receive(list(messages), timeout)
        except Exception as error:
            self.raised = error
            raise

    def _send_and_receive(self, asked: Sequence[Message], timeout: float | None) -> Iterable[Message]:
        if timeout is not None:
            for message in asked:  # a slow node need not begin work whose reply would be too late
                message.metadata.ttl = timeout + 60
        requests = {m.metadata.dst_node_id: m for m in asked}
        failed = dict.fromkeys(requests, ("timeout", f"no answer in {timeout:g} s"))
        usable = []
        for reply in self._grid.send_and_receive(asked, timeout=timeout):
            node = reply.metadata.src_node_id
            try:
                if reply.has_error():
                    failed[node] = ("error", reason_of(reply.error.reason))
                else:
                    check(requests[node], reply, self._shapes)
                    usable.append(reply)
                    del failed[node]
            except MalformedError as error:
                failed[node] = ("malformed", str(error))
        self.last_failure = next((f"node {node}: {why}" for node, (_, why) in failed.items()), self.last_failure)
        if usable:  # if all nodes fail at one stage, the cause is the nodes that failed at an earlier stage
            self.failed |= failed
        return usable

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)


class _OneRound:
    """What Flower's workflow asks of a strategy: whom to ask for what. It keeps the mean that the workflow returns."""

    def __init__(self, nodes: Sequence[int], arrays: NDArrays, what: str) -> None:
        self.nodes, self._asked = nodes, FitIns(ndarrays_to_parameters(arrays), {"fedtuner": what})
        self.mean: NDArrays | None = None
        self.clients = 0

    def configure_fit(self, *_: Any) -> list[tuple[Any, FitIns]]:
        return [(SimpleNamespace(node_id=node), self._asked) for node in self.nodes]

    def aggregate_fit(self, round: int, results: Sequence[tuple[Any, FitRes]], failures: Any) -> tuple[None, Any]:
        self.mean, self.clients = parameters_to_ndarrays(results[0][1].parameters), len(results)
        return None, {}
