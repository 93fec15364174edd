"""Where tables are printed: a terminal, a file or a pipe."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


def console() -> Console:
    """Return a console on standard output."""
    from rich.console import Console

    class Plain(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # the command line deals with it; rich would exit with code 1

    made = Plain(highlight=False)
    if not made.is_terminal:
        # A file or a pipe has no width of its own, and 80 would break configurations.
        made.width, made.soft_wrap = 300, True
    return made
