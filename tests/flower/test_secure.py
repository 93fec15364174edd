"""FedEx through Flower's SecAgg+: the sums are right, and nothing but sums can be read."""

from __future__ import annotations

import io
import json
import math
import re
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedtuner[flower]'")

from flwr.app import Error, Message
from flwr.clientapp import ClientApp
from flwr.common import bytes_to_ndarray, ndarray_to_bytes
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_grid import MemoryGrid

import fedtuner as ft
import toys
from fedtuner.core.model import Metrics
from fedtuner.core.records import Plan, Record, Report, Seen, State, Tried
from fedtuner.core.round import Round
from fedtuner.core.screens import Weights
from fedtuner.core.survey import measured, survey
from fedtuner.errors import FleetError, SpecError
from fedtuner.flower import SecAgg, secure
from fedtuner.flower.possible import Limits, impossible
from fedtuner.flower.secure import Offer, Scale, contribution, number_of, order, parts_of, tally_of
from fedtuner.rng import stream
from fedtuner.tuners import fedex as fx
from fedtuner.tuners.theta import normalise

CLIENTS = toys.clients(6)
RANGES = SecAgg(clip=4.0, most_examples=50)  # the count of batches in w changes by more than 1
BY_FEDEXP = ft.methods.fedavg.with_defaults(server={"optimiser": "fedexp"})
SCHEDULE = ft.random_search(budget=2, longest=2)
ONCE = ft.random_search(budget=1, longest=1)


def grid_of(secret: str | None = "hush", task: Any = None) -> MemoryGrid:
    grid = MemoryGrid()
    for client in CLIENTS:
        app = ft.flower.client_app(task or toys.Softmax(), lambda context, c=client: c, secure=True, secret=secret)
        grid.add(app)
    return grid


def fleet_of(grid: MemoryGrid, secure: SecAgg = RANGES, **changed: Any) -> ft.flower.Fleet:
    usual = {"least": 6, "deadline": 10.0, "clock": grid.clock}
    return ft.flower.Fleet(grid, toys.Softmax(), secure=secure, **(usual | changed))


def tune(grid: MemoryGrid, problem: Any = None, **changed: Any) -> ft.Study:
    usual = {"problem": problem or fleet_of(grid), "method": ft.methods.fedavg, "schedule": SCHEDULE, "cohort": 5}
    return toys.tune(**(usual | changed))


def in_the_open(study: ft.Study, secret: str = "hush") -> tuple[State, Record]:
    """The study's first arm, settled from the reports themselves; clients draw as they do behind the masks."""
    problem, setup, arm = toys.problem(), study.setup, study.journal.arms[0]
    round = Round(setup, problem)
    state = round.begin(arm)
    for t in range(SCHEDULE.longest):
        plan = round.plan(arm, state, problem.present())
        jobs = []
        for job in plan.jobs:
            own = (arm.id, t, problem.id_of(job.client), secret)
            (choices,) = setup.tuner.choose(state.belief, 1, lambda use, own=own: stream(setup.seed, use, *own))
            jobs.append(replace(job, choices=choices))
        plan = replace(plan, jobs=tuple(jobs))
        state, record = round.settle(arm, state, round.tally(plan, [round.work(plan, job) for job in plan.jobs]))
    return state, record


def evaluated(study: ft.Study, clients: int = 6) -> dict[str, float]:
    """The winner's error on the first clients, from the reports themselves."""
    round, key = Round(study.setup, toys.problem()), study.winner
    plan = survey(round, study.journal.arms[key[0]], study.state(key), range(clients), "test")
    tally = round.tally(plan, [measured(round.work(plan, job)) for job in plan.jobs])
    return {"global": tally.before.error, "personalized": tally.after.error}


