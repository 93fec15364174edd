"""A Flower network on the loopback interface: a SuperLink and SuperNodes as processes of their own.

``with network(folder, nodes=3) as net: net.run(app)`` starts them, waits until they are there, and ends all of them,
whatever happens. They are the programs of the running Python's environment, or of ``bin``'s.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

MARK = "FEDTUNER_TEST_NETWORK"  # in the environment of every process of a network: none of them is overlooked
START = 60.0  # seconds that a program may take to be there: two cores may be busy


@dataclass(frozen=True)
class Certificates:
    """Files for TLS and for the authentication of SuperNodes: a key pair (private, public) for each node."""

    authority: Path
    certificate: Path
    key: Path
    nodes: tuple[tuple[Path, Path], ...] = ()


class Network:
    """The processes of a network, by name: ``link``, ``node-0``, ``node-1`` and so on."""

    def __init__(
        self, folder: Path, nodes: int, tls: Certificates | None, simulation: bool, bin: Path, paths: tuple[Path, ...]
    ) -> None:
        self.folder, self.nodes, self.tls, self.simulation = folder, nodes, tls, simulation
        self.bin, self.paths = bin, paths
        self.port = free_port()
        self.connection = "fleet"  # the SuperLink's name for ``flwr``
        self.mark = uuid.uuid4().hex
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    # programs

    def environment(self, name: str) -> dict[str, str]:
        """Return the environment of a process; each has its own FLWR_HOME, as on devices of their own."""
        home = self.folder / "home" / name
        home.mkdir(parents=True, exist_ok=True)
        return {
            **{k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")},
            "PATH": os.pathsep.join([str(self.bin), os.environ.get("PATH", "")]),
            "FLWR_HOME": str(home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",  # seconds until a waiting app is started; Flower's is 1
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(map(str, self.paths)),
            "WATCHED": str(self.folder / "torch.txt"),  # see watch/sitecustomize.py
            "RAY_USAGE_STATS_ENABLED": "0",
            MARK: self.mark,
        }

    def start(self, name: str, *command: str, home: str | None = None) -> None:
        """Start a program of Flower's in the background, its output in a file of its name."""
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [str(self.bin / command[0]), *command[1:]],
                cwd=self.folder, env=self.environment(home or name), stdin=subprocess.DEVNULL, stdout=log,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    def flwr(self, *arguments: str, timeout: float = 60.0) -> str:
        """Run a ``flwr`` command to its end and return what it printed."""
        done = subprocess.run(
            [str(self.bin / "flwr"), *arguments],
            cwd=self.folder, env=self.environment("user"), capture_output=True, text=True, timeout=timeout,
        )  # fmt: skip
        assert done.returncode == 0, f"flwr {' '.join(arguments)}:\n{done.stdout}{done.stderr}\n{self.logs()}"
        return done.stdout

    # the SuperLink and the SuperNodes

    def start_link(self) -> None:
        """Start the SuperLink and wait until it answers."""
        options = ["--database", str(self.folder / "link.db"), "--host", "127.0.0.1", "--port", str(self.port)]
        if self.tls is None:
            options.append("--insecure")
        else:
            options += ["--ssl-ca-certfile", str(self.tls.authority), "--ssl-certfile", str(self.tls.certificate)]
            options += ["--ssl-keyfile", str(self.tls.key)] + ["--enable-supernode-auth"] * bool(self.tls.nodes)
        options += ["--simulation"] * self.simulation
        self.start("link", "flower-superlink", "--disable-runtime-dependency-installation", *options)
        self.wait(lambda: self.alive("link") and self.healthy(), "the SuperLink does not answer")

    def start_node(self, i: int) -> None:
        """Start SuperNode ``i``; ``wait_for_nodes`` tells when it is there."""
        options = ["--superlink", f"127.0.0.1:{self.port}", "--host", "127.0.0.1", "--port", str(free_port())]
        if self.tls is None:
            options.append("--insecure")
        else:
            options += ["--root-certificates", str(self.tls.authority)]
            if i < len(self.tls.nodes):
                options += ["--auth-supernode-private-key", str(self.tls.nodes[i][0])]
        config = f"partition-id={i} num-partitions={self.nodes}"
        self.start(f"node-{i}", "flower-supernode", *options, "--node-config", config)

    def kill(self, name: str) -> None:
        """End a program and all that it started at once, as a loss of power would."""
        process = self.processes.pop(name)
        children = descendants(process.pid)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        for child in children:  # the SuperLink starts its helper in a session of its own
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        process.wait()

    def wait_for_nodes(self, count: int) -> None:
        """Wait until so many SuperNodes are online."""
        self.wait(
            lambda: sum(node["status"] == "online" for node in self.supernodes()) == count,
            f"there are not {count} SuperNodes online",
        )

    def supernodes(self) -> list[dict[str, str]]:
        """Return what the SuperLink knows of its SuperNodes."""
        return list(json.loads(self.flwr("supernode", "list", "fleet", "--format", "json"))["nodes"])

    # runs

    def launch(self, app: Path, name: str = "run", **config: object) -> None:
        """Start ``flwr run APP --stream`` in the background, its output in ``NAME.log``."""
        command = ["flwr", "run", str(app), "fleet", "--stream"]
        if config:
            command += ["--run-config", " ".join(f"{key}={json.dumps(value)}" for key, value in config.items())]
        if self.simulation:
            command += ["--federation-config", f"num-supernodes={self.nodes}"]
        (self.folder / f"{name}.log").unlink(missing_ok=True)
        self.start(name, *command, home="user")

    def run(self, app: Path, timeout: float = 180.0, name: str = "run", **config: object) -> str:
        """Run an app to its end and return its log; an app that fails is an error."""
        self.launch(app, name, **config)
        return self.finish(name, timeout)

    def finish(self, name: str = "run", timeout: float = 180.0) -> str:
        """Wait for the end of a run that was launched, see that it ended well, and return its log."""
        with suppress(subprocess.TimeoutExpired):
            self.processes.pop(name).wait(timeout)
        log = self.log(name)
        found = re.search(r"started run (\d+)", log)
        assert found, f"the run did not start:\n{log}\n{self.logs()}"
        shown = json.loads(self.flwr("list", self.connection, "--run-id", found.group(1), "--format", "json"))
        status = shown["runs"][0]["status"]
        assert status == "finished:completed", f"the run is {status}:\n{log}\n{self.logs()}"
        return log

    def imported_torch(self) -> list[str]:
        """Return the programs that have imported torch, where ``watch`` is among the paths."""
        return self.log_of("torch.txt").split()

    def log(self, name: str) -> str:
        """Return what a program or a run has printed so far."""
        return self.log_of(f"{name}.log")

    def log_of(self, name: str) -> str:
        """Return the text of a file in the network's folder; there need not be one."""
        path = self.folder / name
        return path.read_text(errors="replace") if path.exists() else ""

    def logs(self) -> str:
        """Return the end of every program's output, for the message of a failure."""
        return "\n".join(f"--- {p.name}\n{p.read_text(errors='replace')[-3000:]}" for p in self.folder.glob("*.log"))

    # the rest

    def write_user_config(self) -> None:
        """Tell ``flwr`` where the SuperLink is, as a user does in FLWR_HOME/config.toml."""
        how = "insecure = true" if self.tls is None else f'root-certificates = "{self.tls.authority}"'
        text = f'[superlink.fleet]\naddress = "127.0.0.1:{self.port}"\n{how}\n'
        (Path(self.environment("user")["FLWR_HOME"]) / "config.toml").write_text(text)

    def alive(self, name: str) -> bool:
        """Return whether a program is running; say what it printed if it is not."""
        assert self.processes[name].poll() is None, f"{name} ended:\n{self.logs()}"
        return True

    def healthy(self) -> bool:
        """Return whether the SuperLink answers."""
        trust = None if self.tls is None else ssl.create_default_context(cafile=str(self.tls.authority))
        scheme = "http" if self.tls is None else "https"
        try:
            with urllib.request.urlopen(f"{scheme}://127.0.0.1:{self.port}/health", timeout=2, context=trust) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def wait(self, ready: Callable[[], bool], otherwise: str, timeout: float = START) -> None:
        """Wait until something is so; fail with the logs if it is not so in time."""
        end = time.monotonic() + timeout
        while not ready():
            assert time.monotonic() < end, f"{otherwise} after {timeout:g} s:\n{self.logs()}"
            time.sleep(0.2)

    def stop(self) -> None:
        """End every process of the network."""
        for name in list(self.processes):
            self.kill(name)
        end = time.monotonic() + 10
        while (left := marked(self.mark)) and time.monotonic() < end:  # one that is ending may have started another
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)


