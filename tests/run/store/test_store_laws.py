"""Every store keeps the laws."""

import pytest

from fedtuner.run.store import Folder, InMemory
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


def test_the_hook_must_be_overridden(tmp_path):
    with pytest.raises(NotImplementedError, match=r"override store\(\)"):
        StoreLaws().test_a_new_store_is_empty(tmp_path)
