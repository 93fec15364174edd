"""Python imports this first, in every process of a network: it writes down which program imports torch."""

import os
import sys
from pathlib import Path


class Watch:
    """A finder that finds nothing, but sees what is asked for."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name == "torch":
            with Path(os.environ["WATCHED"]).open("a") as file:
                file.write(Path(sys.argv[0]).name + "\n")


if "WATCHED" in os.environ:
    sys.meta_path.insert(0, Watch())
