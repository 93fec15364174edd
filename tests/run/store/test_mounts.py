"""A folder on a network file system: what such systems do differently, as far as it can be made to happen here."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import toys
from crashes import kept
from fedtuner.core.store import Joined
from fedtuner.errors import StoreError
from fedtuner.report import journal_of
from fedtuner.report.diff import differences
from fedtuner.run.store import Folder, lock
from fedtuner.run.store.files import Files
from fedtuner.run.store.lock import Lock

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


def refuse(number):
    def refused(*args, **kwargs):
        raise OSError(number, os.strerror(number))

    return refused


@pytest.mark.slow
def test_a_second_driver_is_told_who_has_the_folder(tmp_path):
    store = Folder(tmp_path / "s")
    store.open()
    second = "import sys; from fedtuner.run.store import Folder; Folder(sys.argv[1]).open()"
    command = [sys.executable, "-c", second, str(tmp_path / "s")]
    done = subprocess.run(command, env=toys.environment(), capture_output=True, text=True)
    said = f"is in use by another running study ({lock.user()}@{socket.gethostname()}, process {os.getpid()}): wait for"
    assert said in done.stderr
    store.close()
    assert (tmp_path / "s" / "lock").read_bytes() == b""
    assert subprocess.run(command, env=toys.environment()).returncode == 0


def test_the_lock_is_a_record_lock(tmp_path):
    """Which the server of an NFS mount keeps for all machines."""
    held = Lock(tmp_path)

    def attempt():
        with (tmp_path / "lock").open("a") as file:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)

    assert toys.forked(attempt) == 1
    held.release()
    assert toys.forked(attempt) == 0


def test_a_fork_that_lets_go_leaves_the_lock_and_what_it_says(tmp_path):
    held = Lock(tmp_path)
    assert toys.forked(held.release) == 0
    assert f"process {os.getpid()}" in (tmp_path / "lock").read_text()


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_mount_without_locks_is_refused(tmp_path, monkeypatch, number):
    monkeypatch.setattr(fcntl, "lockf", refuse(number))
    with pytest.raises(StoreError, match=r"cannot be locked \(.*\): a study needs a file system with record locks"):
        toys.tune(store=tmp_path / "s")


def test_a_folder_that_another_machine_has_deleted_is_known_by_its_stale_handle(tmp_path, monkeypatch):
    store = Folder(tmp_path / "s")
    store.open()
    stat = Path.stat

    def stale(path, **more):
        return refuse(errno.ESTALE)() if path.name == "lock" else stat(path, **more)

    monkeypatch.setattr(Path, "stat", stale)
    with pytest.raises(StoreError, match="was deleted or replaced under the running study"):
        store.append([Joined(("phone",))])
    monkeypatch.undo()
    store.close()


def test_a_file_system_that_cannot_flush_folders_is_used_all_the_same(tmp_path, monkeypatch):
    fsync = os.fsync

    def only_files(fd):
        return refuse(errno.EINVAL)() if os.path.isdir(f"/proc/self/fd/{fd}") else fsync(fd)  # noqa: PTH112

    monkeypatch.setattr(os, "fsync", only_files)
    assert toys.tune(store=tmp_path / "s").finished
    monkeypatch.setattr(os, "fsync", refuse(errno.EIO))
    with pytest.raises(OSError, match="Input/output"):
        Files().sync(tmp_path)


def test_files_that_nfs_renames_as_they_are_still_open_are_left_alone(tmp_path):
    toys.tune(store=tmp_path / "whole")
    toys.tune(store=tmp_path / "s")
    for folder in ("states", "memory/0"):
        (tmp_path / "s" / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / "s" / folder / ".nfs000000000001").write_bytes(b"open elsewhere")
    study = toys.tune(store=tmp_path / "s")
    study.store.open()
    study.store.blobs.sweep(0, ())  # its folder is not empty, so it stays
    study.store.close()
    assert (tmp_path / "s" / "states" / ".nfs000000000001").exists()
    assert (tmp_path / "s" / "memory" / "0" / ".nfs000000000001").exists()


@pytest.fixture
def without_locks(monkeypatch):
    """Locks that every machine keeps for itself, as with the mount options nolock and local_lock."""
    monkeypatch.setattr(lock, "_locked", type("Nobody", (set,), {"__contains__": lambda self, name: False})())
    monkeypatch.setattr(lock, "_try_lock", lambda file: True)


def test_where_locks_do_not_hold_the_first_stops_before_it_harms_the_seconds_journal(tmp_path, without_locks):
    """Its next line would cut off what the other has written."""
    first, second = Folder(tmp_path / "s"), Folder(tmp_path / "s")
    toys.tune(store=tmp_path / "s")
    for store in (first, second):
        store.open()
    second.append([Joined(("phone",))])
    before = (tmp_path / "s" / "journal.jsonl").read_bytes()
    for _ in range(2):
        with pytest.raises(StoreError, match=r"was changed by another process, though this study has locked .*mount"):
            first.append([Joined(("tablet",))])
    assert (tmp_path / "s" / "journal.jsonl").read_bytes() == before
    second.append([Joined(("watch",))])
    second.close()


def test_where_locks_do_not_hold_a_study_that_was_overtaken_is_continued(tmp_path, without_locks):
    """The second ends it, and the first says so; it may have written an old state again, which does no harm."""
    seen = []

    def watch(event):
        if not seen and len(list(Folder(tmp_path / "s").events())) > 12:
            seen.append(toys.tune(store=tmp_path / "s"))

    with pytest.raises(StoreError, match="was changed by another process"):
        toys.tune(store=tmp_path / "s", watch=watch)
    toys.tune(store=tmp_path / "s")
    toys.tune(store=tmp_path / "whole")
    assert not differences(journal_of(tmp_path / "s"), journal_of(tmp_path / "whole"))
    assert kept(tmp_path / "whole").items() <= kept(tmp_path / "s").items()
