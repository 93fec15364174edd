"""A study in Weights & Biases: one run, a curve per arm."""

from __future__ import annotations

from typing import Any

from fedtuner.core.store import Done, Started, Won
from fedtuner.run.watchers import Watcher
from fedtuner.watchers.values import configuration, library, numbers


class WandB(Watcher):
    """Writes to a run of ``wandb.init(**settings)``: ``WandB(project="digits", mode="offline")``.

    A run that ``id="..."`` and ``resume="allow"`` name goes on with the study.
    """

    def __init__(self, **settings: Any) -> None:
        self._run: Any = library("wandb", "wandb").init(**settings)

    def on_arm(self, event: Started) -> None:
        """Write its configuration; its curves are over its own rounds."""
        arm = f"arm-{event.arm.id}"
        self._run.config.update({arm: configuration(event)}, allow_val_change=True)
        self._run.define_metric(f"round/{arm}", hidden=True)
        for name in ("error", "loss", "entropy", "confidence"):
            self._run.define_metric(f"{name}/{arm}", step_metric=f"round/{arm}")

    def on_round(self, event: Done) -> None:
        arm = f"arm-{event.record.arm}"
        values = {f"{name}/{arm}": value for name, value in numbers(event.record).items()}
        self._run.log({f"round/{arm}": event.record.round, **values})

    def on_end(self, event: Won) -> None:
        self._run.summary.update({"winner": event.arm, "winner_round": event.round, "score": event.score[0]})
        self._run.finish()
