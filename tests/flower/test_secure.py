"""FedEx through Flower's SecAgg+: the sums are right, and nothing but sums can be read."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedtuner[flower]'")

from flwr.app import Error, Message
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_grid import MemoryGrid

import fedtuner as ft
import toys
from fedtuner import fedex as fx
from fedtuner.arm import begin, cohort, fold, signal, work
from fedtuner.errors import FleetError, SpecError
from fedtuner.federation import Report
from fedtuner.flower import SecAgg
from fedtuner.flower.secure import contribution, totals
from fedtuner.methods.base import Job, Update
from fedtuner.rng import stream
from fedtuner.task import Metrics

CLIENTS = toys.clients(6)
RANGES = SecAgg(clip=4.0, most_examples=50)  # the count of batches in w changes by more than 1
SCHEDULE = ft.random_search(budget=2, longest=2)


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


def in_the_open(study: ft.Study, secret: str = "hush") -> Any:
    """The study's first arm, folded from the reports themselves; clients draw as they do behind the masks."""
    problem, setting, arm = toys.problem(), study.setting, study.arm(0)
    state = begin(setting, problem, arm)
    for t in range(SCHEDULE.longest):
        reports = []
        for i in cohort(setting, problem, arm, t):
            rng = stream(setting.seed, "choose", arm.id, t, problem.id_of(i), secret)
            j = fx.choose(state.belief, 1, rng, setting.fedex.cutoff)[0]
            job = Job(setting.seed, arm.id, t, i, j, arm.candidates[j], arm.server, state.w)
            reports.append(work(setting.method, problem, job))
        state, record = fold(setting, problem, arm, state, reports)
    return state, record


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"method": ft.methods.fedprox, "fedex": ft.FedEx(k=4, eps=1, metric="loss", step="adaptive")},
        {"method": ft.methods.reptile, "fedex": ft.FedEx(k=2, eps=1, signal="improvement"), "target": "global"},
        {"fedex": None},
    ],
    ids=["fedavg", "fedprox by loss", "reptile by improvement", "no fedex"],
)
def test_the_sums_give_what_the_reports_would(changed):
    """End to end with Flower's own mod and workflow: up to the rounding that masks need."""
    study = tune(grid_of(), **changed)
    state, record = in_the_open(study)
    ours, last = study.states[0], study.records[0][-1]
    assert ours.w == pytest.approx(state.w, abs=2e-5)
    assert ours.belief.theta == pytest.approx(state.belief.theta, abs=2e-4)
    assert ours.belief.baseline == pytest.approx(state.belief.baseline, abs=1e-5)
    assert (last.clients, last.dropped, last.broken) == (record.clients, record.dropped, record.broken) == (5, 0, 0)
    assert (last.examples, last.validated, last.mode) == (record.examples, record.validated, record.mode)
    for name in ("loss_before", "loss_after", "error_before", "error_after", "loss", "error", "confidence"):
        assert getattr(last, name) == pytest.approx(getattr(record, name), abs=2e-4)
    if study.setting.fedex.k > 1:
        assert not np.allclose(ours.belief.theta, 1 / ours.belief.theta.size)  # it has learned something


def test_an_evaluation_is_a_sum_too():
    study = tune(grid_of())
    plain = toys.tune(method=ft.methods.fedavg, schedule=SCHEDULE, cohort=5)
    plain.states[study.best.arm] = study.states[study.best.arm]
    plain.winner = study.best.arm
    assert study.evaluate("test") == pytest.approx(plain.evaluate("test"), abs=1e-4)
    with pytest.raises(SpecError, match='config = "sample", but with secure aggregation'):
        study.evaluate("test", "sample")


def test_nothing_but_masked_vectors_leaves_a_client():
    """Every reply of a round: keys, shares and vectors that look like noise; no metrics, no number of examples."""
    grid, replies = grid_of(), []
    grid.faults = dict.fromkeys(grid.apps, lambda reply: replies.append(reply) or reply)
    study = tune(grid, schedule=ft.random_search(budget=1, longest=1))
    assert len(replies) == 4 * 5
    size = study.problem.task.size
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
    from flwr.common import bytes_to_ndarray

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
        assert "candidate" not in what
        assert len(what["candidates"]) == 3


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
    assert problem.population == 7
    assert problem.faults["left"] == 2


def test_an_evaluation_of_many_is_several_sums(monkeypatch):
    grid = grid_of()
    study = tune(grid, fleet_of(grid, least=3))
    whole = study.evaluate("test")
    sent = len(grid.sent)
    with monkeypatch.context() as patch:
        patch.setattr("fedtuner.flower.secure.MOST", 3)
        assert study._evaluate("test", "mode", "error") == pytest.approx(whole, abs=1e-4)
    setups = [
        m.content.config_records["secaggplus_configs"].get("sample_num") for m in grid.sent[sent:]
        if m.metadata.message_type == "train"
    ]  # fmt: skip
    assert [n for n in setups if n] == [3] * 6
    grid.online -= {1005}
    assert study._evaluate("test", "mode", "error")["missing"] == 1


