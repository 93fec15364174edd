"""The command line.

Exit codes: 0 done; 1 failed in a client's work, or (diff) different; 2 bad input; 3 interrupted and resumable.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code. All that takes time is imported here, where Ctrl-C is caught."""
    try:
        from fedtuner.cli import command

        return command.run(argv)
    except KeyboardInterrupt as stop:  # in the imports, too; ``Interrupted`` says how far the work came
        said = str(stop) or "stopped at once; run the same command again to continue"
        print(f"fedtuner: {said}", file=sys.stderr)
        return 3
