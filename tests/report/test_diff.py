"""Two studies are equal to the bit, or the first thing of each kind that differs is named."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

import fedtuner as ft
import toys
from fedtuner.core.store import Begun, Done, Eliminated, Evaluated, Joined, Started, Won
from fedtuner.report import Difference, differences, journal_of
from fedtuner.report.diff import as_lines, as_table, versions
from fedtuner.run.journal import Journal
from fedtuner.run.store import Folder


@pytest.fixture(scope="module")
def events(tmp_path_factory):
    """What happens in a study of 4 arms to round 5, 2 of them to round 10."""
    path = tmp_path_factory.mktemp("studies") / "s"
    toys.tune(store=path).evaluate("test")
    return list(Folder(path).events())


def changed(events, kind, change, which=0):
    """The same events, with one of a kind changed; None: it has not happened."""
    places = [i for i, event in enumerate(events) if isinstance(event, kind)]
    made = list(events)
    new = change(made[places[which]])
    made[places[which] : places[which] + 1] = [] if new is None else [new]
    return made


def diff(events, others):
    return differences(Journal(events), Journal(others))


def record(event, **values):
    return replace(event, record=replace(event.record, **values))


# Equal


def test_a_study_is_equal_to_itself(events):
    assert diff(events, events) == []
    assert as_table([]) == {"equal": True, "differences": []}


def test_the_order_of_arms_in_the_journal_does_not_matter(events):
    begun, *others = events
    by_arm = {id: [e for e in others if _arm(e) == id] for id in (3, 1, 2, 0)}
    last = [e for e in others if _arm(e) is None]
    assert diff(events, [begun, *(e for arm in by_arm.values() for e in arm), *last]) == []
    taken = [iter(arm) for arm in by_arm.values()]
    mixed = [e for n in range(20) for arm in taken if (e := next(arm, None)) is not None]
    assert len(mixed) + len(last) == len(others)
    assert diff(events, [begun, *mixed, *last]) == []


def _arm(event):
    if isinstance(event, Started):
        return event.arm.id
    if isinstance(event, Done):
        return event.record.arm
    return event.arm if isinstance(event, Eliminated) else None


def test_when_states_were_saved_does_not_matter(events):
    """Except for the winner's, a checksum that one study lacks says nothing."""
    won = next(e for e in events if isinstance(e, Won))
    made = [
        replace(e, state="", belief=())
        if isinstance(e, Done) and (e.record.arm, e.record.round) != (won.arm, won.round)
        else e
        for e in events
    ]
    assert sum(bool(e.state) for e in made if isinstance(e, Done)) == 1
    assert diff(events, made) == diff(made, events) == []


def test_versions_and_who_was_met_when_do_not_matter(events):
    made = changed(events, Begun, lambda e: replace(e, versions={**e.versions, "numpy": "0.1"}))
    made.insert(3, Joined(("a", "b")))
    assert diff(events, made) == []
    found = versions(Journal(events), Journal(made))
    assert len(found) == 1
    assert found[0].startswith("numpy ")
    assert found[0].endswith(" and 0.1")


def test_nan_is_nan(events):
    made = changed(events, Done, lambda e: record(e, loss=math.nan, error=math.inf))
    again = changed(events, Done, lambda e: record(e, loss=float("nan"), error=math.inf))
    assert diff(made, again) == []


