"""What a command prints: an output that is closed or full does not undo work that is done and kept."""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from fedtuner.errors import FedtunerError


@contextmanager
def printing(kept: str = "") -> Iterator[None]:
    """Print, to the last byte; ``kept`` says where the work is, if it is kept anyway.

    Where the reader has gone, as in ``fedtuner list | head -1``, it has all that it wanted.
    """
    try:
        yield
        if sys.stdout is not None:  # it is None where it was closed from the start
            sys.stdout.flush()
    except BrokenPipeError:
        _print_nowhere()
    except OSError as error:
        _print_nowhere()
        said = f"cannot print: {error.strerror}"
        if not kept:
            raise FedtunerError(f"{said}: send the output elsewhere") from error
        tell(f"fedtuner: {said}; it is kept: {kept}")


def print_found(found: Any, as_json: bool, as_text: Callable[[Any], None]) -> None:
    """Print what a command has found: as JSON, or by a function that prints it for a person."""
    with printing():
        if as_json:
            print(json.dumps(found, indent=2))
        else:
            as_text(found)


def tell(line: str) -> None:
    """Print a line for whoever watches, if it can be."""
    if sys.stderr is not None:  # print() would take None for standard output
        with suppress(OSError):
            if sys.stderr.isatty():
                width = shutil.get_terminal_size().columns
                line = textwrap.fill(line, width, break_long_words=False, break_on_hyphens=False)
            print(line, file=sys.stderr, flush=True)


def _print_nowhere() -> None:
    """Let what is still to be printed go nowhere: the interpreter would try once more when it ends."""
    with suppress(io.UnsupportedOperation):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
