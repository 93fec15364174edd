"""A real browser, and pages of small studies to open in it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from shown import STUDIES

import fedtuner as ft
import toys
from fedtuner.page.html import report

FOLDER = Path(__file__).parents[2] / ".browser"  # what scripts/browser.sh makes, as make test does


@pytest.fixture(scope="session")
def browser() -> Iterator[object]:
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: make setup")
    known = FOLDER / "chromium"
    found = str(known) if known.exists() else shutil.which("chromium")
    if found is None:
        why = FOLDER / "why"
        pytest.skip(why.read_text().strip() if why.exists() else "no browser here: make test gets one (.browser)")
    with api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=found)
        yield opened
        opened.close()


@pytest.fixture(scope="session")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """The address of a study's page, made when it is first asked for."""
    folder, made = tmp_path_factory.mktemp("pages"), dict[str, str]()

    def address(name: str) -> str:
        if name not in made:
            store = folder / str(len(made))
            study = toys.tune(store=store, **STUDIES[name])
            study.evaluate("test")
            if name == "halving":
                ft.untuned(study, progress=False).evaluate("test")
            made[name] = report([store], store / "report.html").as_uri()
        return made[name]

    return address