@pytest.mark.slow
@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"method": ft.methods.fedprox, "fedex": ft.FedEx(k=4, eps=1, metric="loss", step="adaptive")},
        {"method": ft.methods.reptile, "fedex": ft.FedEx(k=2, eps=1, signal="improvement"), "target": "global"},
        pytest.param({"fedex": None}, marks=pytest.mark.slow),
        pytest.param({"fedex": ft.FedEx(k=3, eps=1, cutoff=5.0)}, marks=pytest.mark.slow),
        {"method": BY_FEDEXP},
        {"tuner": ft.tuners.Kernel(k=3, eps=1), "method": ft.methods.deltasgd},
    ],
    ids=["fedavg", "fedprox by loss", "reptile by improvement", "no fedex", "a mode that stays", "fedexp", "kernel"],
)
def test_the_sums_give_what_the_reports_would(changed):
    """End to end with Flower's own mod and workflow: up to the rounding that masks need."""
    study = tune(grid_of(), **changed)
    state, record = in_the_open(study)
    ours, last = study.state((0, SCHEDULE.longest)), study.history[-1]
    assert ours.w == pytest.approx(state.w, abs=2e-5)
    assert study.best.theta == pytest.approx(study.setup.tuner.offers(state.belief)[1], abs=2e-4)
    assert (last.trainings, last.bounded, last.rows) == (5, 0, ())
    assert (last.clients, last.dropped, last.broken) == (record.clients, record.dropped, record.broken) == (5, 0, 0)
    assert (last.examples, last.validated, last.mode) == (record.examples, record.validated, record.mode)
    for name in ("loss_before", "loss_after", "error_before", "error_after", "loss", "error", "confidence"):
        assert getattr(last, name) == pytest.approx(getattr(record, name), abs=2e-4)
    if getattr(study.setup.tuner, "cutoff", 5.0) < 5.0:
        past, mass, _ = study.setup.tuner.pack(ours.belief)["memory"]
        expected, of, _ = study.setup.tuner.pack(state.belief)["memory"]
        assert past / mass == pytest.approx(expected / of, abs=5e-5)
        assert not np.allclose(study.best.theta, 1 / study.best.theta.size)  # it has learned something


@pytest.mark.slow
def test_an_evaluation_is_a_sum_too():
    study = tune(grid_of())
    assert study.evaluate("test") == pytest.approx(evaluated(study), abs=1e-4)
    with pytest.raises(SpecError, match='config = "sample", but with secure aggregation'):
        study.evaluate("test", "sample")


def test_nothing_but_masked_vectors_leaves_a_client():
    """Every reply of a round: keys, shares and vectors that look like noise; no metrics, no number of examples."""
    grid, replies = grid_of(), []
    grid.faults = dict.fromkeys(grid.apps, lambda reply: replies.append(reply) or reply)
    study = tune(grid, schedule=ft.random_search(budget=1, longest=1))
    assert len(replies) == 4 * 5
    size = study.problem.model.size
    names: set[str] = set()
    for reply in replies:
        names |= set(reply.content)
        assert all(len(record) == 0 for record in reply.content.array_records.values())
        for name, record in reply.content.metric_records.items():
            assert (name, dict(record)) == ("fitres.num_examples", {"num_examples": 1})
        for name, settings_ in reply.content.config_records.items():
            assert name in ("secaggplus_configs", "fitres.metrics", "fitres.status")
            assert name != "fitres.metrics" or dict(settings_) == {}
    masked = [r.content.config_records for r in replies]
    vectors = [v for records in masked for record in records.values() for k, v in record.items() if "masked" in k]
    assert len(vectors) == 5
    values = np.concatenate([bytes_to_ndarray(v).ravel() for client in vectors for v in client[1:]])
    assert values.size == 5 * (size + 8 + 2 * 3)
    assert np.abs(np.mean(values / 2**32) - 0.5) < 0.15  # uniform on the masks' range
    assert names >= {"fitres.parameters"}


def test_what_the_server_sends_names_no_candidate():
    grid = grid_of()
    tune(grid, schedule=ft.random_search(budget=1, longest=1))
    asked = [
        m.content.config_records["fitins.config"] for m in grid.sent if "fitins.config" in m.content.config_records
    ]
    assert len(asked) == 5
    for config in asked:
        what = json.loads(str(config["fedtuner"]))
        assert not {"candidate", "choice", "label"} & what.keys()
        assert len(what["configs"]) == 3


def test_a_client_imports_nothing_that_a_server_names():
    table = {"kind": "subprocess:Popen", "args": ["true"]}
    with pytest.raises(SpecError, match=r"tuner = 'subprocess:Popen', but with secure aggregation clients know only"):
        secure._tuner_of(table)
    with pytest.raises(SpecError, match=r"tuner = 'test_secure:Own', but with secure aggregation clients know only"):
        tune(grid_of(), fedex=None, tuner=Own(k=3))


