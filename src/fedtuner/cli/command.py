"""One command, from its arguments to its exit code."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from fedtuner.cli.arguments import parser
from fedtuner.cli.output import tell
from fedtuner.errors import ClientError, FedtunerError, FedtunerWarning, WorkerError, brief

_usual = warnings.formatwarning


def run(argv: Sequence[str] | None) -> int:
    """Run a command and return its exit code; Ctrl-C is for the caller to catch."""
    arguments = parser().parse_args(argv)
    warnings.formatwarning = _in_one_line
    try:
        return int(arguments.command(arguments) or 0)
    except FedtunerError as error:
        tell(f"fedtuner: {error}")
        return 1 if isinstance(error, (ClientError, WorkerError)) else 2
    except SystemExit as error:
        tell(f"fedtuner: code of the study's called sys.exit({brief(error.code)}): it must return, or raise an error")
        return 1


def _in_one_line(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """Return a warning as it is printed: ours without the line of code that it comes from."""
    if issubclass(category, FedtunerWarning):
        return f"fedtuner: {message}\n"
    return _usual(message, category, filename, lineno, line)
