"""Evaluations of many clients: streamed they are those of one plan; a sample's is unbiased, and its interval covers."""

from __future__ import annotations

import math
import tracemalloc
from typing import Any

import numpy as np
import pytest

import fedtuner as ft
import toys
from fedtuner.core.across import TENTH
from fedtuner.core.metric import NOTHING, Metrics
from fedtuner.core.records import Row, Tally
from fedtuner.errors import SpecError
from fedtuner.rng import stream
from fedtuner.run import evaluating, sampling
from fedtuner.run.columns import Columns
from fedtuner.run.executors import Serial
from fedtuner.run.journal import Journal

GROUPS = {"phone0": "rural", "phone1": "rural", "phone4": "urban"}


class Sometimes(toys.Softmax):
    """A model whose error is not defined for some clients, and whose loss is infinite for others."""

    def evaluate(self, w: Any, data: Any, config: Any) -> Metrics:
        found = super().evaluate(w, data, config)
        if len(data) % 3 == 0:
            return Metrics(found.loss, math.nan, found.count)
        return Metrics(math.inf, 1.0, found.count) if len(data) % 5 == 0 else found


class Pooled(toys.Softmax):
    """A model whose error is the share of all clients' examples that are wrong: a pooled metric."""

    metric = ft.Metric("wrong", rate=True, value=lambda sums: sums[0] / sums[1], sums=lambda output, y: (0.0, 0.0))

    def evaluate(self, w: Any, data: Any, config: Any) -> Metrics:
        found = super().evaluate(w, data, config)
        if not found.count or len(data) % 5 == 0:
            return Metrics(math.inf, 1.0, found.count) if found.count else NOTHING
        wrong = round(found.error * found.count)
        return Metrics(found.loss, found.error, found.count, (float(wrong), float(found.count)))


def study_of(model: Any, clients: Any = None, **settings: Any) -> ft.Study:
    problem = ft.Simulation(model, clients or toys.clients(30), "toy", groups=GROUPS)
    return toys.tune(problem=problem, **settings)


@pytest.mark.slow
@pytest.mark.parametrize("model", [toys.Softmax, Sometimes, Pooled])
@pytest.mark.parametrize("workers", [1, 2])
def test_block_after_block_is_all_at_once(model, workers, monkeypatch):
    """To the bit: means, worst tenth, groups, standard errors, counts; only a pooled worst tenth is missing."""
    study = study_of(model(), workers=workers)
    study.evaluate("test")
    [whole] = study.journal.evaluated.values()
    monkeypatch.setattr(evaluating, "WHOLE", 10)
    monkeypatch.setattr(evaluating, "BLOCK", 7)
    study.journal.evaluated.clear()
    told: list[Any] = []
    with study._session() as session:
        session.journal.evaluated.clear()
        streamed = session.evaluate(study.winner, "test", tell=lambda *how: told.append(how))
    if model is Pooled:
        whole.breakdown.pop(TENTH)  # type: ignore[attr-defined]
    assert repr(streamed) == repr(whole)
    assert told == [(7, 30), (14, 30), (21, 30), (28, 30), (30, 30)]


@pytest.mark.slow
def test_what_is_kept_of_a_client_is_small():
    """Not kilobytes: no reports, jobs or rows of the blocks before."""
    clients, block, federation = 50_000, 1_000, toys.problem()

    def tallies():
        for start in range(0, clients, block):
            rows = tuple(Row(i, 0, 10, 5, 0.5, 0.25, 0.5, (i % 2) / 2) for i in range(start, start + block))
            yield Tally(asked=block, reported=block, rows=rows)

    tracemalloc.start()
    try:
        found = evaluating.streamed(tallies(), federation)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (found.clients, found.validated, found.error_after, found.loss_after) == (clients, 5 * clients, 0.25, 0.25)
    assert found.breakdown[TENTH] == (0.5, 0.5)
    assert peak < 200 * clients  # 40 bytes, twice while blocks are joined, and what sums need


# Samples


def population(n: int = 3_000) -> tuple[np.ndarray, np.ndarray]:
    """Return sizes that differ a thousandfold, some of them 0, and errors that depend on them."""
    rng = stream(7, "population")
    sizes = np.minimum(rng.pareto(1.0, n) * 3, 3_000).astype(np.int64)
    return sizes, np.clip(0.6 - 0.06 * np.log1p(sizes) + rng.normal(0, 0.15, n), 0, 1)


def estimated(sizes: np.ndarray, errors: np.ndarray, sample: int, seed: int, counts: Any = None) -> Any:
    places, times = sampling.draw(sizes, sample, seed, "test")
    counts = (sizes if counts is None else counts)[places]
    both = dict.fromkeys(("before", "after"), errors[places])
    kept = Columns(counts, both, both, np.full(len(places), -1, np.int32), [], len(places))
    return sampling.estimate(kept, times, sizes[places], sample, len(sizes))


@pytest.mark.slow
@pytest.mark.parametrize("counted_twice", [False, True])
def test_a_samples_mean_is_unbiased_and_its_interval_covers(counted_twice):
    """Over 2000 seeds: the mean of the means is that of all clients by |V|, and 95 % of the intervals hold it."""
    sizes, errors = population()
    counts = sizes * np.where(np.arange(len(sizes)) % 3 == 0, 2, 1) if counted_twice else sizes
    true = float((counts * errors).sum() / counts.sum())
    found = [estimated(sizes, errors, 200, seed, counts) for seed in range(2000)]
    means, spreads = (np.array([getattr(e, name) for e in found]) for name in ("error_after", "spread_after"))
    assert abs(means.mean() - true) < 4 * means.std() / math.sqrt(len(means))
    assert spreads.mean() == pytest.approx(means.std(), rel=0.1)
    covered = float((abs(means - true) < 1.96 * spreads).mean())
    assert 0.93 < covered < 0.965  # the share's own standard error is 0.005
    plain = float(errors.mean())
    assert abs(plain - true) > 10 * abs(means.mean() - true)  # the mean by clients is another number


