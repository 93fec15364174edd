"""A summary is read from the journal alone, and says what the study itself says."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest

import fedtuner as ft
import toys
from fedtuner.core.schedule import Evidence, Scoring, Start, Step, best
from fedtuner.errors import StoreError
from fedtuner.report import strict, summary
from fedtuner.report.show import headline, print_summary
from fedtuner.run.store import Folder
from fedtuner.run.store.lines import encode
from fedtuner.tuners.fedex import Belief


@dataclass(frozen=True)
class Drifting(ft.FedEx):
    """FedEx whose candidates move: after every round each has a smaller learning rate."""

    def update(self, belief, seen):
        learned = super().update(belief, seen)
        return replace(learned, candidates=tuple({**c, "lr": 0.9 * c["lr"]} for c in learned.candidates))

    def pack(self, belief):
        return {**super().pack(belief), "lr": np.array([c["lr"] for c in belief.candidates])}

    def unpack(self, begun, arrays):
        kept: Belief = super().unpack(begun, arrays)
        rates = arrays["lr"].tolist()
        return replace(kept, candidates=tuple({**c, "lr": r} for c, r in zip(kept.candidates, rates, strict=True)))


@dataclass(frozen=True)
class Offspring:
    """Two arms; the better one goes on as a child, which is taken at an earlier round than its last."""

    needs: ClassVar[frozenset[str]] = frozenset()
    scoring: ClassVar[Scoring] = Scoring()
    budget: int = 16
    longest: int = 8

    def steps(self) -> Generator[Step, Evidence, tuple[int, int]]:
        evidence = yield Step({0: 4, 1: 4}, {0: Start(), 1: Start()})
        parent = best(evidence.scores, 1)[0]
        yield Step({2: 6}, {2: Start(parent=(parent, 4))}, out=(1 - parent,))
        yield Step({2: 8}, keep=((2, 6),))
        return 2, 6


@dataclass(frozen=True)
class Ending:
    """An arm of six rounds and a child of two, whose training is to end after some rounds; 0: that is not known."""

    needs: ClassVar[frozenset[str]] = frozenset()
    scoring: ClassVar[Scoring] = Scoring()
    first: int = 0
    child: int = 0
    budget: int = 8
    longest: int = 8

    def steps(self) -> Generator[Step, Evidence, tuple[int, int]]:
        yield Step({0: 6}, {0: Start(horizon=self.first or None)})
        yield Step({1: 8}, {1: Start(parent=(0, 6), horizon=self.child or None)})
        return 1, 8


STUDIES = {
    "halving": {},
    "random search": {"schedule": ft.random_search(12, 3)},
    "hyperband": {"schedule": ft.hyperband(80, 8, 2, score="loss", discount=0.5)},
    "without FedEx": {"fedex": None},
    "two tries": {"fedex": ft.FedEx(k=3, tries=2)},
    "candidates that move": {"tuner": Drifting(k=3)},
    "a child": {"schedule": Offspring()},
    "diverging": {"space": toys.DIVERGING},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", STUDIES)
def test_a_summary_says_what_the_study_says(name, tmp_path):
    study = toys.tune(store=tmp_path / "s", **STUDIES[name])
    study.evaluate("test")
    study.evaluate("valid", "sample")
    found, best = summary(tmp_path / "s"), study.best
    assert found["result"] == {
        "arm": best.arm, "rounds": best.rounds, "score": best.score, "rounds_used": study.rounds_used,
        "budget": study.schedule.budget, "diverged": [0, 1, 2, 3] if name == "diverging" else [],
        "stalled": [],
        "server": best.server, "client": best.client, "theta": best.theta.tolist(),
        "candidates": list(best.candidates), "fine_tune": best.fine_tune,
        "schedule": [vars(held) for held in best.schedule],
    }  # fmt: skip
    assert found["rounds_used"] == study.rounds_used
    assert found["examples_processed"] == study.examples_processed
    assert found["local_work"] == study.local_work == sum(r.trainings for r in study.history)
    assert found["evaluations"]["tuned"].keys() == {
        f"{how} {metric}" for how in ("test mode", "valid sample") for metric in ("error", "loss")
    }
    for how in ("test mode", "valid sample"):
        for metric in ("error", "loss"):
            kept = found["evaluations"]["tuned"][f"{how} {metric}"]
            np.testing.assert_equal(kept, study.evaluate(*how.split(), metric))
    assert "untuned" not in found["evaluations"]
    described = {key: found["spec"][key] for key in found["spec"] if key not in ("format", "fedex", "layout")}
    assert described == study.describe()
    for arm in found["arms"]:
        records = study.journal.records(arm["arm"])
        own = [r for r in study.history if r.arm == arm["arm"]]
        known = study.journal.arms[arm["arm"]]
        assert arm.pop("client") in study.journal.offers((known.id, study.journal.saved_round(known.id)))[0]
        assert arm.pop("server") == known.server
        assert (arm.pop("parent"), arm.pop("parent_round")) == (known.parent or (None, None))
        gone = study.journal.eliminated.get(known.id)
        status = "won" if known.id == best.arm else "eliminated"
        assert (arm.pop("status"), arm.pop("eliminated")) == (status, gone and gone.round)
        assert arm.pop("score") == study.schedule.scoring.score(records, "personalized")[0]
        assert arm.pop("spread") < 0.5 or name in ("diverging", "hyperband")
        assert arm == {
            "arm": arm["arm"], "rounds": records[-1].round, "diverged": records[-1].diverged,
            "ended": "diverged" if records[-1].diverged else "",
            "error": records[-1].error, "loss": records[-1].loss, "broken": sum(r.broken for r in own),
            "dropped": sum(r.dropped for r in own), "entropy": records[-1].entropy,
        }  # fmt: skip
    assert [arm["arm"] for arm in found["arms"]] == sorted(study.journal.arms)
    json.dumps(strict(found), allow_nan=False)


@pytest.mark.slow
@pytest.mark.parametrize("name", STUDIES)
def test_the_exported_model_and_configuration_are_the_winners(name, tmp_path):
    from safetensors.numpy import load_file

    study = toys.tune(store=tmp_path / "s", **STUDIES[name])
    model, configuration, *_ = ft.load(tmp_path / "s").export(tmp_path / "to")
    assert np.concatenate([t.ravel() for t in _ordered(load_file(model))]).tobytes() == study.best.model.tobytes()
    shown = json.loads(configuration.read_text())
    assert (shown["client"], shown["server"], shown["rounds"]) == (
        study.best.client, study.best.server, study.best.rounds
    )  # fmt: skip
    assert (shown["theta"], shown["candidates"]) == (study.best.theta.tolist(), list(study.best.candidates))


def _ordered(tensors):
    return [tensors[part.name] for part in toys.Softmax().layout()]


def test_the_child_is_told_with_the_rounds_of_its_parent(tmp_path):
    toys.tune(store=tmp_path / "s", schedule=Offspring())
    found = summary(tmp_path / "s")
    assert found["result"]["arm"] == 2
    assert found["result"]["rounds"] == 6
    assert [arm["rounds"] for arm in found["arms"]] == [4, 4, 8]
    assert found["rounds_used"] == 12


def test_clients_that_did_not_answer_are_counted(tmp_path, capsys):
    toys.tune(store=tmp_path / "s").evaluate("test")
    folder = Folder(tmp_path / "s")
    *before, last = folder.events()
    folder.journal.write_bytes(encode([*before, replace(last, result=replace(last.result, missing=2))]))
    found = summary(tmp_path / "s")
    assert found["evaluations"]["tuned"]["test mode error"]["missing"] == 2
    print_summary(found)
    assert "tuned, test (missing clients: 2)" in capsys.readouterr().out


def test_a_baseline_is_told_beside_it(tmp_path):
    study = toys.tune(store=tmp_path / "s")
    study.evaluate("test")
    base = ft.untuned(study, progress=False)
    assert "untuned" not in summary(tmp_path / "s")["evaluations"]  # it was not evaluated
    errors = base.evaluate("test")
    assert summary(tmp_path / "s")["evaluations"]["untuned"]["test mode error"] == errors


@pytest.mark.parametrize(
    ("first", "child", "part"),
    [
        (8, 0, None),  # the winner trained with the whole step
        (0, 8, 50),
        (0, 9, 25),  # it was taken in the midst of it
        (0, 10, None),  # and before it
        (8, 6, 50),  # its parent's last rounds
        (0, 6, None),
    ],
)
def test_only_a_winner_that_was_cooled_is_told_so(tmp_path, first, child, part, capsys):
    toys.tune(store=tmp_path / "s", schedule=Ending(first, child), cooling=0.5)
    found = summary(tmp_path / "s")
    assert found["cooled"] == (part or 0) / 100
    print_summary(found)
    said = capsys.readouterr().out
    assert (f"cooled over the last {part} % of its rounds" in said) == ("cooled" in said) == (part is not None)


def test_the_untuned_default_is_told_with_its_own_rounds(tmp_path, capsys):
    """The winner has six rounds, an arm may have eight, and the default was trained for twelve of the sixteen."""
    study = toys.tune(store=tmp_path / "s", schedule=Offspring())
    base = ft.untuned(study, progress=False, rounds=12)
    for split in ("test", "valid"):
        study.evaluate(split)
        base.evaluate(split)
    assert summary(tmp_path / "s")["untuned_rounds"] == {"untuned": 12}
    base.evaluate("test", rounds=8)
    found = summary(tmp_path / "s")
    assert found["untuned_rounds"] == {"untuned": 12, "untuned_as_long": 8}
    assert found["evaluations"]["untuned_as_long"]["test mode error"] == base.evaluate("test", rounds=8)
    found["evaluations"]["untuned"]["valid mode error"] = found["evaluations"]["tuned"]["valid mode error"]
    print_summary(found)
    said = " ".join(capsys.readouterr().out.split())
    assert "untuned (the default, 12 rounds), test" in said
    assert "untuned (the default, as long as the longest arm may be: 8 rounds), test" in said
    assert "than that of the untuned default with 12 rounds: here tuning has not paid" in said
    assert "as long as the winner" not in said
    found["spec"]["schedule"] = {**found["spec"]["schedule"], "first": {"arms": 1}}
    print_summary(found)
    assert "here tuning has not paid" in " ".join(capsys.readouterr().out.split())  # theta had several candidates
    found["result"]["theta"] = [1.0]
    print_summary(found)
    assert "here what the budget chose has not paid" in " ".join(capsys.readouterr().out.split())


def test_the_untuned_default_is_shown_as_long_as_the_winner_where_that_is_known(tmp_path, capsys):
    study = toys.tune(store=tmp_path / "s", schedule=Offspring())
    study.evaluate("test")
    base = ft.untuned(study, progress=False)
    base.evaluate("test")
    known = base.evaluate("test", rounds=8)
    folder = Folder(base.path)
    *before, last = folder.events()
    shorter = replace(last, round=6, result=replace(last.result, error_before=0.25))
    folder.journal.write_bytes(encode([*before, last, shorter]))
    found = summary(tmp_path / "s")
    assert found["untuned_rounds"] == {"untuned": 16, "untuned_as_long": 6}
    assert found["evaluations"]["untuned_as_long"]["test mode error"] == {**known, "global": 0.25}
    print_summary(found)
    assert "untuned (the default, as long as the winner: 6 rounds), test" in capsys.readouterr().out


def test_a_study_without_evaluations_says_nothing_of_them(tmp_path, capsys):
    toys.tune(store=tmp_path / "s")
    found = summary(tmp_path / "s")
    assert found["evaluations"] == {}
    print_summary(found)
    assert "error over all clients" not in capsys.readouterr().out


def test_no_state_is_read(tmp_path):
    toys.tune(store=tmp_path / "s").evaluate("test")
    before = summary(tmp_path / "s")
    shutil.rmtree(tmp_path / "s" / "states")
    assert summary(tmp_path / "s") == before


def test_a_folder_that_is_no_study(tmp_path):
    with pytest.raises(StoreError, match=r"no study in .*: there is no journal; 'fedtuner run' makes one"):
        summary(tmp_path)
    (tmp_path / "spec.json").write_text("{}")
    with pytest.raises(StoreError, match=r"holds a study of the first format \(it has a spec.json\)"):
        summary(tmp_path)


@pytest.mark.parametrize(
    ("tuner", "fedex", "inside"),
    [
        ({"fedex": ft.FedEx(k=3)}, 3, "halving of 4 arms around FedEx with 3 candidates each; 30 rounds"),
        ({"fedex": ft.FedEx(k=1)}, 1, "halving of 4 arms; 30 rounds"),
        ({"fedex": None}, 1, "halving of 4 arms; 30 rounds"),
        ({"tuner": Drifting(k=3)}, 1, "halving of 4 arms around Drifting; 30 rounds"),
        ({"schedule": Offspring(), "fedex": None}, 1, "; Offspring; 16 rounds, at most 8 an arm; seed 0"),
    ],
)
def test_tuners_and_schedules_by_their_names(tmp_path, tuner, fedex, inside, capsys):
    toys.tune(store=tmp_path / "s", **tuner)
    journal = tmp_path / "s" / "journal.jsonl"
    journal.write_bytes(journal.read_bytes().splitlines(keepends=True)[0])
    found = summary(tmp_path / "s")
    assert found["spec"]["fedex"]["k"] == fedex
    print_summary(found)
    assert inside in capsys.readouterr().out
    assert " of 9 arms" in headline(found["spec"], 9)


def test_strict_json_has_no_words_for_numbers():
    assert strict({"a": [math.nan, (math.inf, "-inf", "nan", 1.5)], "b": "inf or so"}) == {
        "a": [None, [None, None, None, 1.5]], "b": "inf or so"
    }  # fmt: skip
