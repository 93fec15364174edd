"""What is known of a study without its problem: its arms, rounds and winner. ``load`` reopens one from its store."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedtuner import checks
from fedtuner.core.model import Part, Vector, Vectors, named
from fedtuner.core.place import Place
from fedtuner.core.records import Key, Record
from fedtuner.core.store import Store
from fedtuner.core.tuner import Floats
from fedtuner.errors import SpecError, StoreError, counted
from fedtuner.run.export import write
from fedtuner.run.journal import Held, Journal
from fedtuner.run.reading import read
from fedtuner.run.store import of
from fedtuner.space import Config

FRAMES = ("rounds", "arms")


_NEED_CLIENTS = ("evaluate", "extend", "resume_winner", "retrain")  # what a Study has beside Results


@dataclass(frozen=True)
class Best:
    """The winner of a study."""

    arm: int
    rounds: int
    score: float  # of the study's target, in the units of its metric (or the loss); infinite if every arm diverged
    server: Config  # b
    client: Config  # the mode of theta; of a Gaussian belief the mean
    candidates: tuple[Config, ...] = field(repr=False)  # c_1..c_k
    theta: Floats = field(repr=False)
    model: Vector = field(repr=False)  # w; pytorch.Task.module(w) returns it as a module
    fine_tune: bool  # whether clients' models were better after local training, in the winner's last rounds
    schedule: tuple[Held, ...] = field(
        repr=False
    )  # the configurations that its model was trained with, over its rounds


class Results:
    """A study's journal and states."""

    def __init__(self, store: Store, journal: Journal) -> None:
        self.store, self.journal = store, journal

    def __repr__(self) -> str:
        begun, won = self.journal.begun, self.journal.won
        if begun is None:
            return f"<{type(self).__name__}: not begun>"
        at = f", {self.path}" if self.path else ""
        won_by = f"won by arm {won.arm} after {counted(won.round, 'round')}" if won else "not finished"
        used = f"{self.rounds_used} of {self.journal.budget} rounds"
        about = f"{begun.federation['name']}, {begun.setup['method']}, {counted(len(self.journal.arms), 'arm')}"
        return f"<{type(self).__name__}: {about}, {used}, {won_by}{at}>"

    @property
    def path(self) -> Place | None:
        """Its folder or URL; None if it has none."""
        return self.store.path

    @property
    def finished(self) -> bool:
        """Whether there is a winner."""
        return self.journal.won is not None

    @property
    def rounds_used(self) -> int:
        """Communication rounds spent so far, over all arms."""
        return self.journal.rounds_used

    @property
    def local_work(self) -> int:
        """Local trainings done so far, over all arms: ``FedEx.tries`` for each client of a round."""
        return self.journal.trainings

    @property
    def examples_processed(self) -> int:
        """Training examples that clients have worked through so far: two epochs process each of them twice."""
        return self.journal.processed

    @property
    def history(self) -> list[Record]:
        """One record per arm and round, in the order of arms and rounds; ``frame()`` has configurations, too."""
        return self.journal.history()

    def frame(self, of: str = "rounds") -> Any:
        """Return a row per round, or per arm (``of="arms"``): a pandas DataFrame, or dicts where there is no pandas.

        Both have the configuration as ``client.lr``, ``server.lr`` ..., the client's as the mode of theta. ``theta`` is
        None for rounds whose state was not saved; a tuner without candidates has there the configuration of the last
        state before them.
        """
        checks.one_of("of", of, FRAMES)
        rows = self.arms() if of == "arms" else round_rows(self.journal)
        try:
            import pandas as pd
        except ImportError:
            return rows
        return pd.DataFrame(rows)

    def arms(self) -> list[dict[str, Any]]:
        """Return a dict for each arm that has begun to train, as ``frame("arms")`` does."""
        return arm_rows(self.journal)

    @property
    def winner(self) -> Key:
        """The winning arm, and the round after which it won."""
        if self.journal.won is None:
            raise SpecError("the study is not finished, so it has no winner yet: run it to the end")
        return self.journal.won.arm, self.journal.won.round

    @property
    def best(self) -> Best:
        """The winner: its server configuration, candidates, theta, the most probable candidate and the model."""
        arm, round = key = self.winner
        assert self.journal.won is not None
        candidates, theta = self.journal.offers(key)
        state, _ = self.store.load(key, self.journal.saved.get(key, ""))
        score = self.journal.won.score[0]
        if self.journal.setup["schedule"]["score"] == "error":
            score = self.journal.metric.turned(score)
        return Best(
            arm, round, score, self.journal.arms[arm].server,
            candidates[self.journal.records(arm, round)[-1].mode], candidates, theta=np.array(theta), model=state.w,
            fine_tune=self.journal.fine_tuning_pays, schedule=self.journal.held(key),
        )  # fmt: skip

    def arrays(self) -> Vectors:
        """Return the winner's model as NumPy arrays by name: a PyTorch ``state_dict``, but for the type."""
        w, begun = self.best.model, self.journal.begun
        assert begun is not None
        parts = [Part(p["name"], tuple(p["shape"]), tuple(p["axes"])) for p in begun.layout]
        if sum(part.size for part in parts) != w.size:
            raise StoreError(
                f"{self.path}: the journal's layout is not that of the winner's state: restore it from a copy"
            )
        return named(w, parts)

    def export(self, folder: str | Path, force: bool = False) -> list[Path]:
        """Write model, configuration, a loader script and a model card to a folder; return the files.

        Files that exist are replaced only with ``force``.
        """
        return write(self, checks.path("folder", folder, "a folder"), force)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            remedy = ""
            if name in _NEED_CLIENTS:
                remedy = (
                    f": {name}() needs the problem's clients. Call ft.tune(problem, ..., store={str(self.path)!r}) as "
                    "before: a finished study is only read, and what it returns can do this"
                )
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{remedy}")

    def plot(self, kind: str = "race", arm: int | None = None) -> Any:
        """Return a figure of one view of the study, by matplotlib: those of ``fedtuner plot``.

        race, incumbent, configurations, importance, theta, clients, served, lineage, health or comparison; ``arm`` is
        the arm to show, by default the winner. Notebooks show it; ``savefig`` writes it.
        """
        return import_module("fedtuner.page.plots").of_study(self.store, kind, arm)  # what shows studies is above them


