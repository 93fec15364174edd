"""Workers that rest for a while after a study's session, for the next one: to start a worker takes seconds.

A command opens several sessions: it tunes, evaluates, and trains the untuned default. Workers that nobody has called
for ``_REST`` seconds end, so that a notebook does not hold a cluster.
"""

from __future__ import annotations

import threading
from typing import Any

_REST = 20.0  # seconds

Kind = tuple[Any, ...]  # of which connection they are, what they need and what was sent to them


class Pool:
    """Resting workers, by their kind."""

    def __init__(self) -> None:
        self._resting: dict[Kind, list[Any]] = {}
        self._lock = threading.Lock()
        self._end: threading.Timer | None = None

    def wake(self, kind: Kind) -> Any:
        """Return a worker of this kind, or None."""
        with self._lock:
            found = self._resting.get(kind)
            return found.pop() if found else None

    def rest(self, kind: Kind, actors: list[Any]) -> None:
        """Keep workers for a while."""
        with self._lock:
            self._resting.setdefault(kind, []).extend(actors)
            if self._end is not None:
                self._end.cancel()
            self._end = threading.Timer(_REST, self.clear)
            self._end.daemon = True
            self._end.start()

    def clear(self) -> None:
        """End all resting workers."""
        import ray

        with self._lock:
            here, resting = connection(), self._resting
            self._resting = {}
        for kind, actors in resting.items():
            for actor in actors if kind[0] == here else ():
                ray.kill(actor)


def connection() -> str:
    """Return what the connection to the cluster is known by: workers of another one are gone."""
    import ray

    if not ray.is_initialized():
        return ""
    context = ray.get_runtime_context()
    return f"{context.gcs_address} {context.get_job_id()}"


pool = Pool()
