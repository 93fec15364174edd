"""A study in TensorBoard: a curve per arm."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

from fedtuner.core.store import Done, Eliminated, Started, Won
from fedtuner.run.watchers import Watcher
from fedtuner.tables import plain
from fedtuner.watchers.values import configuration, library, numbers


class TensorBoard(Watcher):
    """Writes to a folder that ``tensorboard --logdir FOLDER`` shows: error, loss and theta's entropy of each arm."""

    def __init__(self, folder: str | Path) -> None:
        # A file of its own for each life of a study, also within a second.
        made = library("tensorboardX", "tensorboard").SummaryWriter
        self._writer = made(str(folder), filename_suffix=f".{uuid.uuid4().hex[:8]}")

    def on_arm(self, event: Started) -> None:
        self._writer.add_text(f"arm-{event.arm.id}", json.dumps(plain(configuration(event))))

    def on_round(self, event: Done) -> None:
        for name, value in numbers(event.record).items():
            self._writer.add_scalar(f"{name}/arm-{event.record.arm}", value, event.record.round)

    def on_rung(self, events: tuple[Eliminated, ...]) -> None:
        """Let them be seen."""
        self._writer.flush()

    def on_end(self, event: Won) -> None:
        self._writer.add_text("winner", f"arm {event.arm} after round {event.round}, score {event.score[0]:.4g}")
        self._writer.flush()
