"""The laws that every federation keeps. Subclass in your tests and return your federation:

class TestMine(fedtuner.testing.FederationLaws):
    def federation(self): return MyFederation()
"""

from __future__ import annotations

import json
from typing import cast

import numpy as np

from fedtuner import tables
from fedtuner.core.federation import SPLITS, Federation, HasData


class FederationLaws:
    """Laws of a federation that is ready; override ``federation`` to return a fresh one with the same clients."""

    def federation(self) -> Federation:
        raise NotImplementedError("override federation()")

    def test_it_has_all_that_a_study_asks_for(self) -> None:
        federation = self.federation()
        assert isinstance(federation, Federation)
        assert federation.name
        assert federation.shows in ("reports", "sums")
        assert isinstance(federation.save_every_round, bool)
        assert all(callable(screen) for screen in federation.screens)

    def test_who_is_present_is_stable(self) -> None:
        """While nobody comes or goes the order is the same: cohorts are drawn by place."""
        federation, other = self.federation(), self.federation()
        there = list(federation.present())
        assert there == list(federation.present()) == list(other.present())
        assert len(set(there)) == len(there) <= federation.population()
        assert set(there) <= set(federation.everyone())

    def test_ids_are_distinct(self) -> None:
        federation = self.federation()
        everyone = list(federation.everyone())
        ids = [federation.id_of(client) for client in everyone]
        assert len({(type(id), id) for id in ids}) == len(set(everyone)) == len(everyone)
        assert all(isinstance(id, (str, int)) for id in ids)

    def test_what_describes_it_is_json_and_stays(self) -> None:
        """A study goes on only where the description is the same, so the same federation has the same one."""
        federation, other = self.federation(), self.federation()
        first = json.dumps(tables.plain(federation.describe()), allow_nan=False)
        list(federation.present())
        assert first == json.dumps(tables.plain(federation.describe())) == json.dumps(tables.plain(other.describe()))

    def test_its_model_is_what_it_says(self) -> None:
        """The parts make up w; fresh weights are of that length, and depend on the seed alone."""
        model = self.federation().model
        assert sum(part.size for part in model.layout()) == model.size >= model.trainable > 0
        w = model.initial(3) if model.start is None else model.start
        assert w.dtype == np.float32
        assert w.shape == (model.size,)
        assert np.array_equal(model.initial(3), self.federation().model.initial(3))

    def test_what_it_recalls_it_has_met(self) -> None:
        """Clients that a study had met before come first, in their order, and are not met again."""
        federation = self.federation()
        met = list(federation.met())
        assert len(set(met)) == len(met)
        other = self.federation()
        other.recall(met)
        assert list(other.met())[: len(met)] == met

    def test_notes_are_returned_once(self) -> None:
        federation = self.federation()
        list(federation.notes())
        assert not list(federation.notes())

    def test_its_data_is_as_large_as_it_says(self) -> None:
        """Where its clients' work can be done by any process, every split can be read there."""
        federation = cast(HasData, self.federation())
        if federation.executor is None:
            for split in SPLITS:
                sizes = federation.sizes(split)
                for client, size in zip(federation.everyone(), sizes, strict=True):
                    assert len(federation.data(client, split)) == federation.size(client, split) == size