def test_an_update_that_breaks_adds_nothing_to_the_model_and_the_worst_to_theta():
    nan = Update(np.full(4, np.nan, np.float32))
    broken = Report(0, 1, nan, 9, Metrics(0.5, 0.5, 4), Metrics(math.inf, 1.0, 4), False)
    vectors = contribution(broken, np.zeros(4, np.float32), 3, ft.FedEx(), RANGES, 1.0)
    sums = totals([np.asarray(v) for v in vectors], 1, ft.FedEx(), RANGES, 1.0)
    assert (sums.broken, sums.examples, sums.counts.tolist()) == (1, 0, [0, 4, 0])
    assert sums.values == pytest.approx([0, 4, 0])
    assert not sums.change.any()
    assert (sums.after.loss, sums.after.error) == (RANGES.most_loss, 1.0)


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
        ({"cohort": 2}, "cohort = 2, but a secure sum needs 3 clients"),
        ({"cohort": 1001}, "cohort = 1001, but a secure sum holds 1000 clients at most"),
        ({"fedex": ft.FedEx(k=3, tries="all")}, "fedex.tries = all"),
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


@settings(max_examples=150)
@given(
    st.lists(one, min_size=1, max_size=12),
    st.lists(st.floats(-30, 0), min_size=5, max_size=5),
    st.sampled_from(fx.STEPS),
    st.floats(0, 1),
    st.floats(-5, 5),
)
def test_theta_needs_only_sums(reports, log_theta, step, gamma, past):
    belief = fx.Belief(fx._normalise(np.array(log_theta)), past, 1.0)
    choices, values, weights = (list(x) for x in zip(*reports, strict=True))
    sums, counts = np.zeros(5), np.zeros(5)
    for j, v, n in reports:
        sums[j] += n * v
        counts[j] += n
    whole = fx.exponentiate(belief, choices, values, weights, step, gamma)
    summed = fx.exponentiate_sums(belief, sums, counts, step, gamma)
    kept = fx.gradient(belief, choices, values, weights)
    if np.abs(kept).max() > 1e-6:  # else what is left is rounding, of which an aggressive step makes a full one
        assert summed.theta == pytest.approx(whole.theta, abs=1e-5)
    assert summed.past == pytest.approx(whole.past, rel=1e-9, abs=1e-9)
    assert summed.mass == whole.mass


@settings(max_examples=60)
@given(st.data())
def test_contributions_add_up_to_the_sums(data):
    """Without the masks: what is packed is what is unpacked, for any clients."""
    k, w = 3, np.zeros(4, np.float32)
    numbers = st.floats(0, 1, width=32)
    fed = data.draw(st.sampled_from([ft.FedEx(k=k), ft.FedEx(k=k, metric="loss"), ft.FedEx(k=k, signal="improvement")]))
    reports = []
    for _ in range(data.draw(st.integers(1, 6))):
        before, after = (Metrics(data.draw(numbers), data.draw(numbers), 0) for _ in range(2))
        count = data.draw(st.integers(0, 50))
        before, after = replace(before, count=count), replace(after, count=count)
        update = Update(np.array([data.draw(st.floats(-1, 1, width=32)) for _ in range(4)], np.float32))
        reports.append(
            Report(0, data.draw(st.integers(0, k - 1)), update, data.draw(st.integers(0, 50)), before, after, True)
        )
    parts = [contribution(r, w, k, fed, RANGES, 1.0) for r in reports]
    assert all(np.abs(v).max() <= RANGES.clip for p in parts for v in p)
    mean = [np.mean([p[n] for p in parts], axis=0) for n in range(2)]
    sums = totals(mean, len(reports), fed, RANGES, 1.0)
    total = sum(r.examples for r in reports)
    assert (sums.clients, sums.broken, sums.examples) == (len(reports), 0, total)
    for j in range(k):
        mine = [r for r in reports if r.candidate == j]
        assert sums.counts[j] == sum(r.after.count for r in mine)
        assert sums.values[j] == pytest.approx(sum(r.after.count * signal(fed, r) for r in mine), abs=1e-6)
    if total:
        change = sum(r.examples * r.update.w.astype(float) for r in reports) / total
        assert sums.change == pytest.approx(change, abs=1e-6)


def test_an_update_beyond_the_clip_is_counted():
    """Cut in the sums, counted among them, and said with what to do."""
    w, far = np.zeros(4, np.float32), np.array([0, 9, 0, 0], np.float32)
    metrics = Metrics(0.5, 0.5, 10)
    made = [Report(0, 0, Update(v), 50, metrics, metrics, True) for v in (far, w, w)]
    parts = [contribution(r, w, 1, ft.FedEx(k=1), RANGES, 1.0) for r in made]
    sums = totals([np.mean([p[n] for p in parts], axis=0) for n in range(2)], 3, ft.FedEx(k=1), RANGES, 1.0)
    assert (sums.cut, sums.broken) == (1, 0)
    assert sums.change[1] == pytest.approx(4 / 3)
    tight = fleet_of(grid_of(), secure=replace(RANGES, clip=0.01))
    tune(tight.grid, tight, schedule=ft.random_search(budget=1, longest=1))
    assert tight.faults["cut"] == 1
