"""Records as tables and back: every type, every mistake, and what third parties name by ``package.module:Class``."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedtuner import samplers, schedules, tables, tuners
from fedtuner.errors import SpecError
from fedtuner.schedules import Halving, Hyperband, RandomSearch
from fedtuner.tuners import FedEx

if TYPE_CHECKING:
    from somewhere import Thing


@dataclass(frozen=True)
class Plain:
    """All simple types; one setting has no default."""

    count: int
    share: float = 0.5
    name: str = "x"
    on: bool = False
    most: int | None = None
    mixed: int | str = 1
    sizes: tuple[int, ...] = ()


@dataclass(frozen=True)
class Other:
    depth: int = 2


class NoDataclass:
    def __init__(self, depth: int = 2) -> None:
        self.depth = depth

    def describe(self) -> dict[str, Any]:
        return {"kind": "nobody", "depth": self.depth}


@dataclass(frozen=True)
class Choosy:
    """Its own checks raise what they like."""

    depth: int = 2

    def __post_init__(self) -> None:
        if self.depth > 5:
            raise ValueError("too deep")
        if self.depth == 4:
            raise SpecError("tree.depth = 4, but must not be 4")


@dataclass(frozen=True)
class Guarded:
    """Its annotations can only be read by a type checker."""

    thing: Thing | None = None
    depth: int = 2


@dataclass(frozen=True)
class MyHalving(Halving):
    """Made from one of ours."""

    patience: int = 3


class Anything:
    def __init__(self, depth: int, **more: Any) -> None:
        self.depth = depth


AN_OBJECT = Other(7)
KINDS: Mapping[str, Any] = {"plain": Plain, "other": Other}


def read(**given: Any) -> Any:
    return tables.read(KINDS, given, "tree", "other")


# Objects become tables


@pytest.mark.parametrize(
    ("value", "made"),
    [
        (1, 1),
        (1.5, 1.5),
        (True, True),
        ("a", "a"),
        (None, None),
        (math.nan, "nan"),
        (math.inf, "inf"),
        (-math.inf, "-inf"),
        ((1, 2.0), [1, 2.0]),
        (frozenset({3}), [3]),
        ({"a": (1, math.inf)}, {"a": [1, "inf"]}),
        ({(1, 2): 3}, {"(1, 2)": 3}),
        (np.float32(0.5), 0.5),
        (np.int64(3), 3),
        (np.bool_(True), True),
        (np.array([[1.0, math.nan]]), [[1.0, "nan"]]),
        (Other(3), {"kind": "test_tables:Other", "depth": 3}),
        ([Other(3)], [{"kind": "test_tables:Other", "depth": 3}]),
        (NoDataclass(4), {"kind": "nobody", "depth": 4}),
        (samplers.uniform, "uniform"),
    ],
)
def test_plain_values(value: Any, made: Any) -> None:
    found = tables.plain(value)
    assert found == made
    assert type(found) is type(made)
    json.dumps(found, allow_nan=False)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner),
    )
)
def test_plain_values_are_strict_json_and_stay_as_they_are(value: Any) -> None:
    made = tables.plain(value)
    assert json.loads(json.dumps(made, allow_nan=False)) == made
    assert tables.plain(made) == made


def test_what_is_none_is_left_out_of_a_table() -> None:
    assert tables.table(Plain(1)) == {
        "kind": "test_tables:Plain", "count": 1, "share": 0.5, "name": "x", "on": False, "mixed": 1, "sizes": []
    }  # fmt: skip


@pytest.mark.parametrize("value", [object(), Other, len, 1j, b"x", range(3)])
def test_what_cannot_stand_in_a_table(value: Any) -> None:
    with pytest.raises(SpecError, match="cannot stand in a table: it is no dataclass and has no describe"):
        tables.plain({"a": [value]})


@pytest.mark.parametrize(
    ("cls", "kind"),
    [
        (Halving, "halving"),
        (FedEx, "fedex"),
        (tuners.Untuned, "none"),
        (Other, "test_tables:Other"),
        (MyHalving, "test_tables:MyHalving"),  # it has inherited a kind, but is not that kind
        (type("Inner", (), {"__module__": "fedtuner.somewhere"}), ""),  # one of ours without a kind
    ],
)
def test_the_kind_of_a_class(cls: Any, kind: str) -> None:
    assert tables.kind_of(cls) == kind


# Tables become objects


def test_the_kind_names_the_class() -> None:
    assert read() == Other()
    assert read(depth=3) == Other(3)
    assert read(kind="plain", count=3) == Plain(3)
    assert read(kind="test_tables:Other", depth=5) == Other(5)
    assert read(kind="test_tables:MyHalving", patience=9) == MyHalving(patience=9)


def test_settings_of_other_kinds_are_passed_over() -> None:
    assert read(kind="other", depth=3, count=5, share=0.1) == Other(3)
    assert read(kind="test_tables:Other", depth=3, count=5) == Other(3)


def test_an_object_in_place_of_a_class() -> None:
    assert read(kind="test_tables:AN_OBJECT") is AN_OBJECT
    assert read(kind="test_tables:AN_OBJECT", count=3) is AN_OBJECT  # a setting of another kind
    with pytest.raises(SpecError, match=r"tree.kind = 'test_tables:AN_OBJECT' is an object, .*settings: \['width'\]"):
        read(kind="test_tables:AN_OBJECT", width=3)


@pytest.mark.parametrize(
    "made",
    [
        Plain(3, 0.25, "y", True, 4, "all", (1, 2)),
        Other(3),
        MyHalving(100, 20, patience=4),
        *(kind() for kind in schedules.KINDS.values()),
        RandomSearch(40, 8, together=2),
        Hyperband(80, 8, 2, fill=True),
        *(kind() for kind in tuners.KINDS.values()),
        FedEx(k=3, gamma=0.5, tries="all"),
        samplers.Ball(0.5),
    ],
    ids=repr,
)
def test_what_is_written_is_read_back(made: Any) -> None:
    other = schedules.KINDS if isinstance(made, schedules.Schedule) else tuners.KINDS  # FedPop is a kind of both
    found = tables.read(
        {"plain": Plain, **other, "ball": samplers.Ball}, json.loads(json.dumps(tables.table(made))), "it", ""
    )
    assert type(found) is type(made)
    assert tables.table(found) == tables.table(made)


BAD = {
    # names
    "an unknown kind": (
        {"kind": "othr"},
        r"tree.kind = 'othr', but must be one of \('plain', 'other'\); did .*'other'",
    ),
    "how one's own is named": ({"kind": "othr"}, r"\(your own is named 'package.module:Class'\)"),
    "a kind that is no text": ({"kind": 3}, "tree.kind = 3, but must be one of"),
    "a kind that is a list": ({"kind": ["other"]}, r"tree.kind = \['other'\], but must be one of"),
    "a misspelt setting": ({"detph": 3}, "no setting tree.detph in other; did you mean 'depth'"),
    "a misspelt kind": ({"knid": "other"}, "no setting tree.knid in other; did you mean 'kind'"),
    "a setting far from all": ({"zzz": 3}, "no setting tree.zzz in other; known: depth, kind"),
    "one of one's own class": ({"kind": "test_tables:Other", "detph": 3}, "no setting tree.detph in test_tables:Other"),
    "one that is needed": ({"kind": "plain"}, "tree.count is missing, and has no default"),
    "one that is needed, with more": ({"kind": "test_tables:Anything"}, "tree.depth is missing"),
    # places
    "no module": ({"kind": "no_such_module:X"}, "tree.kind = 'no_such_module:X': no module 'no_such_module' here"),
    "nothing of that name": ({"kind": "test_tables:Othr"}, "test_tables has no 'Othr'; did you mean 'Other'"),
    "no name": ({"kind": "test_tables:"}, "tree.kind = 'test_tables:', but must be 'package.module:name'"),
    "no place": ({"kind": ":Other"}, "tree.kind = ':Other', but must be 'package.module:name'"),
    "a relative place": ({"kind": ".tables:Other"}, "tree.kind = '.tables:Other', but must be 'package.module:name'"),
    # types
    "text for a whole number": ({"depth": "3"}, "tree.depth = '3', but must be a whole number"),
    "a fraction": ({"depth": 2.5}, "tree.depth = 2.5, but must be a whole number"),
    "yes for a whole number": ({"depth": True}, "tree.depth = True, but must be a whole number"),
    "text for a number": ({"kind": "plain", "count": 1, "share": "a"}, "tree.share = 'a', but must be a number"),
    "yes for a number": ({"kind": "plain", "count": 1, "share": True}, "tree.share = True, but must be a number"),
    "a number for a text": ({"kind": "plain", "count": 1, "name": 3}, "tree.name = 3, but must be a string"),
    "a number for yes": ({"kind": "plain", "count": 1, "on": 1}, "tree.on = 1, but must be true or false"),
    "neither of two": ({"kind": "plain", "count": 1, "mixed": 0.5}, "tree.mixed = 0.5, .* a whole number or a string"),
    "neither it nor nothing": ({"kind": "plain", "count": 1, "most": "a"}, "tree.most = 'a', .* number or left out"),
    # what a class says itself
    "an error of ours": ({"kind": "test_tables:Choosy", "depth": 4}, "^tree.depth = 4, but must not be 4$"),
    "an error of its own": ({"kind": "test_tables:Choosy", "depth": 6}, r"\[tree\]: ValueError: too deep \(test_tab"),
    "a type that its checks trip over": ({"kind": "test_tables:Choosy", "depth": "6"}, "tree.depth = '6', .*whole num"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_mistake_is_named_with_its_remedy(name: str) -> None:
    table, said = BAD[name]
    with pytest.raises(SpecError, match=said):
        read(**table)


def test_types_that_are_fine() -> None:
    made = read(kind="plain", count=3, share=1, mixed="all", most=None, sizes=[1, 2])
    assert made == Plain(3, 1, mixed="all", sizes=[1, 2])  # what is not simple is left to the class
    assert read(kind="test_tables:Guarded", depth="deep").depth == "deep"  # its types cannot be read
    assert read(kind="test_tables:Anything", depth=3).depth == 3
    assert read(kind="test_tables:NoDataclass", depth="deep").depth == "deep"
    assert read(kind="builtins:object").__class__ is object


def test_make_takes_the_settings_of_one_class() -> None:
    assert tables.make(Other, {"depth": 4}, "tree") == Other(4)
    with pytest.raises(SpecError, match=r"^no setting tree.count; known: depth$"):
        tables.make(Other, {"count": 4}, "tree")
    assert tables.parameters(Plain) == ("count", "share", "name", "on", "most", "mixed", "sizes")
    assert tables.parameters(dict) == ()


# Modules of one's own


MODULES = {
    "crooked": ("def (\n", "cannot be imported: SyntaxError"),
    "needing": ("import no_such_library\n", "no module 'no_such_library' here or among the installed ones"),
    "early": ("1 / 0\n", r"cannot be imported: ZeroDivisionError: .* \(early_table.py, line 1\)"),
    "torch": ("raise ModuleNotFoundError('no', name='torch.nn')\n", r"needs PyTorch: pip install 'fedtuner\[torch\]'"),
}


@pytest.mark.parametrize("name", MODULES)
def test_a_module_that_fails_is_named_with_the_place(name, tmp_path, monkeypatch) -> None:
    text, said = MODULES[name]
    (tmp_path / f"{name}_table.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SpecError, match=said) as caught:
        tables.find(f"{name}_table:thing", "tree.kind")
    assert str(caught.value).startswith(f"tree.kind = '{name}_table:thing'")
    sys.modules.pop(f"{name}_table", None)


def test_private_names_are_not_suggested(tmp_path, monkeypatch) -> None:
    (tmp_path / "shy_table.py").write_text("_thing = 1\nother = 2\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SpecError, match=r"shy_table has no 'thing'; known: other$"):
        tables.find("shy_table:thing", "tree.kind")
    assert tables.find("shy_table:other", "tree.kind") == 2


# Differences


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ({}, {}, []),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, []),  # order does not matter
        ({"a": 1}, {"a": 2}, ["a: 1 in the store, 2 now"]),
        ({"a": 1}, {"a": 1.0}, ["a: 1 in the store, 1.0 now"]),  # a range of them draws differently
        ({"a": True}, {"a": 1}, ["a: True in the store, 1 now"]),
        ({"a": {"b": 1}}, {"a": {"b": 2}}, ["a.b: 1 in the store, 2 now"]),
        ({"a": {"b": 1}}, {"a": 3}, ["a: {'b': 1} in the store, 3 now"]),
        ({"a": 1}, {}, ["a: 1 in the store, None now"]),
        ({}, {"b": {"c": 1}}, ["b: None in the store, {'c': 1} now"]),
        ({"a": [1, 2]}, {"a": [1, 3]}, ["a: [1, 2] in the store, [1, 3] now"]),
        ({"b": 1, "a": 1}, {"b": 2, "a": 2}, ["a: 1 in the store, 2 now", "b: 1 in the store, 2 now"]),
    ],
)
def test_differences_are_told_by_name(old: Any, new: Any, said: list[str]) -> None:
    assert list(tables.differences(old, new)) == said


@given(st.dictionaries(st.text(), st.integers() | st.floats(allow_nan=False) | st.text() | st.booleans()))
def test_a_table_does_not_differ_from_itself(table: dict[str, Any]) -> None:
    made = tables.plain(table)
    assert list(tables.differences(made, json.loads(json.dumps(made)))) == []


# What built-in kinds promise


@pytest.mark.parametrize("kinds", [schedules.KINDS, tuners.KINDS], ids=["schedules", "tuners"])
def test_every_kind_is_known_by_its_name_and_has_defaults(kinds: Mapping[str, Any]) -> None:
    for name, cls in kinds.items():
        assert tables.kind_of(cls) == name
        assert tables.read(kinds, {"kind": name}, "it", "") == cls()


SHAPE = {
    "seed": int,
    "labels": {"*": str},
    "rows?": [(int, tables.is_real)],
    "side?": lambda value: value in ("a", "b"),
}


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"seed": 0, "labels": {}}, ""),
        ({"seed": 0, "labels": {"a": "x"}, "rows": [[1, 2], [1, "nan"]], "side": "b", "more": 1}, ""),
        ([], "it is []"),
        ({}, "seed is None"),
        ({"seed": True, "labels": {}}, "seed is True"),
        ({"seed": 0, "labels": []}, "labels is []"),
        ({"seed": 0, "labels": {"a": 3}}, "labels.a is 3"),
        ({"seed": 0, "labels": {}, "rows": {}}, "rows is {}"),
        ({"seed": 0, "labels": {}, "rows": [[1]]}, "rows is [1]"),
        ({"seed": 0, "labels": {}, "rows": [[1, "low"]]}, "rows is 'low'"),
        ({"seed": 0, "labels": {}, "rows": [[1, True]]}, "rows is True"),
        ({"seed": 0, "labels": {}, "side": "c"}, "side is 'c'"),
    ],
)
def test_what_does_not_fit_is_named(value, said):
    assert tables.misfit(value, SHAPE) == said
