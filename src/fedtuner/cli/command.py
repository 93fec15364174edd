"""One command, from its arguments to its exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from fedtuner.cli.arguments import parser
from fedtuner.errors import ClientError, FedtunerError, WorkerError, brief


def run(argv: Sequence[str] | None) -> int:
    """Run a command and return its exit code; Ctrl-C is for the caller to catch."""
    arguments = parser().parse_args(argv)
    try:
        code = int(arguments.command(arguments) or 0)
        sys.stdout.flush()
        return code
    except FedtunerError as error:
        print(f"fedtuner: {error}", file=sys.stderr)
        return 1 if isinstance(error, (ClientError, WorkerError)) else 2
    except SystemExit as error:
        rule = "it must return, or raise an error"
        print(f"fedtuner: code of the study's called sys.exit({brief(error.code)}): {rule}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # the reader of our output has gone, as in `fedtuner show ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is still to be written goes nowhere
        return 0
