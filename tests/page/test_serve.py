"""The live page: on this machine alone, the study's data alone, and as the journal grows."""

from __future__ import annotations

import http.client
import json
import signal
import subprocess
import sys
import threading
import urllib.request
from contextlib import contextmanager

import pytest

import toys
from fedtuner.errors import SpecError
from fedtuner.page.serve import HOST, SHARE, Live, Server
from fedtuner.run.store import Folder
from fedtuner.run.store.lines import encode


@contextmanager
def serving(path):
    with Server(path) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def ask(server, path="/", method="GET", **headers):
    connection = http.client.HTTPConnection(HOST, server.server_port, timeout=20)
    connection.request(method, path, headers=headers)
    reply = connection.getresponse()
    found = reply.status, dict(reply.getheaders()), reply.read()
    connection.close()
    return found


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    path = tmp_path_factory.mktemp("live") / "s"
    toys.tune(store=path)
    return path


def test_it_serves_the_page_and_the_view_and_nothing_else(store):
    with serving(store) as server:
        code, headers, body = ask(server)
        assert code == 200
        assert body.startswith(b"<!doctype html>")
        assert "connect-src 'self'" in headers["Content-Security-Policy"]
        code, headers, body = ask(server, "/view.json")
        view = json.loads(body)
        assert (code, view["studies"][0]["used"], view["live"]) == (200, 30, True)
        assert ask(server, "/view.json", **{"If-None-Match": headers["ETag"]})[0] == 304
        for path in ("/journal.jsonl", "/../journal.jsonl", "/states", "/view.json?x=1", "/%2e%2e/lock"):
            assert ask(server, path)[0] == 404, path
        for method in ("POST", "PUT", "DELETE", "OPTIONS", "HEAD"):
            assert ask(server, "/", method)[0] == 501


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1", "localhost:1", "", "[::1]"])
def test_another_host_is_refused(store, host):
    with serving(store) as server:
        assert ask(server, "/view.json", Host=host)[0] == 403
        assert ask(server, "/view.json", Host=f"localhost:{server.server_port}")[0] == 200


def test_it_listens_on_this_machine_alone(store):
    with serving(store) as server:
        assert server.server_address[0] == "127.0.0.1"


def test_a_port_that_cannot_be_used_is_refused(store):
    with serving(store) as server:
        for port in (server.server_port, 70000):
            with pytest.raises(SpecError, match=f"--port {port} cannot be used"):
                Server(store, port)


def test_a_view_is_made_when_the_journal_has_grown_and_not_too_often(store, tmp_path):
    events, now = list(Folder(store).events()), [0.0]
    journal = tmp_path / "journal.jsonl"
    journal.write_bytes(encode(events[:8]))

    def worked():
        now[0] += 1.0  # a refresh takes a second
        return now[0]

    live = Live(tmp_path, lambda: now[0], worked)
    live.refresh()
    first = live.tag
    journal.write_bytes(encode(events))
    live.refresh()
    assert live.tag == first
    now[0] += SHARE
    live.refresh()
    assert live.tag != first
    assert live.shown["studies"][0]["winner"] is not None


@pytest.mark.slow
def test_the_command_ends_with_ctrl_c_and_code_0(store):
    # A shell starts background jobs without Python's handler of SIGINT.
    handling = "import runpy, signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    code = handling + "runpy.run_module('fedtuner', run_name='__main__')"
    command = [sys.executable, "-c", code, "watch", str(store)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=toys.environment()) as process:
        try:
            said = process.stderr.readline()
            address = said.split()[0]
            with urllib.request.urlopen(address, timeout=20) as reply:
                assert reply.status == 200
            process.send_signal(signal.SIGINT)
            assert process.wait(20) == 0
            assert process.stderr.read() == "the page has ended; the study goes on by itself\n"
        finally:
            process.kill()
