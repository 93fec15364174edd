"""A study in TensorBoard: a curve per arm."""

from __future__ import annotations

import json
import time
import uuid
import weakref
from pathlib import Path
from typing import Any

from fedtuner.core.store import Done, Started, Won
from fedtuner.run.watchers import Watcher
from fedtuner.tables import plain
from fedtuner.watchers.values import configuration, library, numbers


class TensorBoard(Watcher):
    """Writes to a folder that ``tensorboard --logdir FOLDER`` shows: error, loss and theta's entropy of each arm."""

    def __init__(self, folder: str | Path) -> None:
        # Its SummaryWriter has a thread and a queue, and what is in there is lost when a study is stopped.
        files = library("tensorboardX.event_file_writer", "tensorboard")
        self._summary = library("tensorboardX.summary", "tensorboard")
        self._event = library("tensorboardX.proto.event_pb2", "tensorboard").Event
        Path(folder).mkdir(parents=True, exist_ok=True)
        # A file of its own for each life of a study, also within a second.
        self._file = files.EventsWriter(str(Path(folder) / "events"), f".{uuid.uuid4().hex[:8]}")
        weakref.finalize(self, self._file.close)

    def on_arm(self, event: Started) -> None:
        self._write(self._summary.text(f"arm-{event.arm.id}", json.dumps(plain(configuration(event)))))

    def on_round(self, event: Done) -> None:
        for name, value in numbers(event.record).items():
            self._write(self._summary.scalar(f"{name}/arm-{event.record.arm}", value), event.record.round)
        self._file.flush()

    def on_end(self, event: Won) -> None:
        text = f"arm {event.arm} after round {event.round}, score {event.score[0]:.4g}"
        self._write(self._summary.text("winner", text))
        self._file.flush()

    def _write(self, summary: Any, step: int = 0) -> None:
        self._file.write_event(self._event(wall_time=time.time(), step=step, summary=summary))
