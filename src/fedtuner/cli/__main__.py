"""``python -m fedtuner.cli`` is the command ``fedtuner``, too."""

import sys

from fedtuner.cli import main

sys.exit(main())
