"""Whom an arm serves: the same as what arms are compared by."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

import fedtuner as ft
import toys
from fedtuner.core.across import across
from fedtuner.core.metric import Metric, Metrics
from fedtuner.core.records import Record, Row
from fedtuner.report import served
from fedtuner.report.summary import summary
from fedtuner.rng import stream

GROUPS = {f"phone{n}": ("town", "sea", "")[n % 3] for n in range(40)}


def records(seed: int, rounds: int = 12) -> list[Record]:
    """Rounds of up to 25 clients, some of which have not validated or have no error, with errors that tie."""
    rng = stream(seed, "served")
    made = []
    for t in range(1, rounds + 1):
        rows = []
        for n in sorted(rng.choice(40, rng.integers(0, 26), replace=False)):
            before, after = (float(e) if rng.random() > 0.1 else math.nan for e in rng.integers(0, 6, 2) / 5)
            rows.append(Row(f"phone{n}", 0, 5, int(rng.integers(0, 4)), 1.0, 1.0, before, after))
        made.append(
            Record(0, t, 25, 25 - len(rows), 0, 0, 5, 5, 5, 1, 1, 1, 1, 1, 1, 0, 0, 1, False, tuple(rows))
        )  # fmt: skip
    return made


@pytest.mark.parametrize("seed", range(8))
def test_a_rounds_errors_are_those_by_which_arms_are_compared(seed):
    some = records(seed)
    for when in ("before", "after"):
        found = served.over_rounds(some, GROUPS, 1, when)
        assert list(found) == ["clients", "worst tenth", "group sea", "group town"]
        for n, record in enumerate(some):
            metrics = [Metrics(1.0, getattr(r, f"error_{when}"), r.validated) for r in record.rows]
            compared = across(metrics, [GROUPS[r.client] for r in record.rows], Metric())
            for who, values in found.items():
                np.testing.assert_allclose(values[n], compared[who].error if who in compared else math.nan, err_msg=who)


def test_a_mean_of_several_rounds_is_by_validation_examples():
    rows = [
        Row("a", 0, 1, 1, 0, 0, 1.0, 1.0),
        Row("a", 0, 1, 3, 0, 0, 0.0, 0.0),
        Row("a", 0, 1, 2, 0, 0, 0.5, math.inf),
    ]
    some = [replace(r, rows=(row,)) for r, row in zip(records(0, 3), rows, strict=True)]
    assert served.over_rounds(some, {}, 2, "before")["clients"].tolist() == [1.0, 0.25, 0.2]
    assert served.over_rounds(some, {}, 2, "after")["clients"].tolist() == [1.0, 0.25, math.inf]


def test_of_eleven_clients_the_worst_tenth_are_two():
    rows = tuple(Row(n, 0, 9, 2, 0, 0, n / 10, (10 - n) / 10) for n in range(11))
    whom = served.whom(served.by_client([replace(records(0, 1)[0], rows=rows)]), {0: "a", 10: "b"})
    # before: clients 10 and 9 have 1.0 and 0.9; after: clients 0 and 1
    assert [(w.who, w.clients, round(w.before, 9), round(w.after, 9)) for w in whom] == [
        ("clients", 11, 0.5, 0.5), ("worst tenth", 2, 0.95, 0.95), ("group a", 1, 0.0, 1.0), ("group b", 1, 1.0, 0.0),
    ]  # fmt: skip


@pytest.mark.slow
def test_show_has_the_worst_tenth_and_groups_of_studies_that_are_finished_or_not(tmp_path, fedtuner):
    clients = toys.clients()
    groups = {client.id: "[b]town" if n % 2 else "sea" for n, client in enumerate(clients)}
    problem = ft.Simulation(toys.Softmax(), clients, "groups", groups)
    study = toys.tune(store=tmp_path / "s", problem=problem)
    study.evaluate("test")
    ft.untuned(study, progress=False).evaluate("test")
    code, out, _ = fedtuner("show", tmp_path / "s")
    assert code == 0
    assert out.count("worst tenth of clients") == 3  # on test data: tuned, untuned; on validation data
    assert out.count("group [b]town") == 3
    lines = (tmp_path / "s" / "journal.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "part").mkdir()
    (tmp_path / "part" / "journal.jsonl").write_bytes(b"".join(lines[:-3]))
    found = summary(tmp_path / "part")["served"]
    assert [row["who"] for row in found["whom"]] == ["clients", "worst tenth", "group [b]town", "group sea"]
    assert "worst tenth of clients" in fedtuner("show", tmp_path / "part")[1]
    # Without groups the journal's first line says nothing of them.
    toys.tune(store=tmp_path / "plain")
    assert b'"groups"' not in (tmp_path / "plain" / "journal.jsonl").read_bytes()
    assert b'"groups":{' in lines[0]