@dataclass(frozen=True)
class Own(ft.FedEx):
    """A tuner that the devices do not have."""


@pytest.mark.slow
def test_draws_are_the_clients_own():
    """With fresh randomness two runs differ, and the seed does not tell a client's candidate."""
    spread = {"fedex": ft.FedEx(k=27, eps=1), "schedule": ft.random_search(budget=1, longest=1), "cohort": 6}
    thetas = [tune(grid_of(None), **spread).best.theta for _ in range(2)]
    assert not np.allclose(*thetas)
    repeated = [tune(grid_of("a"), **spread).best.theta for _ in range(2)]
    assert np.allclose(*repeated, atol=1e-3)


def error(reply: Message) -> Message:
    wrong = Message(Error(2, "the phone is full"), reply_to=reply)
    wrong.metadata.__dict__.update(reply.metadata.__dict__)
    return wrong


@pytest.mark.slow
@pytest.mark.parametrize("stage", [0, 1, 2])
def test_a_client_that_drops_out_at_any_stage_is_missing_from_the_sum(stage):
    """The first replies of one client are good, then it fails in every round."""
    grid = grid_of()
    count = [0]

    def drop(reply: Message) -> Message:
        count[0] += 1
        return error(reply) if count[0] > stage else reply

    grid.faults[1002] = drop
    study = tune(grid, cohort=6, schedule=ft.random_search(budget=1, longest=1))
    record = study.history[0]
    assert (record.clients, record.dropped) == (6, 1)
    assert record.examples == sum(len(c.train[1]) for i, c in enumerate(CLIENTS) if i != 2)
    assert study.problem.faults["error"]


def test_too_many_who_drop_out_are_no_sum_and_then_an_error():
    grid = grid_of()
    grid.faults = dict.fromkeys([1001, 1002, 1003, 1004], error)
    with pytest.raises(FleetError, match=r"the secure sum failed 3 times; the last: node 100\d: the phone is full"):
        tune(grid, schedule=ft.random_search(budget=5, longest=5))
    few = grid_of()
    few.online = {1000, 1001}
    with pytest.raises(FleetError, match="a secure sum needs 3 clients, but 2 are there"):
        tune(few, fleet_of(few, least=2))


