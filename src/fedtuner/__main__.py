"""``python -m fedtuner`` is the command ``fedtuner``."""

import sys
from pathlib import Path

if __name__ == "__main__":
    if sys.path[0] in ("", str(Path.cwd())) and not getattr(sys.flags, "safe_path", False):
        del sys.path[0]  # python -m puts the current folder there: its files would hide installed packages

    from fedtuner.cli import main

    sys.exit(main())
