"""``python -m fedtuner`` is the command ``fedtuner``."""

import sys

from fedtuner.cli import main

if __name__ == "__main__":
    sys.exit(main())