@given(
    st.integers(3, 1000),
    st.one_of(st.floats(0.01, 1), st.integers(3, 50)),
    st.one_of(st.floats(0.01, 1), st.integers(3, 50)),
)
def test_more_than_half_of_the_shares_and_never_fewer_than_three_unmask(clients, shares, threshold):
    made, needed = SecAgg(shares=shares, threshold=threshold).split(clients)
    assert 3 <= made <= clients
    assert made == clients or made % 2
    assert needed >= max(3, made // 2 + 1)
    assert needed >= (threshold if isinstance(threshold, int) else threshold * made - 1e-6)


def test_no_sum_of_two_comes_out():
    """One of three drops out after the keys are shared: Flower's own threshold would add up the other two."""
    grid = grid_of()
    replies = [0]

    def drop(reply: Message) -> Message:
        replies[0] += 1
        return error(reply) if replies[0] % 3 == 0 else reply  # at the masked vector

    grid.faults[1002] = drop
    grid.online = {1000, 1001, 1002}
    with pytest.raises(FleetError, match="the secure sum failed 3 times; the last: node 1002: the phone is full"):
        tune(grid, fleet_of(grid, least=3), cohort=3)


def test_a_threshold_that_cannot_be_met_is_an_error():
    grid = grid_of()
    with pytest.raises(
        FleetError, match=r"7 shares are needed to unmask, but a key has 5 with 5 clients: lower SecAgg"
    ):
        tune(grid, fleet_of(grid, secure=replace(RANGES, threshold=7)))


def test_where_all_fail_at_once_the_reason_is_in_the_error():
    grid = grid_of()
    grid.faults = dict.fromkeys(grid.apps, error)
    with pytest.raises(FleetError, match=r"the secure sum failed 3 times; the last: node 100\d: the phone is full"):
        tune(grid)


def test_a_client_without_secure_aggregation_is_refused():
    grid = MemoryGrid()
    grid.add(ft.flower.client_app(toys.Softmax(), lambda context: CLIENTS[0]))
    with pytest.raises(FleetError, match="was made without it, but this server's Fleet needs client_app with secure=T"):
        tune(grid, fleet_of(grid, wait=10.0))


@pytest.mark.slow
def test_who_leaves_joins_and_restarts_is_seen_between_rounds():
    grid = grid_of()
    late = grid.add(ft.flower.client_app(toys.Softmax(), lambda context: replace(CLIENTS[0], id="late"), secure=True))
    reborn = grid.add(grid.apps[1003])
    grid.online -= {late, reborn}
    rounds: list[set[int]] = []

    def churn(message: Message) -> None:
        if "fitins.config" in message.content.config_records:
            round = json.loads(str(message.content.config_records["fitins.config"]["fedtuner"]))["round"]
            while len(rounds) <= round:
                rounds.append(set())
            rounds[round].add(message.metadata.dst_node_id)
            if round == 1:
                grid.online = (grid.online | {late, reborn}) - {1003}
            if round == 2:
                grid.online -= {1002}

    grid.on_push = churn
    problem = fleet_of(grid, least=3, deadline=40.0)
    tune(grid, problem, cohort=10, schedule=ft.random_search(budget=6, longest=6))
    assert rounds[0] == set(range(1000, 1006))
    assert rounds[-1] == {1000, 1001, 1004, 1005, late, reborn}
    assert problem.population() == 7
    assert problem.faults["left"] == 2


@pytest.mark.slow
def test_an_evaluation_of_many_is_several_sums(monkeypatch):
    grid = grid_of()
    study = tune(grid, fleet_of(grid, least=3))
    grid.online -= {1005}
    some = study.evaluate("test")
    assert some == pytest.approx({**evaluated(study, 5), "missing": 1}, abs=1e-4)
    grid.online |= {1005}
    sent = len(grid.sent)
    monkeypatch.setattr("fedtuner.flower.secure.MOST", 3)
    study.problem.least = 6
    assert study.evaluate("test") == pytest.approx(evaluated(study), abs=1e-4)
    setups = [
        m.content.config_records["secaggplus_configs"].get("sample_num") for m in grid.sent[sent:]
        if m.metadata.message_type == "train"
    ]  # fmt: skip
    assert [n for n in setups if n] == [3] * 6


def report(w: Any, examples: int, before: Metrics, after: Metrics, label: int = 0, finite: bool = True) -> Report:
    return Report(0, np.asarray(w, np.float32), {}, {}, examples, (Tried(label, before, after),), finite)


def scale(fed: ft.FedEx) -> Scale:
    return Scale.of(RANGES, fed.metric, 1.0)


def test_an_update_that_breaks_adds_nothing_to_the_model_and_the_worst_to_theta():
    fed, nan = ft.FedEx(k=3), np.full(4, np.nan)
    broken = report(nan, 9, Metrics(0.5, 0.5, 4), Metrics(math.inf, 1.0, 4), 1, finite=False)
    vectors = contribution(broken, fed.value(broken.tried[0]), 3, scale(fed))
    tally = tally_of(vectors, 1, scale(fed))
    assert (tally.broken, tally.trained, tally.examples, tally.change) == (1, 0, 0, None)
    assert [(s.labels, s.weight) for s in tally.seen] == [((1,), 4)]
    assert tally.seen[0].values == pytest.approx((1.0,))
    assert (tally.after.loss, tally.after.error) == (RANGES.most_loss, 1.0)


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=5), st.floats(0.1, 10))
def test_numbers_of_any_scale_are_sums_of_parts(numbers, clip):
    """All parts but the last are whole steps of Flower's rounding, whatever the range, so only the last is rounded."""
    made = np.stack([parts_of(np.array([x])) for x in numbers])
    assert np.abs(made).max() <= 1
    rounded = clip * np.rint((clip * made + clip) * (2**21 / clip)) / 2**21 - clip
    assert number_of(rounded.sum(axis=0) / clip)[0] == pytest.approx(
        math.fsum(numbers), abs=1e-9 * len(numbers), rel=1e-14
    )


