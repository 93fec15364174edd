"""Python imports this first, in every process of a network.

It writes down which program imports torch, and saves time where nothing is tested:

- The pauses in which SuperNodes wait for messages are shorter. They look for new ones every 3 s, for replies every
  0.5 s. (The SuperLink has pauses, too, in which it looks for new lines of logs: for these it needs not hurry.)
- An app has a process of its own for each message, as ever; but this is a fork of the SuperExec (``forking``).
"""

import os
import sys
import time
from pathlib import Path

PAUSES = {3: 0.3, 0.5: 0.1}  # seconds: Flower's, and those of the tests


class Watch:
    """A finder that finds nothing, but sees what is asked for."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name == "torch":
            with Path(os.environ["WATCHED"]).open("a") as file:
                file.write(Path(sys.argv[0]).name + "\n")


def shortened(seconds: float, sleep=time.sleep) -> None:
    sleep(PAUSES.get(seconds, seconds))


if "WATCHED" in os.environ:
    sys.meta_path.insert(0, Watch())
    program = Path(sys.argv[0]).name
    if program != "flower-superlink":
        time.sleep = shortened
    if program == "flower-superexec":
        import forking

        forking.begin()
