"""What every answer to a bad input has in common: it comes soon, in one line that names the value and the rule."""

from __future__ import annotations

import re
import signal
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest

from fedtuner import cli
from fedtuner.errors import FedtunerError

LONGEST = 400  # characters of a message
SOON = 60.0  # seconds; all rows take milliseconds, but the machine may be busy


class Late(BaseException):
    """No answer came: nobody should catch this."""


def check(message: str, match: str) -> None:
    """Fail unless a message is one line, not too long, and says what it must."""
    assert len(message.splitlines()) == 1, message
    assert message.isprintable(), message
    assert len(message) <= LONGEST, f"{len(message)} characters: {message}"
    assert " at 0x" not in message, message
    assert re.search(match, message), f"{match!r} is not in: {message}"


def refused(call: Callable[[], Any], match: str) -> None:
    """Fail unless a call raises an error of fedtuner's whose message is as it must be."""
    with soon(), warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(FedtunerError) as caught:
            call()
    check(str(caught.value), match)


@contextmanager
def soon(seconds: float = SOON) -> Iterator[None]:
    """Fail where the work takes longer."""

    def late(number: int, frame: FrameType | None) -> None:
        raise Late(f"no answer within {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def answer(arguments: Sequence[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Run a command that must fail; return the line that it prints."""
    with soon():
        code = cli.main(arguments)
    out, err = capsys.readouterr()
    assert (code, out) == (2, ""), err
    assert err.startswith("fedtuner: ")
    assert err.endswith("\n")
    return err.removesuffix("\n")