def test_what_the_optimiser_asks_is_that_of_the_change_that_is_sent():
    """A change of 6 on half the weight is within 4; one of 12 is cut to 8, whose square is 64 and not 144."""
    metrics = Metrics(0.5, 0.5, 4)
    clients = [report([x, 0, 0], 25, metrics, metrics) for x in (6.0, 12.0)]
    extra = secure.asked_of(BY_FEDEXP, {"optimiser": "fedexp"}, 3)
    parts = [contribution(r, 0.5, 1, scale(ft.FedEx(k=1)), extra) for r in clients]
    mean = [sum(p) / 2 for p in zip(*parts, strict=True)]
    tally = tally_of(mean, 2, scale(ft.FedEx(k=1)), extra(np.zeros(3, np.float32)))
    assert tally.extra["square"] == pytest.approx([(36 + 64) / 2], rel=1e-6)
    assert tally.change == pytest.approx([7, 0, 0])
    assert tally.bounded == 1
    limits = Limits.of(scale(ft.FedEx(k=1)), 1.0, 0.0, ft.FedEx(k=1))
    assert not impossible(mean, 2, scale(ft.FedEx(k=1)), limits)
    wrong = impossible([*mean[:2], mean[2] + 1.1 * RANGES.clip], 2, scale(ft.FedEx(k=1)), limits)
    assert wrong.startswith("an entry of what is asked for besides is 2.25 clips, but must be at most 2")
    far = report([4.0, 0, 0], 25, metrics, metrics)
    huge = contribution(far, 0.5, 1, scale(ft.FedEx(k=1)), lambda d: {"x": 1e12 * d})
    assert tally_of(huge, 1, scale(ft.FedEx(k=1)), {"x": np.zeros(3)}).bounded == 1


@pytest.mark.slow
def test_a_study_with_masks_continues(tmp_path):
    def run() -> None:
        grid = grid_of()
        grid.on_push = lambda message: toys.die() if len(grid.sent) == 30 else None
        tune(grid, store=tmp_path)

    assert toys.forked(run) == -9
    study = tune(grid_of(), store=tmp_path)
    assert [r.round for r in study.history] == [1, 2]


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"method": ft.methods.scaffold}, "method = scaffold, .* use one of fedavg, fedprox, reptile"),
        ({"method": ft.methods.feddyn}, "method = feddyn"),
        ({"method": ft.methods.maml}, "method = maml"),
        ({"screens": (Weights(),)}, "screens compare single reports"),
        ({"cohort": 2}, "cohort = 2, but a secure sum needs 3 clients"),
        ({"cohort": 1001}, "cohort = 1001, but a secure sum holds 1000 clients at most"),
        ({"fedex": ft.FedEx(k=3, tries="all")}, "fedex.tries = 3, but with secure aggregation a client tries one"),
        (
            {"tuner": ft.tuners.Gaussian()},
            "Gaussian cannot be summed by label, but with secure aggregation the server sees only sums: use FedEx",
        ),
    ],
)
def test_what_sums_cannot_carry_is_refused_before_the_work(changed, why, tmp_path):
    grid = grid_of()
    with pytest.raises(SpecError, match=why):
        tune(grid, store=tmp_path / "store", **changed)
    assert grid.sent == []
    assert not (tmp_path / "store").exists()


def test_settings_that_make_no_sense():
    with pytest.raises(SpecError, match="clip = 0"):
        SecAgg(clip=0)
    for changed, what in (
        ({"shares": 2}, "shares = 2"),
        ({"shares": 1.5}, "shares = 1.5"),
        ({"shares": True}, "shares = True"),
        ({"threshold": 0.0}, "threshold = 0.0"),
        ({"threshold": 2}, r"threshold = 2, but must be a part such as 0.6, or a whole number >= 3"),
    ):
        with pytest.raises(SpecError, match=what):
            SecAgg(**changed)  # type: ignore[arg-type]
    with pytest.raises(SpecError, match="secure aggregation needs a task"):
        ft.flower.Fleet(MemoryGrid(), [np.zeros(3)], secure=SecAgg())


# The sums themselves

finite = st.floats(-100, 100)
one = st.tuples(st.integers(0, 4), finite, st.integers(0, 1000))