def load(store: str | Place | Store) -> Results:
    """Reopen a study, finished or not, without its problem: ``best``, ``arrays()``, ``history``, ``frame()``."""
    found = of(store)
    return Results(found, read(found, str(found.path or "the store")))


def arm_rows(journal: Journal) -> list[dict[str, Any]]:
    """Return what became of each arm that has begun to train, with its score and the configuration at its end."""
    rows = []
    for arm in sorted(journal.arms):
        records, known, gone = journal.records(arm), journal.arms[arm], journal.eliminated.get(arm)
        if not records:
            continue
        last = records[-1]
        won = journal.won if journal.won and journal.won.arm == arm else None
        status = "won" if won else "eliminated" if gone else journal.ended.get(arm) or "training"
        rows.append(
            {
                "arm": arm,
                "status": status,
                "rounds": last.round,
                "eliminated": None if gone is None or won else gone.round,
                "parent": None if known.parent is None else known.parent[0],
                "parent_round": None if known.parent is None else known.parent[1],
                "score": journal.score(arm)[0],
                "error": last.error,
                "loss": last.loss,
                "ended": journal.ended.get(arm, ""),
                **_tuned("client", journal.offers((arm, journal.saved_round(arm) or 0))[0], last.mode),
                **_tuned("server", (known.server,)),
                "confidence": last.confidence,
                "theta": theta_of(journal, arm),
            }
        )
    return rows


def theta_of(journal: Journal, arm: int) -> tuple[float, ...]:
    """Return the latest theta of an arm that was saved."""
    return journal.offers((arm, journal.saved_round(arm) or 0))[1]


def round_rows(journal: Journal) -> list[dict[str, Any]]:
    """Return all records, without their clients' rows, with configurations and theta."""
    rows = []
    for record in journal.history():
        key = (record.arm, record.round)
        candidates = journal.candidates_at(*key)
        values = {name: value for name, value in vars(record).items() if name not in ("rows", "unusable")}
        rows.append(
            values
            | {"undefined": record.undefined}
            | _tuned("client", candidates, record.mode)
            | _tuned("server", (journal.arms[record.arm].server,))
            | {"theta": journal.beliefs.get(key)}
        )
    return rows


def _tuned(side: str, configs: tuple[Config, ...], mode: int = 0) -> dict[str, Any]:
    return {f"{side}.{name}": value for name, value in configs[min(mode, len(configs) - 1)].items()}
