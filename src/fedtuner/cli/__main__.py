"""``python -m fedtuner.cli`` is the command ``fedtuner``, too."""

import runpy

runpy.run_module("fedtuner", run_name="__main__")