@pytest.mark.slow
@settings(max_examples=150)
@given(
    st.lists(one, min_size=1, max_size=12),
    st.lists(st.floats(-30, 0), min_size=5, max_size=5),
    st.sampled_from(fx.STEPS),
    st.floats(0, 1),
    st.floats(-5, 5),
)
def test_theta_needs_only_sums(reports, log_theta, step, gamma, past):
    """One mean per label, seen with the weight of its clients, moves theta as the clients themselves do."""
    tuner = ft.FedEx(k=5, step=step)
    belief = fx.Belief(({},) * 5, gamma, fx.Theta(normalise(np.array(log_theta)), past, 1.0))
    single, summed = [Seen((j,), (v,), n) for j, v, n in reports], []
    for j in range(5):
        mine = [(v, n) for k, v, n in reports if k == j and n]
        if mine:
            total = sum(n for _, n in mine)
            summed.append(Seen((j,), (sum(n * v for v, n in mine) / total,), total))
    whole, means = (tuner.update(belief, seen).theta for seen in (single, summed))
    choices, values, weights = (list(x) for x in zip(*reports, strict=True))
    kept = fx.gradient(belief.theta, choices, values, weights)
    if np.abs(kept).max() > 1e-6:  # else what is left is rounding, of which an aggressive step makes a full one
        assert means.p == pytest.approx(whole.p, abs=1e-5)
    assert means.past == pytest.approx(whole.past, rel=1e-9, abs=1e-9)
    assert means.mass == whole.mass


@given(st.data())
def test_contributions_add_up_to_the_sums(data):
    """Without the masks: what is packed is what is unpacked, for any clients."""
    k, numbers = 3, st.floats(0, 1, width=32)
    fed = data.draw(st.sampled_from([ft.FedEx(k=k), ft.FedEx(k=k, metric="loss"), ft.FedEx(k=k, signal="improvement")]))
    reports = []
    for _ in range(data.draw(st.integers(1, 6))):
        count = data.draw(st.integers(0, 50))
        before, after = (Metrics(data.draw(numbers), data.draw(numbers), count) for _ in range(2))
        change = [data.draw(st.floats(-1, 1, width=32)) for _ in range(4)]
        label = data.draw(st.integers(0, k - 1))
        reports.append(report(change, data.draw(st.integers(0, 50)), before, after, label))
    parts = [contribution(r, fed.value(r.tried[0]), k, scale(fed)) for r in reports]
    assert all(np.abs(v).max() <= RANGES.clip for p in parts for v in p)
    mean = [np.mean([p[n] for p in parts], axis=0) for n in range(2)]
    assert not impossible(mean, len(reports), scale(fed), Limits.of(scale(fed), 1.0, 0.0, fed))
    tally = tally_of(mean, len(reports), scale(fed))
    total = sum(r.examples for r in reports)
    assert (tally.reported, tally.trainings, tally.broken, tally.examples) == (len(reports), len(reports), 0, total)
    seen = {s.labels[0]: s for s in tally.seen}
    for j in range(k):
        mine = [r for r in reports if r.tried[0].label == j and r.after.count]
        assert (j in seen) == bool(mine)
        if mine:
            assert seen[j].weight == sum(r.after.count for r in mine)
            values = sum(r.after.count * fed.value(r.tried[0]) for r in mine) / seen[j].weight
            assert seen[j].values[0] == pytest.approx(values, abs=1e-6)
    assert (tally.change is None) == (total == 0)
    if tally.change is not None:
        change = sum(r.examples * r.change.astype(float) for r in reports) / total
        assert tally.change == pytest.approx(change, abs=1e-6)


def test_an_update_beyond_the_clip_is_counted():
    """Cut in the sums, counted among them, and said with what to do."""
    none, far, metrics, fed = np.zeros(4), np.array([0, 9, 0, 0]), Metrics(0.5, 0.5, 10), ft.FedEx(k=1)
    parts = [contribution(report(change, 50, metrics, metrics), 0.5, 1, scale(fed)) for change in (far, none, none)]
    tally = tally_of([np.mean([p[n] for p in parts], axis=0) for n in range(2)], 3, scale(fed))
    assert (tally.bounded, tally.broken) == (1, 0)
    assert tally.change is not None
    assert tally.change[1] == pytest.approx(4 / 3)
    tight = fleet_of(grid_of(), secure=replace(RANGES, clip=0.01))
    study = tune(tight.grid, tight, schedule=ft.random_search(budget=1, longest=1))
    assert tight.faults["cut"] == 1
    assert study.history[0].bounded == 5


