"""Which hyperparameters an app's own code reads: one that no client reads, a misspelt one for instance, tunes nothing.

The app is given its values in mappings that note which names it asks for. Whoever goes over all names, or copies them,
has asked for each, so an app is never said to pass over a value that it might use.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from flwr.app import ConfigRecord, RecordDict

from fedtuner.errors import one_line

UNREAD = "unread"
MOST = 100  # names that a reply may list


class _Noting:
    """Notes the names that are read from a mapping."""

    read: set[str]

    def __getitem__(self, name: str) -> Any:
        self.read.add(name)
        return super().__getitem__(name)  # type: ignore[misc]

    def __contains__(self, name: object) -> bool:
        self.read.add(str(name))
        return bool(super().__contains__(name))  # type: ignore[misc]

    def get(self, name: str, default: Any = None) -> Any:
        self.read.add(name)
        return super().get(name, default)  # type: ignore[misc]

    def pop(self, name: str, *default: Any) -> Any:
        self.read.add(name)
        return super().pop(name, *default)  # type: ignore[misc]

    def _all(self) -> Any:
        self.read.update(super().keys())  # type: ignore[misc]
        return super()

    def __iter__(self) -> Iterator[str]:
        return iter(self._all().keys())

    def keys(self) -> Any:
        return self._all().keys()

    def values(self) -> Any:
        return self._all().values()

    def items(self) -> Any:
        return self._all().items()

    def copy(self) -> Any:
        return self._all().copy()

    def __or__(self, other: Any) -> Any:
        return self._all().__or__(other)

    def __ror__(self, other: Any) -> Any:
        return self._all().__ror__(other)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self._all().__reduce_ex__(protocol)


class Config(_Noting, ConfigRecord):
    """A record of a message that notes what is read from it."""

    def __init__(self, values: Mapping[str, Any], read: set[str]) -> None:
        super().__init__(dict(values))
        self.__dict__["read"] = read


class RunConfig(_Noting, dict[str, Any]):
    """A run's configuration that notes what is read from it."""

    def __init__(self, values: Mapping[str, Any], read: set[str]) -> None:
        super().__init__(values)
        self.read = read

    def __reduce__(self) -> Any:
        return dict, (dict(self),)


def told(content: RecordDict, drawn: Iterable[str], read: set[str]) -> RecordDict:
    """Return a reply's content, with the names of drawn values that the app has not read."""
    unread = sorted(set(drawn) - read)[:MOST]
    if unread:
        content[UNREAD] = ConfigRecord({"names": unread})
    return content


class Unread:
    """What the server knows of names that no client has read."""

    def __init__(self) -> None:
        self._read, self._named = set[str](), set[str]()

    def passed_over(self, content: RecordDict, drawn: Iterable[str]) -> set[str]:
        """Return the drawn names that a reply lists as unread; the others are read from now on."""
        names: Any = content.config_records.get(UNREAD, ConfigRecord()).get("names")
        listed = {name for name in names if isinstance(name, str)} if isinstance(names, list) else set()
        self._read |= set(drawn) - listed
        return listed & set(drawn)

    def warning(self, replies: Iterable[set[str]]) -> str:
        """Return what is to be said after a round of which these names were unread, each name once; often nothing."""
        replies = list(replies)
        names = set.intersection(*replies) - self._read - self._named if replies else set()
        self._named |= names
        if not names:
            return ""
        which = " and ".join(repr(one_line(name, 60)) for name in sorted(names))
        return (
            f"no client's app has read {which}, which changes nothing then: does the app know it by another name? It "
            "stands in message.content['config'] and in context.run_config"
        )