def test_a_smaller_sample_is_the_first_part_of_a_larger_one():
    sizes, _ = population()
    few, many = (dict(zip(*sampling.draw(sizes, n, 3, "test"), strict=True)) for n in (100, 1000))
    assert sum(few.values()) == 100
    assert sum(many.values()) == 1000
    assert all(many[place] >= times for place, times in few.items())
    assert all(sizes[place] for place in many)
    other = dict(zip(*sampling.draw(sizes, 100, 4, "test"), strict=True))
    assert other != few != dict(zip(*sampling.draw(sizes, 100, 3, "valid"), strict=True))


def test_study_evaluate_says_what_was_drawn_and_keeps_it(tmp_path, monkeypatch):
    study = study_of(toys.Softmax(), toys.clients(60), store=tmp_path)
    found = study.evaluate("test", sample=40)
    everyone = study.evaluate("test")
    assert (found["sample"], found["population"]) == (40, 60)
    assert found["clients"] < 40  # some were drawn twice
    assert found["global_low"] < found["global"] < found["global_high"]
    assert found["global_low"] < everyone["global"] < found["global_high"]
    assert set(everyone) == {"global", "personalized"}
    loss = study.evaluate("test", metric="loss", sample=40)
    assert loss["personalized_low"] < loss["personalized"] < loss["personalized_high"]
    assert "global_low" not in study.evaluate("test", sample=40, across="group rural")
    with pytest.raises(SpecError, match="across = 'worst tenth'"):
        study.evaluate("test", sample=40, across="worst tenth")
    assert study.evaluate("test", sample=60) == everyone  # no more clients than that: all
    monkeypatch.setattr(Serial, "evaluate", None)
    assert study.evaluate("test", sample=40) == found
    again = study_of(toys.Softmax(), toys.clients(60), store=tmp_path)
    assert again.evaluate("test", sample=40) == found


def test_what_is_known_best_is_shown():
    """All clients, else the largest sample."""
    study = study_of(toys.Softmax(), toys.clients(60))
    for sample in (40, 50, 30):
        study.evaluate("test", sample=sample)
    [best] = study.journal.evaluations.values()
    assert best.sample == 50
    study.evaluate("test")
    [best] = study.journal.evaluations.values()
    assert not best.sample


def test_all_studies_of_a_seed_draw_the_same_clients():
    """So that a model and the untuned default are compared on the same ones."""
    study = study_of(toys.Softmax(), toys.clients(60))
    default = ft.untuned(study)
    found = [one.evaluate("test", sample=40) for one in (study, default)]
    assert found[0]["clients"] == found[1]["clients"]
    assert found[0]["global"] != found[1]["global"]


def test_a_metric_of_which_higher_is_better_has_its_interval_turned():
    model = toys.Softmax()
    model.metric = ft.Metric("right", rate=True, maximise=True)
    study = study_of(model, toys.clients(60))
    found, error = study.evaluate("test", sample=40), study.evaluate("test", metric="error", sample=40)
    assert found["global_low"] == pytest.approx(1 - error["global_high"])
    assert found["global_low"] < found["global"] < found["global_high"] <= 1


def test_a_split_without_examples_has_no_mean_and_costs_no_work():
    clients = toys.lazy_clients(60)
    bare = ft.LazyClients(list(clients.ids), (clients.sizes["train"], clients.sizes["valid"], 0), clients.make)
    study = toys.tune(problem=ft.Simulation(toys.Softmax(), bare))
    found = study.evaluate("test", sample=40)
    assert math.isnan(found["global"])
    assert found["clients"] == 0


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        (5, "sample = 5, but must be a whole number >= 30: an interval needs as many"),
        (1e3, "sample = 1000.0, but must be a whole number"),
        (True, "sample = True"),
    ],
)
def test_what_is_no_sample_is_refused(sample, message):
    study = study_of(toys.Softmax())
    with pytest.raises(SpecError, match=message):
        study.evaluate("test", sample=sample)


def test_what_cannot_be_sampled_says_why():
    study = study_of(Pooled())
    with pytest.raises(SpecError, match=r"wrong is pooled, .*: leave sample out, or make the metric with pooled=False"):
        study.evaluate("test", sample=30)
    with pytest.raises(SpecError, match="the sizes of these clients' data are known to them alone"):
        sampling.checked(ft.Outside({"w": np.zeros(2)}, 100), 30)


def test_fedtuner_run_samples_of_many_clients_only():
    def of(n: int, model: Any) -> int | None:
        return sampling.usual_sample(ft.Simulation(model, ft.LazyClients(n, (1, 1, 1), lambda id, split: None)))

    assert of(100_000, toys.Softmax()) is None
    assert of(100_001, toys.Softmax()) == 10_000
    assert of(100_001, Pooled()) is None
    assert sampling.usual_sample(ft.Outside({"w": np.zeros(2)}, 100_001)) is None


def test_a_journal_has_no_word_of_samples_where_there_are_none(tmp_path):
    study = study_of(toys.Softmax(), toys.clients(60), store=tmp_path)
    study.evaluate("test")
    assert "population" not in (tmp_path / "journal.jsonl").read_text()
    study.evaluate("test", sample=40)
    assert "population" in (tmp_path / "journal.jsonl").read_text()
    read: Journal = ft.load(tmp_path).journal
    assert repr(read.evaluated) == repr(study.journal.evaluated)
    assert repr(read.sampled) == repr(study.journal.sampled)