@pytest.mark.parametrize("workers", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_the_number_of_workers_does_not_matter(tmp_path, workers, events):
    toys.tune(store=tmp_path / "s", workers=workers).evaluate("test")
    assert differences(Journal(events), journal_of(tmp_path / "s")) == []


# Different: each kind of event, each of its values


def one(found):
    assert len(found) == 1, found
    return found[0]


@pytest.mark.parametrize(
    ("kind", "which", "change", "said"),
    [
        (Begun, 0, lambda e: replace(e, setup={**e.setup, "seed": 3}), ("setup", (), "seed", 0, 3)),
        (
            Begun,
            0,
            lambda e: replace(e, setup={**e.setup, "tuner": {**e.setup["tuner"], "eps": 0.4}}),
            ("setup", (), "tuner.eps", 0.3, 0.4),
        ),
        (
            Begun,
            0,
            lambda e: replace(e, federation={**e.federation, "clients": 7}),
            ("setup", (), "problem.clients", 6, 7),
        ),
        (Begun, 0, lambda e: replace(e, start="abc"), ("setup", (), "start", "", "abc")),
        (Done, 1, lambda e: record(e, dropped=1), ("round", (0, 2), "dropped", 0, 1)),
        (Done, 1, lambda e: record(e, diverged=True), ("round", (0, 2), "diverged", False, True)),
        (Done, 1, lambda e: record(e, loss=math.nan), ("round", (0, 2), "loss", None, "nan")),
    ],
)
def test_a_value_that_differs_is_named(events, kind, which, change, said):
    event, key, name, first, second = said
    found = one(diff(events, changed(events, kind, change, which)))
    assert (found.event, found.key, found.name, found.second, found.more) == (event, key, name, second, 0)
    assert first is None or found.first == first
    back = one(diff(changed(events, kind, change, which), events))
    assert (back.first, back.second) == (found.second, found.first)


def test_every_field_of_a_round_counts(events):
    first = next(e for e in events if isinstance(e, Done))
    for name, value in vars(first.record).items():
        if name in ("arm", "round"):
            continue
        others = {"rows": (), "unusable": ("phone2",)}
        other = others[name] if name in others else not value if isinstance(value, bool) else value + 1
        made = changed(events, Done, lambda e, name=name, other=other: record(e, **{name: other}))
        found = one(diff(events, made))
        assert (found.event, found.key, found.name) == ("round", (0, 1), name)


def test_one_bit_of_one_client_counts(events):
    def nudged(event):
        row, *others = event.record.rows
        return record(event, rows=(row._replace(loss_after=math.nextafter(row.loss_after, 9)), *others))

    found = one(diff(events, changed(events, Done, nudged, 2)))
    assert (found.key, found.name) == ((0, 3), "rows[0][5]")
    assert found.first != found.second
    zero = changed(events, Done, lambda e: record(e, loss=0.0))
    assert one(diff(zero, changed(events, Done, lambda e: record(e, loss=-0.0)))).name == "loss"


def test_the_first_is_named_and_the_others_are_counted(events):
    made = [record(e, loss=9.0) if isinstance(e, Done) and e.record.round > 3 else e for e in events]
    found = one(diff(events, made))
    rounds = sum(e.record.round > 3 for e in events if isinstance(e, Done))
    assert (found.key, found.more) == ((0, 4), rounds - 1)


def test_arms_and_their_candidates(events):
    def server(event):
        return replace(event, arm=replace(event.arm, server={**event.arm.server, "lr": 2.0}))

    found = one(diff(events, changed(events, Started, server, 2)))
    assert (found.event, found.key, found.name, found.second) == ("arm", (2,), "server.lr", 2.0)
    moved = changed(events, Started, lambda e: replace(e, candidates=(*e.candidates[:-1], {"lr": 3.0})), 1)
    found = one(diff(events, moved))
    assert (found.key, found.name) == ((1,), "candidates[2].lr")
    child = changed(events, Started, lambda e: replace(e, arm=replace(e.arm, parent=(0, 5))), 3)
    assert one(diff(events, child)).name == "parent"


def test_states_that_both_have(events):
    saved = [e for e in events if isinstance(e, Done)]
    which = next(i for i, e in enumerate(saved) if e.state)
    found = one(diff(events, changed(events, Done, lambda e: replace(e, state="0"), which)))
    assert (found.event, found.key, found.name) == ("state", (0, 5), "checksum")
    assert (found.first, found.second) == (saved[which].state, "0")


def test_the_winners_state_always(events):
    won = next(e for e in events if isinstance(e, Won))
    keys = [(e.record.arm, e.record.round) for e in events if isinstance(e, Done)]
    which = keys.index((won.arm, won.round))
    found = one(diff(events, changed(events, Done, lambda e: replace(e, state=""), which)))
    assert (found.event, found.key, found.name, found.second) == ("state", (won.arm, won.round), "", None)


def test_ends_eliminations_winners_and_evaluations(events):
    ended = changed(events, Done, lambda e: replace(e, ended="stalled", state=e.state or "0"), -1)
    assert "ended" in [d.event for d in diff(events, ended)]
    found = one(diff(events, changed(events, Eliminated, lambda e: replace(e, round=4))))
    assert (found.event, found.name, found.second) == ("eliminated", "round", 4)
    found = one(diff(events, changed(events, Eliminated, lambda e: replace(e, score=(0.5, 0.25)))))
    assert (found.name, found.second) == ("score[0]", 0.5)
    found = one(diff(events, changed(events, Won, lambda e: replace(e, score=(0.5, 0.25)))))
    assert (found.event, found.key, found.name) == ("winner", (), "score[0]")
    change = changed(events, Evaluated, lambda e: replace(e, result=replace(e.result, missing=2)))
    found = one(diff(events, change))
    won = next(e for e in events if isinstance(e, Won))
    assert (found.event, found.key, found.name, found.second) == (
        "evaluated", (won.arm, won.round, "test", "mode"), "missing", 2
    )  # fmt: skip


@pytest.mark.parametrize("kind", [Eliminated, Won, Evaluated])
def test_what_only_one_study_has(events, kind):
    less = changed(events, kind, lambda e: None)
    for first, second, name in ((events, less, "s"), (less, events, "t")):
        found = [d for d in diff(first, second) if d.event == kind.event]
        assert found
        assert (found[0].first is None) is (first is less)
        assert f"only in {name}" in as_lines(found, ("s", "t"))[0]


def test_a_study_that_is_not_finished_lacks_rounds(events):
    cut = [e for e in events if isinstance(e, (Begun, Started)) or (isinstance(e, Done) and e.record.round <= 3)]
    found = {d.event: d for d in diff(events, cut)}
    assert set(found) == {"round", "state", "eliminated", "winner", "evaluated"}
    assert (found["round"].key, found["round"].name, found["round"].second) == ((0, 4), "", None)
    assert found["round"].more == sum(isinstance(e, Done) for e in events) - 12 - 1


def test_the_order_of_differences_is_that_of_a_study(events):
    other = toys.tune(seed=3)
    other.evaluate("test")
    found = differences(Journal(events), other.journal)
    assert [d.event for d in found][:3] == ["setup", "arm", "round"]
    assert found[0].name == "seed"
    assert found[2].key == (0, 1)


# Told


def test_as_lines_and_as_a_table(events):
    made = changed(events, Done, lambda e: record(e, loss=math.inf))
    made = changed(made, Begun, lambda e: replace(e, setup={**e.setup, "client": {"lr": list(range(100))}}))
    found = diff(events, made)
    first, second = as_lines(found, ("s", "t"))
    assert first.startswith("setup: client.lr = {'low': 0.001, 'high': 1.0, 'log': True} and [0, 1, 2,")
    assert len(first) < 250
    assert second.startswith("arm 0, round 1: loss = ")
    assert second.endswith(" and 'inf'")
    table = json.loads(json.dumps(as_table(found), allow_nan=False))
    assert table["equal"] is False
    assert table["differences"][1]["about"] == "arm 0, round 1"
    assert table["differences"][1]["key"] == [0, 1]
    assert as_lines([Difference("winner", (), "", None, 1, 2)], ("s", "t")) == ["winner: only in t (and 2 more)"]


# On the command line


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    toys.tune(store="s").evaluate("test")
    return tmp_path


def test_the_command_says_equal_with_exit_code_0(here, fedtuner):
    toys.tune(store="t").evaluate("test")
    assert fedtuner("diff", "s", "t") == (0, "s and t are equal: 4 arms, 30 rounds\n", "")
    code, out, _ = fedtuner("diff", "s", "t", "--json")
    assert (code, json.loads(out)) == (0, {"first": "s", "second": "t", "equal": True, "differences": []})


@pytest.mark.slow
def test_the_command_says_different_with_exit_code_1(here, fedtuner):
    toys.tune(store="t", fedex=ft.FedEx(k=3, eps=0.2)).evaluate("test")
    code, out, err = fedtuner("diff", "s", "t")
    assert (code, err) == (1, "")
    lines = out.splitlines()
    assert lines[0] == "s and t differ"
    assert lines[1] == "  setup: tuner.eps = 0.3 and 0.2"
    assert lines[2].startswith("  arm 0: candidates[1].lr = ")
    assert lines[2].endswith(" (and 3 more)")
    code, out, _ = fedtuner("diff", "s", "t", "--json")
    assert code == 1
    assert json.loads(out)["differences"][0]["name"] == "tuner.eps"


@pytest.mark.slow
def test_two_studies_that_were_stopped_are_compared_as_they_are(here, fedtuner):
    toys.tune(store="t")
    journal = here / "t" / "journal.jsonl"
    journal.write_bytes(b"".join(journal.read_bytes().splitlines(keepends=True)[:10]))
    code, out, _ = fedtuner("diff", "s", "t")
    assert code == 1
    assert "winner: only in s" in out
    assert fedtuner("diff", "t", "t")[0] == 0
