"""The commands in docs/flower.md do what the page says, as they are printed there (on free ports)."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedtuner[flower]'")

from deployed import EXAMPLES, PAGE, check
from network import Certificates, Network, free_port, marked

from test_docs import blocks
from toys import TESTS

pytestmark = pytest.mark.slow


def printed(containing: str, folder: Path) -> tuple[list[list[str]], str, int]:
    """Return the commands of the page's block with this text, the entry for config.toml, and the SuperLink's port."""
    (block,) = [text for text in blocks(PAGE, "sh") if containing in text]
    (entry,) = [text for text in blocks(PAGE, "ini") if ("insecure" in text) == ("--insecure" in containing)]
    ports = {number: str(free_port()) for number in ("9091", "9101", "9102", "9103")}
    for number, free in ports.items():
        block, entry = block.replace(number, free), entry.replace(number, free)
    (folder / "examples").symlink_to(EXAMPLES)
    return [shlex.split(line) for line in block.splitlines()], entry, int(ports["9091"])


def start_all(net: Network, commands: list[list[str]], entry: str) -> None:
    """Do what the page says, in its order; what goes on until it is stopped is started in the background."""
    (Path(net.environment("user")["FLWR_HOME"]) / "config.toml").write_text(entry)
    nodes = 0
    for command in commands:
        if command[0] == "flower-superlink":
            net.start("link", *command)
            net.wait(lambda: net.alive("link") and net.healthy(), "the SuperLink does not answer")
        elif command[0] == "flower-supernode":
            net.start(f"node-{nodes}", *command)
            nodes += 1
        elif command[:2] == ["flwr", "run"]:
            net.wait_for_nodes(nodes)
            net.start("run", *command, home="user")
        elif command[0] == "flwr":
            net.flwr(*command[1:])
        else:
            assert command[0] == "python"
            subprocess.run([sys.executable, *command[1:]], cwd=net.folder, check=True, capture_output=True)
    net.wait_for_nodes(nodes)


def test_supernodes(tmp_path: Path) -> None:
    commands, entry, port = printed("flower-superlink --insecure", tmp_path)
    net = Network(tmp_path, 3, None, False, Path(sys.executable).parent, (TESTS / "flower" / "watch",))
    net.port = port
    try:
        start_all(net, commands, entry)
        check(net.finish(), tmp_path / "runs" / "devices")  # a relative store lies where the SuperLink was started
    finally:
        net.stop()
    assert "flwr-clientapp" in net.imported_torch()  # the watch sees it where it is used
    assert not marked(net.mark)


def test_tls(tmp_path: Path) -> None:
    commands, entry, port = printed("--enable-supernode-auth", tmp_path)
    keys = tmp_path / "keys"
    tls = Certificates(keys / "ca.crt", keys / "server.crt", keys / "server.key")
    net = Network(tmp_path, 3, tls, False, Path(sys.executable).parent, ())
    net.port = port
    try:
        start_all(net, commands, entry.replace("/path/to/keys", str(keys)))
        check(net.finish(), tmp_path / "runs" / "tls")
    finally:
        net.stop()
    assert not marked(net.mark)
