"""The cluster: how this process gets connected to it, and what is there. Ray prints nothing of its own here."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from fedtuner.errors import ClusterError, FedtunerError, brief, one_line

_ANSWERS = 3.0  # seconds in which a head must answer; without a probe, Ray tries for minutes
_TRIES = 5  # to greet a cluster that is there, about a second each
_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",  # it sends nothing to anybody
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # what a later Ray does by default; this one warns of the change
}
_sent: set[str] = set()  # the modules that were sent with this process's connection
_reached: set[str] = set()  # the address of this process's connection, as it was given: Ray knows it by another one
_START = "start one with 'ray start --head', and on further machines 'ray start --address=HEAD:6379'"


def load() -> Any:
    """Return the library."""
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    hook = sys.excepthook
    try:
        import ray
    except ImportError as error:
        raise ClusterError(f"Ray cannot be imported ({error}): pip install 'fedtuner[ray]'") from error
    sys.excepthook = hook  # Ray brings one of its own, and a study that is stopped should end in words
    return ray


def connect(address: str | None, code: Sequence[str] = ()) -> None:
    """Connect this process to the cluster at an address, unless it is so already; send modules to its workers."""
    ray = load()
    if ray.is_initialized():
        here = ray.get_runtime_context().gcs_address
        if address not in (None, "auto", here, *_reached):
            raise ClusterError(
                f"address = {brief(address)}, but this process is connected to {here}: ray.shutdown() first"
            )
        if set(code) - _sent:
            rule = "but modules are sent when this process connects to the cluster: ray.shutdown() first"
            raise ClusterError(f"code = {brief(list(code))}, {rule}, or give them to ray.init(runtime_env=...)")
        return
    address = address or os.environ.get("RAY_ADDRESS") or None
    if address is not None and address.startswith("ray://"):
        raise ClusterError(
            f"address = {brief(address)} is that of a Ray client, but a study's driver runs on a machine of the "
            "cluster: log in to one and give address = 'auto', or use 'ray job submit'"
        )
    if address not in (None, "auto", "local"):
        _probe(str(address))
    try:
        with _unheard(new=address in (None, "local")):
            sent = {"runtime_env": {"py_modules": list(code)}} if code else {}
            ray.init(address, include_dashboard=None, logging_level="error", log_to_driver=False, **sent)
        _sent.clear()
        _sent.update(code)
        _reached.clear()
        _reached.add(str(address))
    except FedtunerError:
        raise
    except Exception as error:  # Ray raises many kinds
        raise _refused(address, error) from error


def _probe(address: str) -> None:
    """Raise an error if no Ray answers at HOST:PORT."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise ClusterError(f"address = {brief(address)}, but must be auto, local or HOST:PORT of a cluster's head")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _ANSWERS).close()
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or error
        raise ClusterError(f"no Ray cluster answers at {address} ({why}): {_START}") from error


def _refused(address: str | None, error: Exception) -> ClusterError:
    """Return what to say of a cluster that did not let this process in."""
    said, where = (
        one_line(str(error), 160),
        "this machine's" if address in (None, "auto", "local") else f"the one at {address}",
    )
    if isinstance(error, ConnectionError) and "find any running" in said:
        return ClusterError(f"this machine belongs to no Ray cluster: {_START}; or leave the address out")
    if "Failed to connect" in said or "uthenticat" in said or "token" in said:
        remedy = "give RAY_AUTH_MODE=token, and its token in ~/.ray/auth_token or RAY_AUTH_TOKEN"
        return ClusterError(f"the Ray cluster ({where}) does not let this process in: if it asks for a token, {remedy}")
    return ClusterError(f"cannot connect to the Ray cluster ({where}): {said}; {_START}")


@contextmanager
def _unheard(new: bool) -> Iterator[None]:
    """Let Ray begin without a word, and leave the handling of signals as it is; one that is not new answers soon."""
    import ray._private.ray_constants as constants
    import ray._private.worker as internal  # it prints the deaths of nodes, and has no setting for that

    tries = constants.NUM_REDIS_GET_RETRIES
    constants.NUM_REDIS_GET_RETRIES = tries if new else _TRIES
    internal.print_to_stdstream = lambda *args, **more: None
    main = threading.current_thread() is threading.main_thread()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)} if main else {}
    known = {logging.getLogger(name): logging.getLogger(name).level for name in ("ray", "ray._private")}
    for logger in known:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        constants.NUM_REDIS_GET_RETRIES = tries
        for number, handler in before.items():
            signal.signal(number, handler)


def nodes() -> dict[str, Mapping[str, float]]:
    """Return the resources of the nodes that are alive, by their ids."""
    return {node["NodeID"]: node["Resources"] for node in load().nodes() if node["Alive"]}
