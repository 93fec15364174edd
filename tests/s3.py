"""An S3 server on this machine (moto's, in the environment that ``make s3`` makes), and a network that can fail."""

from __future__ import annotations

import re
import socket
import subprocess
import threading
import time
import urllib.request
from contextlib import suppress
from pathlib import Path

import toys

PYTHON = Path(__file__).parents[1] / ".venv-s3" / "bin" / "python"
SECRET = "geheim-0123456789"


# One request at a time, so that conditional writes are atomic, as those of S3 are.
SERVE = """
import sys
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import run_simple
run_simple("127.0.0.1", int(sys.argv[1]), DomainDispatcherApplication(create_backend_app), threaded=False)
"""


class Server:
    """A running server; ``log`` is where it writes a line per request."""

    def __init__(self, log: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.log = log
        command = [str(PYTHON), "-c", SERVE, str(self.port)]
        with log.open("wb") as file:
            self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=file)
        toys.until(self._answers, 60)

    def _answers(self) -> bool:
        with suppress(OSError):
            socket.create_connection(("127.0.0.1", self.port), 1).close()
            return True
        assert self._process.poll() is None, self.log.read_text()
        return False

    def environment(self, port: int | None = None) -> dict[str, str]:
        """What obstore reads."""
        return {
            "AWS_ACCESS_KEY_ID": "tester",
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port or self.port}",
            "AWS_ALLOW_HTTP": "true",
        }

    def make_bucket(self, name: str) -> None:
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/{name}", method="PUT")
        urllib.request.urlopen(request).close()

    def requests(self) -> list[str]:
        """The requests so far, such as PUT /bucket/name."""
        return re.findall(r'"((?:GET|PUT|POST|HEAD|DELETE) \S+) HTTP', self.log.read_text())

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


class Network:
    """A port that leads to the server, while it is up; ``drops`` is how many connections are cut at once instead.

    ``delay`` is how many seconds later the server is reached.
    """

    def __init__(self, port: int, delay: float = 0.0) -> None:
        self._to, self._delay = port, delay
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self.drops = 0
        self.cut = 0  # connections that were
        self._open: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def down(self, drops: int = 10**9) -> None:
        """Cut all connections, and the next so many."""
        self.drops = drops
        for one in list(self._open):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.down()
        self._listening.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listening.accept()
                if self.drops > 0:
                    self.drops -= 1
                    self.cut += 1
                    near.close()
                    continue
                time.sleep(self._delay)
                far = socket.create_connection(("127.0.0.1", self._to))
                self._open |= {near, far}
                for pair in ((near, far), (far, near)):
                    threading.Thread(target=self._carry, args=pair, daemon=True).start()

    def _carry(self, one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):
            while data := one.recv(65536):
                other.sendall(data)
        with suppress(OSError):
            other.shutdown(socket.SHUT_RDWR)  # which ends the other direction, too
        self._open.discard(one)
        one.close()
