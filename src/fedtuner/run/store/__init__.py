"""Where a study is kept: a folder, an object store by its URL, or this process's memory."""

from typing import Any

from fedtuner.core.place import Url, place
from fedtuner.core.store import Store
from fedtuner.run.store.folder import Folder
from fedtuner.run.store.in_memory import InMemory
from fedtuner.run.store.objects import Objects


def at(where: Any, name: str = "store") -> Folder | Objects:
    """Return the store of a folder or a URL; ``name`` is what the setting is called."""
    found = place(name, where)
    return Objects(found) if isinstance(found, Url) else Folder(found)


def of(given: Any) -> Store:
    """Return what is given, if it is a store; else the store of a folder or a URL."""
    return given if isinstance(given, Store) and not isinstance(given, type) else at(given)


__all__ = ["Folder", "InMemory", "Objects", "at", "of"]
