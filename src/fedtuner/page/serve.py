"""The live page: a server for this machine alone, which reads the journal as it grows.

It serves the page and the study's view as JSON, to requests that name it as their host: a page of another site cannot
read it through a name of its own. It shares nothing with the study but the journal's file. While nobody has the page
open it does nothing at all. When the page asks, it reads what is new in the journal and makes the view of the arms that
have new rounds, with the lowest priority, and not before ``SHARE`` times the processor time that the last view took.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock
from typing import Any

from fedtuner.core.place import Place
from fedtuner.errors import FedtunerError, SpecError
from fedtuner.page.history import Study
from fedtuner.page.html import embedded, page, policy
from fedtuner.page.view import Views

HOST = "127.0.0.1"
SHARE = 100
START, RUN = 5, 19  # niceness: the first view should not keep its reader waiting, further ones may


class Live:
    """A study's view as JSON, made again when its journal has grown."""

    def __init__(
        self, path: Place, clock: Callable[[], float] = time.monotonic, worked: Callable[[], float] = time.thread_time
    ) -> None:
        self._study, self._views, self._lock = Study(path), Views(), Lock()
        self._clock, self._worked = clock, worked  # by the clock, and the processor time of this thread
        self._next = 0.0
        self._grown = True
        self.shown: dict[str, Any] = {}
        self.text, self.tag = b"", ""

    def refresh(self) -> None:
        """Read what is new, unless it is too early."""
        with self._lock:
            if self._clock() < self._next:
                return
            began = self._worked()
            try:
                self._grown = self._study.refresh() or self._grown
            except FedtunerError:  # a journal that is being replaced; what was seen last stays
                return
            if self._grown:
                view = self._views.view(self._study.history, str(self._study.path), self._study.untuned)
                self.shown, self._grown = {"studies": [view], "comparison": None, "live": True}, False
                self.text = embedded(self.shown).encode()
                self.tag = f'"{hashlib.sha256(self.text).hexdigest()[:20]}"'
            self._next = self._clock() + SHARE * (self._worked() - began)


class Handler(BaseHTTPRequestHandler):
    """Answers two addresses."""

    server: Server
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "fedtuner", ""

    def do_GET(self) -> None:
        if self.headers.get("Host") not in self.server.names:
            return self._answer(403, "text/plain", b"This server answers on 127.0.0.1 alone.\n")
        live = self.server.live
        if self.path == "/":
            live.refresh()
            return self._answer(200, "text/html; charset=utf-8", page(live.shown).encode())
        if self.path == "/view.json":
            live.refresh()
            if self.headers.get("If-None-Match") == live.tag:
                return self._answer(304, "", b"")
            return self._answer(200, "application/json", live.text, ETag=live.tag)
        return self._answer(404, "text/plain", b"There are two addresses: / and /view.json\n")

    def _answer(self, code: int, kind: str, body: bytes, **headers: str) -> None:
        self.send_response(code)
        safe = {
            "Content-Length": str(len(body)), "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff",
            "Cross-Origin-Resource-Policy": "same-origin", "Content-Security-Policy": policy(True),
        }  # fmt: skip
        for name, value in {**({"Content-Type": kind} if kind else {}), **safe, **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


class Server(ThreadingHTTPServer):
    """A server of one study, on this machine's own address."""

    daemon_threads = True

    def __init__(self, path: Place, port: int = 0) -> None:
        self.live = Live(path)
        self.live.refresh()
        try:
            super().__init__((HOST, port), Handler)
        except (OSError, OverflowError) as error:
            why = getattr(error, "strerror", None) or error
            raise SpecError(f"--port {port} cannot be used ({why}): give another, or none") from error
        self.names = {f"{host}:{self.server_port}" for host in (HOST, "localhost")}

    @property
    def address(self) -> str:
        return f"http://{HOST}:{self.server_port}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: a browser that was closed breaks its connection."""


def watch(path: Place, port: int, tell: Callable[[str], None]) -> None:
    """Serve a study's live page until Ctrl-C."""
    _yield(START)
    with Server(path, port) as server:
        _yield(RUN - START)
        tell(f"{server.address} shows {path} as it goes on; Ctrl-C ends the page, not the study")
        try:
            server.serve_forever(poll_interval=5.0)  # it sleeps until it is asked, or for so many seconds
        except KeyboardInterrupt:
            tell("the page has ended; the study goes on by itself")


def _yield(levels: int) -> None:
    """Let other processes go first; threads that this one starts do, too."""
    if hasattr(os, "nice"):
        os.nice(levels)
