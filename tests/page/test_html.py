"""The page is one file that asks nobody for anything, in which a study's texts are data."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser

import pytest
from shown import HOSTILE, STUDIES

import toys
from fedtuner.page.html import data, embedded, page


class Parsed(HTMLParser):
    """The scripts of a page, with their attributes, and all other tags."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.scripts: list[tuple[dict, str]] = []
        self.tags: list[tuple[str, dict]] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append((dict(attrs), ""))

    def handle_data(self, text):
        if self.cdata_elem == "script":
            self.scripts[-1] = (self.scripts[-1][0], self.scripts[-1][1] + text)


def test_a_report_is_one_file_without_addresses(tmp_path, fedtuner):
    toys.tune(store=tmp_path / "s").evaluate("test")
    code, out, _ = fedtuner("report", tmp_path / "s")
    assert code == 0
    assert str(tmp_path / "s" / "report.html") in out
    text = (tmp_path / "s" / "report.html").read_text()
    assert len(text) < 1.5e6
    parsed = Parsed(text)
    assert not [tag for tag, attrs in parsed.tags if "src" in attrs or attrs.get("href", "").startswith("http")]
    policy = next(attrs["content"] for tag, attrs in parsed.tags if attrs.get("http-equiv"))
    assert "default-src 'none'" in policy
    assert "connect-src 'none'" in policy
    assert "unsafe-eval" not in policy
    for attrs, script in parsed.scripts:
        if attrs.get("type") != "application/json":
            digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
            assert f"'sha256-{digest}'" in policy


def test_hostile_texts_are_data(tmp_path):
    toys.tune(store=tmp_path / "s", **STUDIES["hostile names"]).evaluate("test")
    shown = data([tmp_path / "s"])
    text = page(shown)
    parsed = Parsed(text)
    assert not [tag for tag, _ in parsed.tags if tag == "img"]
    kept = json.loads(next(script for attrs, script in parsed.scripts if attrs.get("id") == "data"))
    assert kept == json.loads(json.dumps(shown))
    assert kept["studies"][0]["problem"] == HOSTILE[:-1]
    assert "@DATA@" in page({**shown, "studies": [{**shown["studies"][0], "name": "@DATA@"}]})


def test_embedded_json_has_no_character_of_a_tag():
    assert not re.search("[<>&\u2028\u2029]", embedded({HOSTILE: [HOSTILE]}))
    assert json.loads(embedded({HOSTILE: [HOSTILE]})) == {HOSTILE: [HOSTILE]}


@pytest.mark.slow
def test_several_studies_are_compared_with_intervals(tmp_path, fedtuner):
    for seed in (0, 1, 2):
        toys.tune(store=tmp_path / f"tuned{seed}", seed=seed).evaluate("test")
        toys.tune(store=tmp_path / f"plain{seed}", seed=seed, fedex=None).evaluate("test")
    toys.tune(store=tmp_path / "untested")
    paths = [tmp_path / f"{kind}{seed}" for kind in ("tuned", "plain") for seed in (0, 1, 2)]
    shown = data([*paths, tmp_path / "untested"])
    assert len(shown["studies"]) == 7
    rows = shown["comparison"]["rows"]
    assert [(row["name"], row["n"]) for row in rows] == [("+ FedEx", 3), ("plain", 3)]
    assert all(row["half"] >= 0 for row in rows)
    assert "lower on" in rows[1]["difference"]
    assert "not compared" in shown["comparison"]["notes"][0]
    code, out, err = fedtuner("report", *paths, "--out", tmp_path / "all.html")
    assert (code, err) == (0, "")
    assert "all.html" in out


@pytest.mark.filterwarnings("ignore:.*outside of the space")
@pytest.mark.slow
@pytest.mark.parametrize("name", STUDIES)
def test_every_kind_of_study_has_a_page(name, tmp_path, fedtuner):
    toys.tune(store=tmp_path / "s", **STUDIES[name])
    assert fedtuner("report", tmp_path / "s", "--out", tmp_path / "page.html")[0] == 0


def test_what_cannot_be_written_is_refused(tmp_path, fedtuner):
    toys.tune(store=tmp_path / "s", **STUDIES["one arm, one round"])
    for arguments, said in (
        ((tmp_path / "none",), "no study in"),
        ((tmp_path / "s", "--out", tmp_path / "s" / "journal.jsonl"), "must end in .html"),
        ((tmp_path / "s", "--out", tmp_path / "s" / "journal.jsonl" / "a.html"), "cannot write"),
    ):
        code, _, err = fedtuner("report", *arguments)
        assert code == 2
        assert said in err
        assert err.count("\n") == 1
