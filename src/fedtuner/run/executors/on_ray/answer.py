"""What an actor's call answers: a value, or an error as it was raised, which Ray would wrap in one of its own."""

from __future__ import annotations

import functools
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fedtuner.errors import FAILURES, FedtunerError, RemoteError, WorkerError


@dataclass(frozen=True)
class Answer:
    """The answer to a call."""

    value: Any = None
    error: FedtunerError | None = None
    trace: str = ""

    def unwrap(self) -> Any:
        """Return the value, or raise the error."""
        if self.error is not None:
            raise self.error from RemoteError(self.trace)
        return self.value


def answering(method: Callable[..., Any]) -> Callable[..., Answer]:
    """Let an actor's method return answers."""

    @functools.wraps(method)
    def call(*args: Any, **more: Any) -> Answer:
        try:
            return Answer(method(*args, **more))
        except FedtunerError as error:
            return Answer(None, error, traceback.format_exc())
        except FAILURES as error:
            return Answer(None, WorkerError(repr(error)), traceback.format_exc())

    return call


def value_of(call: Any) -> Any:
    """Wait for a call and return its value, or raise its error."""
    import ray

    return ray.get(call).unwrap()
