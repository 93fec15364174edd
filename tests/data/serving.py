"""A server on this machine that breaks off, lies, and remembers what it was asked."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

BODY = bytes(range(256)) * 4000  # a little over a megabyte


@dataclass
class Behaviour:
    """What the server does, and what it was asked."""

    body: bytes = BODY
    ranges: bool = True
    breaks: list[int] = field(default_factory=list)  # bytes to send before hanging up, one per request
    status: list[int] = field(default_factory=list)  # answers to give first
    length: int | None = None  # a Content-Length that is not the body's
    shift: int = 0  # how far off the pieces are
    encoding: str = ""  # as which the server says that the body is compressed
    asked: list[dict[str, str]] = field(default_factory=list)


class Handler(BaseHTTPRequestHandler):
    does: Behaviour

    def do_GET(self) -> None:
        does, headers = self.does, dict(self.headers)
        does.asked.append(headers)
        if does.status:
            self.send_error(does.status.pop(0))
            return
        start = 0
        asked = re.fullmatch(r"bytes=(\d+)-", headers.get("Range", ""))
        if asked and does.ranges:
            start = int(asked.group(1))
            if start >= len(does.body):
                self.send_error(416)
                return
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start + does.shift}-{len(does.body) - 1}/{len(does.body)}")
        else:
            self.send_response(200)
        rest = does.body[start:]
        self.send_header("Content-Length", str(len(rest) if does.length is None else does.length))
        if does.encoding:
            self.send_header("Content-Encoding", does.encoding)
        self.end_headers()
        stop = does.breaks.pop(0) if does.breaks else len(rest)
        self.wfile.write(rest[:stop])

    def handle(self) -> None:
        with suppress(ConnectionError):  # a client that has heard enough hangs up
            super().handle()

    def log_message(self, *args: Any) -> None:
        pass


@contextmanager
def serving() -> Iterator[tuple[str, Behaviour]]:
    """Yield the address of a server, and what it does."""
    does = Behaviour()
    running = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"does": does}))
    thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{running.server_port}", does
    finally:
        running.shutdown()
        thread.join()
        running.server_close()
