"""Flower networks of the commands that docs/flower.md prints: a SuperLink and SuperNodes as processes on this machine.

``with Network(folder, "flower-superlink --insecure") as net`` takes the page's block with that text. Its commands are
run as they are printed, but on free ports. All processes of a network end with the ``with`` block, or with this process
(``leftovers``).
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import leftovers

MARK = "FEDTUNER_TEST_NETWORK"  # in the environment of all processes of a network, by which they are found
ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "flower.md"
# Everything that apps of the tests import, as if it were installed on every device: the tree under test comes first.
PATHS = (ROOT / "src", ROOT / "tests", ROOT / "tests" / "flower", ROOT / "tests" / "flower" / "watch")


def blocks(language: str) -> list[str]:
    """Return the page's blocks in a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


class Processes:
    """Processes that end with this object's ``with`` block, or with this process, and all that they have started."""

    def __init__(self, folder: Path, bin: Path) -> None:
        self.folder, self.bin = folder, bin
        self.mark = leftovers.new_mark()
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Any:
        self._watchdog = leftovers.watchdog(MARK, self.mark)
        return self

    def __exit__(self, *error: object) -> None:
        for name in list(self.running):
            self.kill(name)
        assert self._watchdog.stdin is not None
        self._watchdog.stdin.close()
        self._watchdog.wait()
        assert not marked(self.mark), "processes of the tests are left"

    def environment(self, home: str) -> dict[str, str]:
        """Return the environment of a process; each device has an FLWR_HOME of its own."""
        folder = self.folder / "home" / home
        folder.mkdir(parents=True, exist_ok=True)
        return {
            **{k: v for k, v in os.environ.items() if k not in ("VIRTUAL_ENV", "PYTEST_CURRENT_TEST")},
            "PATH": os.pathsep.join([str(self.bin), os.environ.get("PATH", "")]),
            "PYTHONPATH": os.pathsep.join(map(str, PATHS)),
            "FLWR_HOME": str(folder),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.3",  # seconds until a waiting app is started; Flower's is 1
            "OMP_NUM_THREADS": "1",
            "RAY_USAGE_STATS_ENABLED": "0",
            "WATCHED": str(self.folder / "torch.txt"),  # see watch/sitecustomize.py
            MARK: self.mark,
        }

    def start(self, name: str, *command: str, home: str | None = None) -> None:
        """Start a program in the background, its output in ``NAME.log``."""
        with (self.folder / f"{name}.log").open("wb") as log:
            self.running[name] = subprocess.Popen(
                command, cwd=self.folder, env=self.environment(home or name), stdin=subprocess.DEVNULL, stdout=log,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    def call(self, *command: str) -> str:
        """Run a program to its end and return its output."""
        done = subprocess.run(
            command, cwd=self.folder, env=self.environment("user"), capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, f"{shlex.join(command)}:\n{done.stdout}{done.stderr}\n{self.logs()}"
        return done.stdout

    def kill(self, name: str) -> None:
        """End a program and all that it has started without notice, as a loss of power would."""
        process = self.running.pop(name)
        for pid in [*descendants(process.pid), process.pid]:  # the SuperLink's SuperExec has a session of its own
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()

    def wait(self, ready: Callable[[], bool], otherwise: str, timeout: float = 300.0) -> None:
        """Wait for a condition; fail with the logs if it does not become true in time."""
        end = time.monotonic() + timeout
        while not ready():
            assert time.monotonic() < end, f"{otherwise} after {timeout:g} s:\n{self.logs()}"
            time.sleep(0.2)

    def log(self, name: str) -> str:
        """Return what a program has printed so far."""
        return self.text(f"{name}.log")

    def text(self, name: str) -> str:
        """Return the text of a file in the folder, or nothing if there is none."""
        path = self.folder / name
        return path.read_text(errors="replace") if path.exists() else ""

    def logs(self) -> str:
        """Return the end of every program's output, for the message of a failure."""
        return "\n".join(f"--- {p.name}\n{p.read_text(errors='replace')[-3000:]}" for p in self.folder.glob("*.log"))


class Network(Processes):
    """The processes of a printed block: ``link``, ``node-0``, ``node-1``, ... and runs under names of their own.

    With ``engine`` the block is the one for Flower's simulation engine, and ``engine`` its environment: ``flwr run``
    starts a SuperLink by itself, and there are no SuperNodes.
    """

    def __init__(self, folder: Path, containing: str, engine: Path | None = None) -> None:
        super().__init__(folder, (engine / "bin") if engine else Path(sys.executable).parent)
        (block,) = [text for text in blocks("sh") if containing in text]
        ports = {number: str(free_port()) for number in ("9091", "9101", "9102", "9103")}
        self.port = int(ports["9091"])
        self._superlink, self._more = (
            ("local", ["--federation-config", "num-supernodes=3"]) if engine else ("fleet", [])
        )
        (folder / "examples").symlink_to(ROOT / "examples")
        self.preparation: list[list[str]] = []
        self.printed: dict[str, list[str]] = {}
        for line in _replaced(block, ports).splitlines():
            command = shlex.split(line)
            nodes = sum(name.startswith("node-") for name in self.printed)
            names = {"flower-superlink": "link", "flower-supernode": f"node-{nodes}"}
            if command[:2] == ["flwr", "run"]:
                self.printed["run"] = command
            elif command[0] in names:
                self.printed[names[command[0]]] = command
            else:
                self.preparation.append(command)
        if not engine:
            (entry,) = [text for text in blocks("ini") if ("insecure" in text) == ("--insecure" in block)]
            entry = _replaced(entry, ports).replace("/path/to", str(folder))
            (Path(self.environment("user")["FLWR_HOME"]) / "config.toml").write_text(entry)

    @property
    def nodes(self) -> list[str]:
        """The names of the SuperNodes."""
        return [name for name in self.printed if name.startswith("node-")]

    def start_link(self) -> None:
        """Run the page's command for the SuperLink, and wait until it listens."""
        for command in self.preparation:
            if command[0] == "python":
                self.call(sys.executable, *command[1:])
        self.start_printed("link")
        self.wait(lambda: self.alive("link") and self.listening(), "the SuperLink does not listen")

    def start_nodes(self) -> None:
        """Register the SuperNodes, if the page does so, and start them."""
        for command in self.preparation:
            if command[0] == "flwr":
                self.call(*command)
        for name in self.nodes:
            self.start_printed(name)

    def wait_for_nodes(self) -> None:
        """Wait until all SuperNodes are connected."""
        self.wait(
            lambda: all(self.alive(name) and "SuperNode ID:" in self.log(name) for name in self.nodes),
            "not all SuperNodes are connected",
        )

    def start_printed(self, name: str) -> None:
        """Run the page's command of this name in the background."""
        self.start(name, *self.printed[name], home="user" if name == "run" else None)

    def launch(self, app: Path, name: str, **config: object) -> None:
        """Start ``flwr run APP`` in the background, its output in ``NAME.log``."""
        values = " ".join(f"{key}={json.dumps(value)}" for key, value in config.items())
        command = ["flwr", "run", str(app), self._superlink, "--stream", *self._more, "--run-config", values]
        self.start(name, *command, home="user")

    def finish(self, name: str, timeout: float = 300.0) -> str:
        """Wait for the end of a run, check that it is completed, and return its log; more than once, if need be."""
        if name not in self.running:
            return self.log(name)
        with suppress(subprocess.TimeoutExpired):
            self.running[name].wait(timeout)
        log = self.log(name)
        found = re.search(r"started run (\d+)", log)
        assert found, f"the run did not start:\n{log}\n{self.logs()}"
        shown = self.call("flwr", "list", self._superlink, "--run-id", found.group(1), "--format", "json")
        status = json.loads(shown)["runs"][0]["status"]
        assert status == "finished:completed", f"the run is {status}:\n{log}\n{self.logs()}"
        del self.running[name]
        return log

    def alive(self, name: str) -> bool:
        """Return whether a program runs; fail with the logs if it has ended."""
        assert self.running[name].poll() is None, f"{name} ended:\n{self.logs()}"
        return True

    def listening(self) -> bool:
        """Return whether the SuperLink accepts connections."""
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def imported_torch(self) -> set[str]:
        """Return the programs that have imported torch."""
        return set(self.text("torch.txt").split())


def _replaced(text: str, ports: Mapping[str, str]) -> str:
    return re.sub(r"\b9\d{3}\b", lambda found: ports[found.group()], text)


def free_port() -> int:
    """Return a port of the loopback interface that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def marked(mark: str) -> list[int]:
    """Return the processes with this mark."""
    return leftovers.marked(MARK, mark)


def descendants(pid: int) -> list[int]:
    """Return the processes that a process has started, and those that these have started (Linux)."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, IndexError, ValueError):
            parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            parents.setdefault(parent, []).append(int(entry.name))
    found, new = [], parents.get(pid, [])
    while new:
        found += new
        new = [child for parent in new for child in parents.get(parent, [])]
    return found
