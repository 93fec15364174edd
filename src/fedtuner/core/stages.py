"""The three stages in which a round's reports become a tally, as protocols: screens, a combination, and privacy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from fedtuner.core.records import Key, Plan, Report, Tally

Reports = Sequence[Report | None]  # in plan order; None: a client that did not answer, or whose report is dropped


@runtime_checkable
class Screen(Protocol):
    """Bounds or drops single reports, by comparing the reports of a round."""

    def __call__(self, plan: Plan, reports: Reports) -> list[Report | None]:
        """Return the reports in the same order; None where one is dropped."""


@runtime_checkable
class Combine(Protocol):
    """Makes a tally of a round's reports."""

    @property
    def each(self) -> bool:
        """Whether it needs single reports, so that sums (secure aggregation) are not enough."""

    def __call__(self, plan: Plan, reports: Reports) -> Tally:
        """Return the tally."""


@runtime_checkable
class Privacy(Protocol):
    """Bounds what each client adds to a tally, adds noise, and accounts for the privacy spent."""

    def over(self, rounds: int) -> Privacy:
        """Return it as a study of so many rounds uses it; refuse more rounds than it allows."""

    def bound(self, plan: Plan, reports: Reports) -> list[Report | None]:
        """Return the reports, each bounded on its own: this is the last screen."""

    def release(self, tally: Tally, key: Key, seed: int) -> Tally:
        """Return the tally with noise, and without rows and memory of single clients."""

    def spent(self, keys: Sequence[Key]) -> float:
        """Return the privacy spent by these rounds, over all arms."""
