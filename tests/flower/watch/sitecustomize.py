"""Python imports this first, in every process of a network.

It writes down which program imports torch, and it shortens the pauses in which Flower's programs wait for messages:
SuperNodes look for new ones every 3 s and for replies every 0.5 s.
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
    time.sleep = shortened
