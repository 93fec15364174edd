"""Handwritten digits from scikit-learn's wheel: 1,797 images of 8x8 pixels, by the form they were written on.

Alpaydin and Kaynak, "Optical Recognition of Handwritten Digits", UCI 1998. The rows are in the order of 14 forms;
a form has the digits 0 to 9 three times, then one fixed sequence of 100 digits. This order shows where each form starts
(``FORMS``). The forms are the natural clients; each is cut into consecutive parts to have more clients.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from fedtuner.checks import is_whole
from fedtuner.data import split
from fedtuner.errors import SpecError, brief
from fedtuner.federations import Client

FORMS = (0, 130, 256, 386, 516, 646, 776, 906, 1029, 1157, 1287, 1415, 1545, 1667, 1797)


def clients(parts: int = 4, order: str = "shuffled", seed: int = 0) -> list[Client]:
    """Return the clients: each of the 14 forms cut into ``parts`` consecutive parts, 56 clients by default."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise SpecError("the digits come with scikit-learn: pip install 'fedtuner[digits]'") from error
    if not is_whole(parts) or not 1 <= parts <= 40:
        raise SpecError(f"parts = {brief(parts)}, but must be in 1..40: a form has about 130 digits")
    bunch = load_digits()
    x, y = (bunch.data / 16.0).astype(np.float32), bunch.target.astype(np.int64)
    return [
        split(f"form{form:02d}-{part}", x[rows], y[rows], order, seed)
        for form, (start, end) in enumerate(pairwise(FORMS))
        for part, rows in enumerate(np.array_split(np.arange(start, end), parts))
    ]
