"""Where a study is kept: a folder, or this process's memory."""

from fedtuner.run.store.folder import Folder
from fedtuner.run.store.in_memory import InMemory

__all__ = ["Folder", "InMemory"]
