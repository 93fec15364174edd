"""Studies of all kinds that a page must show, each made in milliseconds."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

import fedtuner as ft
import toys
from fedtuner.core.records import Key
from fedtuner.core.schedule import Evidence, Scoring, Start, Step, best
from fedtuner.core.store import Done, Event, Late
from fedtuner.page.history import Study
from fedtuner.page.view import View, Views
from fedtuner.run.store import Folder
from fedtuner.run.store.lines import encode
from fedtuner.schedules import Duel

HOSTILE = '</script><img src=x onerror="window.hurt=1"><b>&amp;\u2028'


@dataclass(frozen=True)
class Offspring:
    """Two arms; the better one goes on as a child, and so does that child."""

    needs: ClassVar[frozenset[str]] = frozenset()
    scoring: ClassVar[Scoring] = Scoring()
    budget: int = 16
    longest: int = 8

    def steps(self) -> Generator[Step, Evidence, Key]:
        evidence = yield Step({0: 4, 1: 4}, {0: Start(), 1: Start()})
        parent = best(evidence.scores, 1)[0]
        yield Step({2: 6}, {2: Start(parent=(parent, 4))}, out=(1 - parent,))
        yield Step({3: 8}, {3: Start(parent=(2, 6))})
        return 3, 8


def hostile() -> ft.Simulation:
    """Clients and a problem whose names would run, were they taken for HTML."""
    clients = [replace(client, id=f"{HOSTILE}{n}") for n, client in enumerate(toys.clients())]
    return ft.Simulation(toys.Softmax(), clients, HOSTILE[:-1])


def grouped() -> ft.Simulation:
    """Clients of two groups, one of which has a name that would run."""
    clients = toys.clients()
    groups = {client.id: HOSTILE[:-1] if n % 2 else "town" for n, client in enumerate(clients)}
    return ft.Simulation(toys.Softmax(), clients, "groups", groups)


def unreliable(store: Path) -> None:
    """Write a study whose second round had a late, a failing and two silent clients beside two broken updates."""
    toys.tune(store=store, cohort=6, fedex=None, schedule=ft.random_search(4, 4))
    events = list[Event]()
    for event in Folder(store).events():
        if isinstance(event, Done) and event.record.round == 2:
            rows = event.record.rows
            gone = [row.client for row in rows[:4]]
            changed = replace(event.record, rows=rows[4:], dropped=4, broken=2, unusable=(gone[1],))
            events += [replace(event, record=changed), Late(event.record.arm, 2, gone[0])]
        else:
            events.append(event)
    (store / "journal.jsonl").write_bytes(encode(events))


def bad() -> ft.Simulation:
    """One client's loss is not finite."""
    clients = toys.clients()
    x, y = clients[2].train
    clients[2] = replace(clients[2], train=(np.full_like(x, np.inf), y))
    return ft.Simulation(toys.Softmax(), clients, "bad")


# Arms with values that are meant to be outside: of a list, of a range, and 0 where the scale is logarithmic.
NARROW = ft.Space({"lr": [0.01234567, 0.1], "batch": [4, 8], "weight_decay": ft.Float(1e-5, 1e-2, log=True)})
OUTSIDE = [{"client": {"lr": 0.5, "batch": 6, "weight_decay": 0.0}}, {"client": {"weight_decay": 0.1}}]

STUDIES: dict[str, dict[str, Any]] = {
    "halving": {},
    "without FedEx": {"fedex": None},
    "two tries": {"fedex": ft.FedEx(k=3, tries=2)},
    "a kernel": {"tuner": ft.tuners.Kernel(k=4, eps=0.5)},
    "a gaussian": {"tuner": ft.tuners.Gaussian()},
    "children of a gaussian": {"tuner": ft.tuners.Gaussian(), "schedule": Offspring()},
    "children": {"schedule": Offspring()},
    "diverging": {"space": toys.DIVERGING},
    "one arm, one round": {"schedule": ft.random_search(1, 1), "fedex": None, "space": ft.Space()},
    "a budget": {"schedule": Duel(60, 3), "fedex": None, "method": ft.methods.fedavg},
    "a client in trouble": {"problem": bad()},
    "hostile names": {"problem": hostile()},
    "groups": {"problem": grouped()},
    "values outside the ranges": {"fedex": None, "space": NARROW, "include": OUTSIDE},
}


def view(path: Path) -> View:
    """Return the view of a study's folder."""
    study = Study(path)
    return Views().view(study.history, str(path), study.untuned)