@contextmanager
def network(
    folder: Path,
    nodes: int = 3,
    tls: Certificates | None = None,
    simulation: bool = False,
    bin: Path | None = None,
    paths: tuple[Path, ...] = (),
) -> Iterator[Network]:
    """Start a SuperLink and SuperNodes, give the network, and end all of it.

    With ``simulation`` there are no SuperNodes: runs use Flower's simulation engine with so many virtual ones. Modules
    in ``paths`` can be imported by all of them, as if they were installed on every device.
    """
    net = Network(folder, nodes, tls, simulation, bin or Path(sys.executable).parent, paths)
    net.write_user_config()
    try:
        net.start_link()
        if not simulation:
            if tls is not None:
                for _, public in tls.nodes:
                    net.flwr("supernode", "register", str(public), "fleet")
            for i in range(nodes):
                net.start_node(i)
            net.wait_for_nodes(nodes)
        yield net
    finally:
        net.stop()


def free_port() -> int:
    """Return a port of the loopback interface that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def environments() -> Iterator[tuple[int, Mapping[bytes, bytes]]]:
    """Yield every process whose environment can be read (Linux), with its environment."""
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            pairs = (entry / "environ").read_bytes().split(b"\0")
            yield int(entry.name), dict(p.split(b"=", 1) for p in pairs if b"=" in p)


def marked(mark: str) -> list[int]:
    """Return the processes of a network."""
    return [pid for pid, environment in environments() if environment.get(MARK.encode()) == mark.encode()]


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
