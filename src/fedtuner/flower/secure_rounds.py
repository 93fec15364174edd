"""The executor over a fleet with secure aggregation: one arm and one round after the other, by Flower's SecAgg+.

Flower's workflow completes the sum without a client that drops out after the keys were exchanged. If a client drops out
earlier, the workflow ends without a sum, and the round is tried again without that client.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.common import FitIns, FitRes, NDArrays, Parameters, Scalar, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server.client_manager import ClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.server.compat.legacy_context import LegacyContext
from flwr.server.strategy import FedAvg
from flwr.server.workflow import SecAggPlusWorkflow
from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD, Key
from flwr.serverapp import Grid
from flwr.supercore.run import Run

from fedtuner import fedex
from fedtuner.arm import Arm, Record, Setting, State, begin, cohort, fold
from fedtuner.errors import FleetError, SpecError
from fedtuner.federation import Report
from fedtuner.flower import secure
from fedtuner.flower.messages import reason_of
from fedtuner.flower.secure import FEWEST, Sums, order, totals
from fedtuner.legs import Assessment, Leg, Progress
from fedtuner.methods.base import Update
from fedtuner.space import Config
from fedtuner.task import Metrics, Vector

if TYPE_CHECKING:
    from fedtuner.flower.fleet import Fleet

_TRIES = 3  # a round without a sum is tried again; after so many tries the study stops with the last reason


class SecureRounds:
    """Advances arms on a fleet whose server receives only sums."""

    workers = 1

    def __init__(self, fleet: Fleet, setting: Setting) -> None:
        assert fleet.secure is not None
        self._fleet, self._setting, self._ranges = fleet, setting, fleet.secure
        self._why = ""  # why the last sum failed
        self.missing = 0  # clients without a part in the last evaluation

    def advance(self, legs: Sequence[Leg], stop: Callable[[], bool]) -> Iterator[Progress]:
        """Advance the arms one after the other: a node keeps the masks of one round at a time."""
        for leg in legs:
            state = begin(self._setting, self._fleet, leg.arm) if leg.state is None else leg.state
            if state.round == 0:
                yield Progress(leg.arm.id, (), state)
            failures = 0
            while state.round < leg.until and not state.diverged:
                if stop():
                    return
                self._fleet.gather()
                clients = cohort(self._setting, self._fleet, leg.arm, state.round)
                sums = self._secure_sum(
                    clients, state.w, state.belief.log_theta, leg.arm.id, state.round, leg.arm.server,
                    leg.arm.candidates, "valid",
                )  # fmt: skip
                failures = failures + 1 if sums is None else 0
                if failures >= _TRIES:
                    name = f"arm {leg.arm.id}, round {state.round + 1}"
                    raise FleetError(f"{name}: the secure sum failed {_TRIES} times; the last: {self._why}")
                if sums is None:
                    continue  # the round is tried again, and uses no budget
                state, record = secure_fold(self._setting, self._fleet, leg.arm, state, len(clients), sums)
                yield Progress(leg.arm.id, (record,), state)

    def assess(self, jobs: Sequence[Assessment]) -> list[tuple[Metrics, Metrics]]:
        """Return the mean of each sum in the place of its first client, and empty metrics for the others."""
        first = jobs[0].job
        if any(a.job.config != first.config for a in jobs):
            raise SpecError('config = "sample", but with secure aggregation clients are evaluated with the mode')
        self._fleet.gather()
        nothing, groups = Metrics(math.nan, math.nan, 0), -(-len(jobs) // secure.MOST)
        found, self.missing = [(nothing, nothing)] * len(jobs), self._fleet.population
        for g in range(groups):  # every groups-th client, so that all groups are of about the same size
            clients = [a.job.client for a in jobs[g::groups]]
            sums = self._secure_sum(
                clients, first.w, np.zeros(1), first.arm, first.round, first.server, [first.config], first.split
            )
            if sums is None:
                raise FleetError(f"the secure sum of an evaluation failed: {self._why}")
            found[g] = (sums.before, sums.after)
            self.missing -= sums.clients
        return found

    def close(self) -> None:
        """Do nothing: the fleet outlives its executors."""

    def _secure_sum(
        self, clients: Sequence[int], w: Vector, log_theta: Any, arm: int, round: int, server: Config,
        candidates: Sequence[Config], split: str,
    ) -> Sums | None:  # fmt: skip
        nodes = [node for node in map(self._fleet.node_of, clients) if node is not None]
        what = order(self._setting, self._ranges, arm, round, server, candidates, split)
        name = f"arm {arm}, round {round + 1}"
        if len(nodes) < FEWEST:
            raise FleetError(f"{name}: a secure sum needs {FEWEST} clients, but {len(nodes)} are there: raise least=")
        while len(nodes) >= FEWEST:
            strategy, watched = _OneRound(nodes, [w, log_theta], what), _WatchedGrid(self._fleet.grid)
            self._run_workflow(watched, strategy, round)
            self._why = watched.last_failure or self._why
            for node, why in watched.failed.items():
                self._fleet.fault("error", f"{name}, node {node}: {why}", arm=arm, round=round + 1, node=node)
            if strategy.mean is not None:
                worst = self._fleet.task.worst_error
                sums = totals(strategy.mean, strategy.clients, self._setting.fedex, self._ranges, worst)
                if sums.cut:
                    cut = f"{sums.cut} of {sums.clients} updates were cut to {self._ranges.clip:g}: raise SecAgg(clip=)"
                    self._fleet.fault("cut", f"{name}: {cut}", arm=arm, round=round + 1)
                return sums
            if not watched.failed:
                break
            nodes = [node for node in nodes if node not in watched.failed]
        return None

    def _run_workflow(self, grid: Grid, strategy: _OneRound, round: int) -> None:
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
        workflow(grid, LegacyContext(run, strategy=strategy))


def secure_fold(
    setting: Setting, fleet: Fleet, arm: Arm, state: State, planned: int, sums: Sums
) -> tuple[State, Record]:
    """Return the arm after a round of which only the sums are known.

    The model and the score are updated as if the sums were one client's report; theta is updated from S_j and N_j.
    """
    belief, update = state.belief, Update((state.w + sums.change).astype(np.float32))
    report = Report(0, 0, update, sums.examples, sums.before, sums.after, True)
    if belief.entropy >= setting.fedex.cutoff:
        belief = fedex.exponentiate_sums(belief, sums.values, sums.counts, setting.fedex.step, arm.gamma)
    frozen = replace(setting, fedex=replace(setting.fedex, cutoff=math.inf))
    following, record = fold(frozen, fleet, arm, state, [report, *[None] * (planned - 1)])
    return replace(following, belief=belief), replace(
        record, dropped=planned - sums.clients, broken=sums.broken, entropy=belief.entropy, mode=belief.mode,
        confidence=float(belief.theta.max()),
    )  # fmt: skip


class _WatchedGrid(Grid):
    """The grid, with a record of the nodes that failed: Flower's workflow ends without a reason if too few are left."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self.failed: dict[int, str] = {}  # node -> why
        self.last_failure = ""

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        asked = list(messages)
        if timeout is not None:
            for message in asked:  # a slow node need not begin work whose reply would be too late
                message.metadata.ttl = timeout + 60
        replies = list(self._grid.send_and_receive(asked, timeout=timeout))
        replied = {reply.metadata.src_node_id for reply in replies if not reply.has_error()}
        errors = {reply.metadata.src_node_id: reason_of(reply.error.reason) for reply in replies if reply.has_error()}
        without = [m.metadata.dst_node_id for m in asked if m.metadata.dst_node_id not in replied]
        failed = {node: errors.get(node, f"no answer in {timeout:g} s") for node in without}
        self.last_failure = next((f"node {node}: {why}" for node, why in failed.items()), self.last_failure)
        if replied:  # if all nodes fail at one stage, the cause is the nodes that failed at an earlier stage
            self.failed |= failed
        return replies

    def set_run(self, run: Run) -> None:
        self._grid.set_run(run)

    @property
    def run(self) -> Run:
        return self._grid.run

    def create_message(self, *arguments: Any, **named: Any) -> Message:
        return self._grid.create_message(*arguments, **named)

    def get_node_ids(self) -> Iterable[int]:
        return self._grid.get_node_ids()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return self._grid.pull_messages(message_ids)


@dataclass
class _Node:
    node_id: int


@dataclass
class _OneRound(FedAvg):
    """A strategy for one round: it asks the given nodes and keeps the mean that Flower's workflow returns."""

    nodes: list[int]
    arrays: NDArrays
    what: str
    mean: NDArrays | None = None
    clients: int = 0

    def configure_fit(
        self, server_round: int, parameters: Parameters, client_manager: ClientManager
    ) -> list[tuple[ClientProxy, FitIns]]:
        asked = FitIns(ndarrays_to_parameters(self.arrays), {"fedtuner": self.what})
        return [(cast(ClientProxy, _Node(node)), asked) for node in self.nodes]

    def aggregate_fit(
        self, server_round: int, results: list[tuple[ClientProxy, FitRes]], failures: list[Any]
    ) -> tuple[Parameters | None, dict[str, Scalar]]:
        self.mean, self.clients, self.failures = (
            parameters_to_ndarrays(results[0][1].parameters),
            len(results),
            failures,
        )
        return None, {}
