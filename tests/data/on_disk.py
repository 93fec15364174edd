"""What several tests of the data sets need: the real files, where they are on this machine, and sizes of clients."""

import pytest

from fedtuner import data
from fedtuner.data import places


def staged(name, file):
    here = any((folder / name / file).exists() for folder in places.folders())
    return pytest.mark.skipif(not here, reason=f"{name}/{file} is not on this machine")


def place(name, file):
    return next(folder / name for folder in places.folders() if (folder / name / file).exists())


def sizes(clients):
    return [sum(len(data.labels(s)) for s in (c.train, c.valid, c.test)) for c in clients]