def test_an_order_has_all_that_a_client_needs_beside_the_model_and_the_belief():
    plan = Plan(2**70, 3, 4, "valid", {"lr": np.float64(0.5)}, 0.25, np.zeros(4, np.float32), {}, ())
    fed = ft.FedEx(k=2, metric="loss")
    offer = Offer([{"lr": 0.1}, {"lr": 0.2}], fed, {"log_theta": np.zeros(2), "memory": np.zeros(3)})
    what = json.loads(order(plan, "fedprox", RANGES, offer))
    assert (what["seed"], what["arm"], what["round"], what["progress"]) == (2**70, 3, 4, 0.25)
    assert (what["method"], what["server"], what["configs"]) == ("fedprox", {"lr": 0.5}, [{"lr": 0.1}, {"lr": 0.2}])
    assert secure._tuner_of(what["tuner"]) == fed
    assert (offer.metric, Offer([{}]).metric) == ("loss", "error")


# Devices that lie under the masks


def lying(app: ClientApp, lie: Any) -> Any:
    """The app, whose client adds something else to the sums than it should."""
    honest = secure.contribution

    def call(message: Message, context: Any) -> Message:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(secure, "contribution", lambda *given: lie(*honest(*given)))
            return app(message, context)

    return call


def number(place: int, value: float) -> Any:
    """A lie about one of the numbers; 1 is the largest that it may be."""

    def lie(change: Any, numbers: Any) -> list[Any]:
        numbers[place] = value * RANGES.clip
        return [change, numbers]

    return lie


LIES = {
    "error before": number(3, -1.0),
    "error after": number(5, -1.0),
    "the error after": number(5, 1.0),
    "loss after": number(4, -1.0),
    "|V|": number(1, -1.0),
    "|V| of all labels": number(1, 1.0),
    "broken updates": number(6, -1.0),
    "value of label 0": number(8, -1.0),
    "|V| of label 0": number(11, -1.0),
}


