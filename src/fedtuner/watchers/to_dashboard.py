"""A study in Optuna's dashboard while it runs: a trial per arm, running until the arm is out or has won."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any

from fedtuner.core.store import Done, Eliminated, Started, Won
from fedtuner.report.to_optuna import distributions, storage
from fedtuner.run.journal import Journal
from fedtuner.run.watchers import Watcher
from fedtuner.samplers.by_optuna import quiet
from fedtuner.watchers.values import library


class Dashboard(Watcher):
    """Writes to an Optuna storage that ``optuna-dashboard URL`` shows; ``name`` is the study's name there.

    A trial's parameters are those of the arm's first candidate, its intermediate values the arm's scores.
    """

    def __init__(self, url: str, name: str = "fedtuner") -> None:
        self._optuna, self._storage = library("optuna", "optuna"), storage(url)
        with quiet():
            study = self._optuna.create_study(storage=self._storage, study_name=name, load_if_exists=True)
        self._study: int = study._study_id
        self._trials = {trial.user_attrs["arm"]: trial._trial_id for trial in study.trials}
        self._journal: Any = None

    def on_open(self, journal: Journal) -> None:
        """Read the scores from it."""
        self._journal = journal

    def on_arm(self, event: Started) -> None:
        trial, state = self._optuna.trial, self._optuna.trial.TrialState
        values, domains = distributions(self._journal, event.arm.client, event.arm.server)
        begun = trial.create_trial(
            state=state.RUNNING, params=values, distributions=domains, user_attrs={"arm": event.arm.id}
        )
        self._trials[event.arm.id] = self._storage.create_new_trial(self._study, template_trial=begun)

    def on_round(self, event: Done) -> None:
        score = self._journal.score(event.record.arm, event.record.round)[0]
        if math.isfinite(score):
            self._storage.set_trial_intermediate_value(self._trials[event.record.arm], event.record.round, score)

    def on_eliminated(self, event: Eliminated) -> None:
        self._end(event, self._optuna.trial.TrialState.PRUNED)

    def on_end(self, event: Won) -> None:
        self._end(event, self._optuna.trial.TrialState.COMPLETE)

    def _end(self, event: Eliminated | Won, state: Any) -> None:
        """End an arm's trial; one that has no score has failed."""
        score = event.score[0]
        state, values = (state, [score]) if math.isfinite(score) else (self._optuna.trial.TrialState.FAIL, None)
        with quiet(), suppress(self._optuna.exceptions.UpdateFinishedTrialError):  # of an extended study
            self._storage.set_trial_state_values(self._trials[event.arm], state, values)
