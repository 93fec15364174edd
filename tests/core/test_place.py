"""The place of a study: a folder's path or an object store's URL."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedtuner.core.place import Url, place
from fedtuner.errors import SpecError

NAMES = st.from_regex(r"[a-z0-9][a-z0-9_-]{0,8}", fullmatch=True)


@given(st.sampled_from(["s3", "gs", "az", "memory"]), NAMES, st.lists(NAMES, max_size=3))
def test_a_url_is_written_as_it_was_given(scheme, bucket, names):
    text = "/".join([f"{scheme}://{bucket}", *names])
    assert str(place("store", text)) == text
    assert place("store", f"{text}/") == place("store", text)
    assert str(place("store", text) / "untuned") == f"{text}/untuned"
    assert place("store", text).name == (names or [bucket])[-1]


def test_paths_stay_paths():
    for given_ in ("runs/a", Path("runs/a"), "C:/a", "a:b", "./s3:/x"):
        assert place("store", given_) == Path(given_)
    assert place("store", "file:///tmp/a%20b") == Path("/tmp/a b")
    assert place("store", "S3://bucket/x") == Url("s3", "bucket", "x")
    assert place("store", Url("s3", "b", "k")) == Url("s3", "b", "k")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ftp://host/x", "must be a folder or a URL"),
        ("gcs://bucket/x", "did you mean 'gs://'"),
        ("s3://", "must name a bucket: s3://bucket/name"),
        ("s3:///x", "must name a bucket"),
        ("s3://bucket/a//b", "names between / must be plain and not empty"),
        ("s3://bucket/a/../b", "names between / must be plain"),
        ("file://host/x", "a file URL names a folder of this machine"),
        ("file:///", "a file URL names a folder"),
        ("", "must be the name of a folder, or a URL such as s3://bucket/name"),
        (7, "must be the name of a folder, or a URL"),
    ],
)
def test_what_is_no_place_is_refused_in_one_line(text, said):
    with pytest.raises(SpecError, match=said) as error:
        place("store", text)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["s3://AKIA:geheim@bucket/x", "az://c/x?sig=geheim", "s3://bucket/x#geheim"])
def test_credentials_in_a_url_are_refused_and_not_repeated(text):
    with pytest.raises(SpecError, match="credentials and options come from the environment") as error:
        place("store", text)
    assert "geheim" not in str(error.value)
    assert "AKIA" not in str(error.value)
