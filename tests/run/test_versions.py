"""What results say of the code and the machine that computed them."""

from __future__ import annotations

import subprocess

import pytest

from fedtuner.run import versions


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A repository with this package in it, and a way to run git in it."""
    package = tmp_path / "src" / "fedtuner" / "run"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").write_text("")

    def git(*arguments):
        names = ("-c", "user.name=n", "-c", "user.email=e@x")
        return subprocess.run(
            ["git", *names, *arguments], cwd=tmp_path, check=True, capture_output=True, text=True
        ).stdout.strip()

    monkeypatch.setattr(versions, "__file__", str(package / "versions.py"))
    versions.commit.cache_clear()
    yield package.parent, git
    versions.commit.cache_clear()


def test_the_commit_is_that_of_the_package(checkout):
    package, git = checkout
    assert versions.commit() == ""  # no checkout
    git("init", "-q")
    versions.commit.cache_clear()
    assert versions.commit() == ""  # the package is not the repository's
    git("add", "src")
    git("commit", "-qm", "one")
    versions.commit.cache_clear()
    assert versions.commit() == git("rev-parse", "--short=12", "HEAD")
    (package.parent.parent / "results.csv").write_text("a result")  # changes elsewhere are no changes of the code
    versions.commit.cache_clear()
    assert versions.commit() == git("rev-parse", "--short=12", "HEAD") == versions.versions()["commit"]
    (package / "__init__.py").write_text("changed = 1")
    versions.commit.cache_clear()
    assert versions.commit() == git("rev-parse", "--short=12", "HEAD") + "+"


def test_versions_and_machine_are_plain():
    assert set(versions.versions()) >= {"fedtuner", "python", "numpy"}
    assert set(versions.machine()) == {"system", "cpu", "cores"}
