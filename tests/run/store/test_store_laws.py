"""Every store keeps the laws."""

import pytest

import buckets
from fedtuner.run.store import Folder, InMemory, Objects, segments
from fedtuner.testing import StoreLaws


class TestFolder(StoreLaws):
    def store(self, folder):
        return Folder(folder)

    def journal(self, folder):
        return Folder(folder).journal


class TestInMemory(StoreLaws):
    @pytest.fixture(autouse=True)
    def _stores(self):
        self.made = {}

    def store(self, folder):
        return self.made.setdefault(folder, InMemory())


class TestObjects(StoreLaws):
    @pytest.fixture(autouse=True)
    def _places(self):
        self.made = {}

    def store(self, folder):
        return Objects(self.made.setdefault(folder, buckets.new()))


class TestManyObjects(TestObjects):
    """An object for every flush."""

    @pytest.fixture(autouse=True)
    def _small(self, monkeypatch):
        monkeypatch.setattr(segments, "LIMIT", 1)


def test_the_hook_must_be_overridden(tmp_path):
    with pytest.raises(NotImplementedError, match=r"override store\(\)"):
        StoreLaws().test_a_new_store_is_empty(tmp_path)
