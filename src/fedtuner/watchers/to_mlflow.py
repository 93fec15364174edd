"""A study in MLflow: a run per arm."""

from __future__ import annotations

import time
from typing import Any

from fedtuner.core.store import Done, Eliminated, Started, Won
from fedtuner.run.journal import Journal
from fedtuner.run.watchers import Watcher
from fedtuner.watchers.values import configuration, library, numbers


class MLflow(Watcher):
    """Writes the arms of a study as the runs of an experiment.

    ``uri`` is a tracking server or a database such as ``sqlite:///mlflow.db``. A study that goes on later goes on in
    the runs that have its arms' numbers, so an experiment has one study.
    """

    def __init__(self, uri: str, experiment: str = "fedtuner") -> None:
        self._entities = library("mlflow", "mlflow").entities
        self._client: Any = library("mlflow.tracking", "mlflow").MlflowClient(tracking_uri=uri)
        known = self._client.get_experiment_by_name(experiment)
        self._experiment = known.experiment_id if known else self._client.create_experiment(experiment)
        self._runs: dict[int, str] = {}

    def on_open(self, journal: Journal) -> None:
        """Find the runs of the arms that are there."""
        for run in self._client.search_runs([self._experiment]):
            self._runs[int(run.data.tags["fedtuner.arm"])] = run.info.run_id

    def on_arm(self, event: Started) -> None:
        id, tags = event.arm.id, {"fedtuner.arm": str(event.arm.id)}
        run = self._client.create_run(self._experiment, tags=tags, run_name=f"arm {id}")
        self._runs[id] = run.info.run_id
        params = [self._entities.Param(name, str(value)) for name, value in configuration(event).items()]
        self._client.log_batch(run.info.run_id, params=params)

    def on_round(self, event: Done) -> None:
        now, record = int(1000 * time.time()), event.record
        metrics = [self._entities.Metric(n, value, now, record.round) for n, value in numbers(record).items()]
        self._client.log_batch(self._runs[record.arm], metrics=metrics)

    def on_eliminated(self, event: Eliminated) -> None:
        self._end(event.arm, "eliminated")

    def on_end(self, event: Won) -> None:
        self._end(event.arm, "won")

    def _end(self, arm: int, status: str) -> None:
        self._client.set_tag(self._runs[arm], "fedtuner.status", status)
        self._client.set_terminated(self._runs[arm])