@pytest.mark.slow
def test_every_sum_that_cannot_be_is_refused(tmp_path):
    """In each round another lie."""
    grid, lies = grid_of(), iter(LIES.values())
    grid.apps[1002] = lying(grid.apps[1002], lambda *given: next(lies)(*given))
    study = tune(grid, cohort=6, schedule=ft.random_search(budget=len(LIES), longest=len(LIES)), store=tmp_path)
    assert study.problem.faults == {"impossible": len(LIES)}
    assert {(r.clients, r.dropped, r.bounded) for r in study.history} == {(6, 6, 6)}
    assert all(math.isnan(r.error) for r in study.history)
    lines = [json.loads(line)["text"] for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    for name, line in zip(LIES, lines, strict=True):
        assert re.search(rf"arm 0, round \d: the sum over 6 clients is left out: .*{re.escape(name)}.* must be", line)


@pytest.mark.slow
def test_a_round_whose_sum_is_refused_does_not_end_the_study():
    grid = grid_of()
    grid.apps[1002] = lying(grid.apps[1002], LIES["error after"])
    study = tune(grid, cohort=5, schedule=ft.random_search(budget=4, longest=4))
    asked = [1002 in nodes for nodes in nodes_by_round(grid)]
    assert True in asked
    assert False in asked
    for record, lied in zip(study.history, asked, strict=True):
        assert (record.clients, record.dropped, record.bounded) == ((5, 5, 5) if lied else (5, 0, 0))
        assert math.isnan(record.error) == lied
    assert study.problem.faults == {"impossible": sum(asked)}


def nodes_by_round(grid: MemoryGrid) -> list[set[int]]:
    rounds: dict[int, set[int]] = {}
    for m in grid.sent:
        if "fitins.config" in m.content.config_records:
            round = json.loads(str(m.content.config_records["fitins.config"]["fedtuner"]))["round"]
            rounds.setdefault(round, set()).add(m.metadata.dst_node_id)
    return [rounds[t] for t in sorted(rounds)]


def masked(change: Any) -> Any:
    """A fault of the masked vectors."""

    def fault(reply: Message) -> Message:
        configs: Any = reply.content.config_records.get("secaggplus_configs", {})
        if "masked_params" in configs:
            configs["masked_params"] = change(list(configs["masked_params"]))
        return reply

    return fault


def shifted(place: int, by: int) -> Any:
    """Moves the first entry of a vector by several times what any client could."""

    def change(vectors: list[bytes]) -> list[bytes]:
        moved = bytes_to_ndarray(vectors[place])
        moved.flat[0] += by * 2**21
        return [ndarray_to_bytes(moved) if n == place else v for n, v in enumerate(vectors)]

    return change


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "why"),
    [
        (shifted(1, 100), "an entry of the update is"),
        (shifted(2, 100), r"\|T\| = \d+, but must be from 0 to 6"),
        pytest.param(shifted(2, -5), r"\|T\| = -[\d.]+, but must be from 0 to 6", marks=pytest.mark.slow),
    ],
    ids=["update", "many examples", "a negative number of examples"],
)
def test_entries_beyond_what_clients_can_send_are_refused(change, why, monkeypatch):
    """Where nothing but such sums comes, the study stops."""
    grid = grid_of()
    grid.faults[1002] = masked(change)
    problem = fleet_of(grid)
    monkeypatch.setattr("fedtuner.flower.secure_rounds._REFUSED", 2)
    with pytest.raises(FleetError, match=f"2 secure sums in a row cannot be; the last: .*is left out: {why}"):
        tune(grid, problem, cohort=6, schedule=ft.random_search(budget=3, longest=3))
    assert problem.faults == {"impossible": 2}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("zip of arrays", lambda vectors: [npz(), *vectors[1:]]),
        ("another shape", lambda vectors: [vectors[0], ndarray_to_bytes(np.zeros(10**6, np.int64)), *vectors[2:]]),
        ("another type", lambda vectors: [vectors[0], ndarray_to_bytes(np.zeros(13)), *vectors[2:]]),
        ("no vectors", lambda vectors: []),
        ("no bytes", lambda vectors: "x" * 2_000_000),
    ],
)
def test_masked_vectors_that_cannot_be_added_are_malformed(name, change):
    grid = grid_of()
    grid.faults[1002] = masked(change)
    study = tune(grid, cohort=6, schedule=ONCE)
    assert study.problem.faults == {"malformed": 1}
    assert [(r.dropped, r.bounded) for r in study.history] == [(1, 0)]


def npz() -> bytes:
    file = io.BytesIO()
    np.savez(file, w=np.zeros(13))
    return file.getvalue()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("key", "junk"),
    [
        ("pk1", b"junk"),
        ("shares", [b"junk"]),
        pytest.param("pk2", [-7], marks=pytest.mark.slow),
        pytest.param("dsts", [-7], marks=pytest.mark.slow),
        pytest.param("ctxts", [b"junk"], marks=pytest.mark.slow),
        pytest.param("nids", "junk", marks=pytest.mark.slow),
    ],
)
def test_junk_in_place_of_keys_and_shares_does_not_end_a_study(key, junk):
    grid = grid_of()

    def fault(reply: Message) -> Message:
        configs: Any = reply.content.config_records.get("secaggplus_configs", {})
        if key in configs:
            configs[key] = junk
        return reply

    grid.faults[1002] = fault
    study = tune(grid, cohort=6, schedule=ONCE)
    assert study.problem.faults == {"malformed": 1}
    late = key in ("nids", "shares")  # its vector is in the sum, and the others' shares are enough
    assert [(r.dropped, r.bounded) for r in study.history] == [(0 if late else 1, 0)]


def test_a_share_that_unmasks_nothing_leaves_the_round_out():
    """It looks like a share: the sum of masks that is left is refused, or cannot be made at all."""
    grid = grid_of()

    def fault(reply: Message) -> Message:
        configs: Any = reply.content.config_records.get("secaggplus_configs", {})
        if "shares" in configs:
            configs["shares"] = [bytes(len(share)) for share in configs["shares"]]
        return reply

    grid.faults[1002] = fault
    study = tune(grid, cohort=6, schedule=ONCE)
    assert study.problem.faults == {"impossible": 1}
    assert [(r.dropped, r.bounded) for r in study.history] == [(6, 6)]
