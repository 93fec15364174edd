"""What results depend on beside the setup: versions, and the machine that the work was done on."""

from __future__ import annotations

import platform
import shlex
import subprocess
import sys
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from fedtuner.run.executors import cores


def versions() -> dict[str, str]:
    """Return the versions that results depend on; of this package in a checkout, its commit as well."""
    found = {"fedtuner": installed("fedtuner"), "python": platform.python_version()}
    found |= {"commit": commit()} if commit() else {}
    return found | {name: installed(name) for name in ("numpy", "torch", "optuna") if installed(name)}


@cache  # packages are searched for on the disk
def installed(name: str) -> str:
    """Return the version of an installed package, or nothing."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


@cache
def commit() -> str:
    """Return what ``git describe`` calls this package's checkout, "+" for changes of the package; else nothing."""
    here = Path(__file__).resolve().parent.parent

    def git(*arguments: str) -> str:
        command = ["git", "--no-optional-locks", *arguments]
        done = subprocess.run(command, cwd=here, capture_output=True, text=True, timeout=20, check=True)
        return done.stdout.strip()

    try:
        git("ls-files", "--error-unmatch", "__init__.py")  # installed into some other project's folder, it is not ours
        return git("describe", "--always", "--abbrev=12") + ("+" if git("status", "--porcelain", "--", ".") else "")
    except (OSError, subprocess.SubprocessError):
        return ""


def command() -> str:
    """Return the command that this process was started with: fedtuner's, or a script's; else nothing."""
    program = Path(sys.argv[0])
    module = program.name == "__main__.py"
    if program.stem == "fedtuner" or (module and program.parent.name in ("fedtuner", "cli")):
        return shlex.join(["fedtuner", *sys.argv[1:]])
    script = program.suffix == ".py" and not module and "ipykernel" not in program.name
    return shlex.join(["python", *sys.argv]) if script else ""


def machine() -> dict[str, Any]:
    """Return what the work was done on."""
    model = platform.processor()
    try:
        with Path("/proc/cpuinfo").open() as file:
            model = next(line.partition(":")[2].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    return {"system": platform.system(), "cpu": model or platform.machine(), "cores": cores()}
