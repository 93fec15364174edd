"""The page: one file with its data, its styles, its scripts and the charts' library; it asks nobody for anything.

What a study brings (names, ids, settings) is data: JSON in which no tag can begin or end, and the scripts write it as
text. The policy lets the page run its own scripts alone, known by their hashes.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from fedtuner.core.place import Place
from fedtuner.errors import StoreError
from fedtuner.page.compare import comparison
from fedtuner.page.history import Study
from fedtuner.page.view import Views
from fedtuner.run.store.files import replace_file


def report(paths: list[Place], to: Path) -> Path:
    """Write the page of one or several studies to a file and return it."""
    text = page(data(paths))
    try:
        to.parent.mkdir(parents=True, exist_ok=True)
        replace_file(to, text.encode())
    except OSError as error:
        raise StoreError(f"cannot write {to}: {error.strerror}") from error
    return to


def data(paths: list[Place]) -> dict[str, Any]:
    """Return all that the page of some studies shows."""
    studies = [Study(path) for path in paths]
    views = [Views().view(one.history, str(one.path), one.untuned) for one in studies]
    return {"studies": views, "comparison": comparison(paths) if len(paths) > 1 else None, "live": False}


def page(shown: Mapping[str, Any]) -> str:
    """Return the page that shows some data."""
    parts = {
        "POLICY": policy(bool(shown["live"])),
        "TITLE": html.escape(f"{shown['studies'][0]['name']} - fedtuner"),
        "STYLE": _static("page.css"),
        "DATA": embedded(shown),
        **dict(zip(("LIBRARY", "SCRIPT"), _scripts(), strict=True)),
    }
    # Once through the template: what was filled in is not looked at again.
    return re.sub(r"@([A-Z]+)@", lambda found: parts[found[1]], _static("page.html"))


def embedded(shown: Any) -> str:
    """Return JSON that can stand within a page: characters that could begin a tag or end a line are escaped."""
    text = json.dumps(shown, separators=(",", ":"), allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


@cache
def policy(live: bool) -> str:
    """Return the page's Content-Security-Policy: its own scripts, and no network but the live page's server."""
    hashes = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in _scripts())
    known = " ".join(f"'sha256-{one}'" for one in hashes)
    server = "'self'" if live else "'none'"
    return (
        f"default-src 'none'; script-src {known}; style-src 'unsafe-inline'; img-src data:; connect-src {server}; "
        "base-uri 'none'; form-action 'none'"
    )


def _scripts() -> tuple[str, str]:
    """Return the library and our own script, each as it stands in the page."""
    return _static("echarts.min.js"), _static("charts.js") + _static("page.js")


@cache
def _static(name: str) -> str:
    return resources.files("fedtuner.page").joinpath("static", name).read_text(encoding="utf-8")
