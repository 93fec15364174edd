"""The command line.

Exit codes: 0 done; 1 failed in a client's work, or (diff) different; 2 bad input; 3 interrupted and resumable.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from fedtuner.cli.arguments import parser
from fedtuner.errors import ClientError, FedtunerError, Interrupted, WorkerError

__all__ = ["main", "parser"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    arguments = parser().parse_args(argv)
    try:
        code = int(arguments.command(arguments) or 0)
        sys.stdout.flush()
        return code
    except Interrupted as stop:
        print(f"fedtuner: {stop}", file=sys.stderr)
        return 3
    except KeyboardInterrupt:
        print("fedtuner: stopped at once; run the same command again to continue", file=sys.stderr)
        return 3
    except FedtunerError as error:
        print(f"fedtuner: {error}", file=sys.stderr)
        return 1 if isinstance(error, (ClientError, WorkerError)) else 2
    except BrokenPipeError:  # the reader of our output has gone, as in `fedtuner show ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is still to be written goes nowhere
        return 0
