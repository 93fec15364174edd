"""A study that goes on with other versions of packages than it began with says so, once."""

from __future__ import annotations

import os
import shutil
import signal
import warnings

import pytest

import fedtuner as ft
import toys
from fedtuner.errors import FedtunerWarning, Interrupted
from fedtuner.run import opening, watch

BEGAN = {"fedtuner": "0.1.0", "python": "3.11.7", "numpy": "1.26.4", "torch": "2.1.0"}


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    path = tmp_path_factory.mktemp("stopped") / "s"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(watch, "_MOMENT", 0.0)
        patch.setattr(opening, "versions", lambda: BEGAN)
        with pytest.raises(Interrupted):
            toys.tune(store=path, workers=1, progress=stop_after(8))
    return path


def stop_after(n):
    seen = []

    def progress(status):
        seen.append(status)
        if len(seen) == n:
            os.kill(os.getpid(), signal.SIGINT)

    return progress


@pytest.fixture
def path(stopped, tmp_path):
    return shutil.copytree(stopped, tmp_path / "s")


def go(path, monkeypatch, **now):
    monkeypatch.setattr(opening, "versions", lambda: {**BEGAN, **now})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        study = toys.tune(store=path, workers=1)
        study.evaluate("test")
        ft.untuned(study, progress=False)
    return [str(w.message) for w in caught if issubclass(w.category, FedtunerWarning)]


def test_other_versions_are_named_once_both(path, monkeypatch):
    [said] = go(path, monkeypatch, torch="2.2.1", numpy="2.0.0")
    assert said == (
        f"{path} was begun with other versions (numpy 1.26.4, now 2.0.0; torch 2.1.0, now 2.2.1): from here on its "
        "numbers may differ from those of the versions that it began with"
    )


def test_the_same_versions_are_not_worth_a_word(path, monkeypatch):
    assert go(path, monkeypatch) == []


def test_packages_that_only_one_side_has_are_not_compared(path, monkeypatch):
    assert go(path, monkeypatch, optuna="4.0.0") == []


def test_nothing_is_computed_for_a_finished_study_so_nothing_is_said(path, monkeypatch):
    go(path, monkeypatch)
    assert go(path, monkeypatch, torch="2.2.1") == []


def test_a_warning_is_an_error_where_warnings_are(path, monkeypatch):
    monkeypatch.setattr(opening, "versions", lambda: {**BEGAN, "torch": "3.0"})
    with pytest.raises(FedtunerWarning, match=r"torch 2\.1\.0, now 3\.0"):
        toys.tune(store=path, workers=1)
    assert go(path, monkeypatch) == []  # the store is free, and as it was


def test_on_the_command_line_it_is_one_line(fedtuner, monkeypatch):
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)
    assert fedtuner("list", "methods")[0] == 0
    ours, others = (warnings.formatwarning(kind("old"), kind, "a.py", 3) for kind in (FedtunerWarning, UserWarning))
    assert ours == "fedtuner: old\n"
    assert others.startswith("a.py:3: UserWarning: old\n")
