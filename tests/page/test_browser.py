"""The page in a real browser."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlparse
from urllib.request import url2pathname

import pytest
from shown import HOSTILE, STUDIES, view

import toys
from fedtuner.page.html import report
from fedtuner.page.serve import Server
from fedtuner.run.store import Folder
from fedtuner.run.store.lines import encode

pytestmark = pytest.mark.slow

PHONE, LAPTOP = {"width": 390, "height": 800}, {"width": 1280, "height": 800}


@contextmanager
def opened(browser, address, viewport=LAPTOP, scheme="light"):
    """A page that has drawn everything, and has complained of nothing when it is closed."""
    context = browser.new_context(viewport=viewport, color_scheme=scheme)
    page, complaints = context.new_page(), []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(address)
    page.wait_for_selector("body[data-drawn]")
    yield page
    context.close()
    assert complaints == []


def shown_at(address):
    return view(Path(url2pathname(urlparse(address).path)).parent)


def option(page, chart):
    """What a chart was told to draw: ids and lengths of its series."""
    return page.evaluate(
        "(id) => echarts.getInstanceByDom(document.getElementById(id))"
        ".getOption().series.map((s) => [s.id, s.data.length])",
        chart,
    )


@pytest.mark.parametrize(
    ("name", "viewport"), [(name, LAPTOP) for name in STUDIES] + [("halving", PHONE), ("a budget", PHONE)]
)
def test_every_kind_of_study_is_drawn_without_complaint(browser, pages, name, viewport):
    with opened(browser, pages(name), viewport, "dark" if viewport is PHONE else "light") as page:
        assert page.evaluate("document.documentElement.scrollWidth") == viewport["width"]
        view = shown_at(pages(name))
        drawn = dict(option(page, "race-chart"))
        assert {id for id in drawn if id.startswith("arm-")} == {f"arm-{arm['id']}" for arm in view["arms"]}
        for arm in view["arms"]:
            assert drawn[f"arm-{arm['id']}"] == len(arm["error_after"]["raw"])
        assert ("untuned" in drawn) == (name == "halving")
        assert page.locator("#lineage").is_visible() == any(arm["parent"] for arm in view["arms"])
        assert page.locator("#race-chart svg path").count() > len(view["arms"])


def test_hovering_shows_the_journals_value(browser, pages):
    journal = shown_at(pages("halving"))
    with opened(browser, pages("halving")) as page:
        page.locator("input[name=raw]").check()
        arm = next(one for one in journal["arms"] if one["id"] == journal["winner"]["arm"])
        chart = page.locator("#race-chart")
        chart.scroll_into_view_if_needed()
        box = chart.bounding_box()
        for round in (2, 7, 10):
            value = arm["error_after"]["raw"][round - 1]
            x, y = page.evaluate(
                "(at) => echarts.getInstanceByDom(document.getElementById('race-chart'))"
                ".convertToPixel({ xAxisIndex: 0, yAxisIndex: 0 }, at)",
                [round, value],
            )
            page.mouse.move(box["x"] + x, box["y"] + y + 30)
            page.mouse.move(box["x"] + x, box["y"] + y)
            tip = page.locator("#race-chart .tip")
            tip.wait_for()
            said = tip.inner_text().replace("\u00a0", " ")
            same = [one for one in journal["arms"] if one["error_after"]["raw"][round - 1 : round] == [value]]
            assert any(f"Arm {one['id']}, round {round}" in said for one in same)
            assert f"error after: {100 * value:.1f} %" in said


def test_controls_and_links_work_by_keyboard(browser, pages):
    journal = shown_at(pages("halving"))
    other = next(arm["id"] for arm in journal["arms"] if arm["id"] != journal["winner"]["arm"])
    with opened(browser, pages("halving")) as page:
        page.locator("input[name=metric][value=error]").focus()
        page.keyboard.press("ArrowRight")
        assert "loss after" in page.locator("#race-chart").get_attribute("aria-label")
        page.locator("#arms summary").focus()
        page.keyboard.press("Enter")
        page.locator(f"#race-table a[href='#arm-{other}']").focus()
        page.keyboard.press("Enter")
        page.locator("#arm-title", has_text=f"Arm {other}").wait_for()
        page.locator("#chosen").select_option(str(journal["winner"]["arm"]))
        assert page.locator("#arm-title").inner_text() == f"Arm {journal['winner']['arm']}"
        assert page.url.endswith(f"#arm-{journal['winner']['arm']}")
    with opened(browser, f"{pages('halving')}#arm-{other}") as page:
        assert page.locator("#arm-title").inner_text() == f"Arm {other}"


def test_hostile_texts_are_shown_and_never_run(browser, pages):
    with opened(browser, pages("hostile names")) as page:
        assert page.evaluate("window.hurt") is None
        assert page.locator("img, script[src], body b:not(.tip b)").count() == 0
        assert HOSTILE[:-1] in page.locator("#headline").inner_text()
        assert HOSTILE[:-1] in page.locator("#setup-table").inner_text()
        chart = page.locator("#clients-chart")
        chart.scroll_into_view_if_needed()
        box = chart.bounding_box()
        x, y = page.evaluate(
            "() => { const chart = echarts.getInstanceByDom(document.getElementById('clients-chart'));"
            " const found = chart.getOption().series.find((s) => s.data.length);"
            " return chart.convertToPixel({ xAxisIndex: 0, yAxisIndex: 0 }, found.data[0].value); }"
        )
        page.mouse.move(box["x"] + x, box["y"] + y)
        page.locator("#clients-chart .tip").wait_for()
        assert "<img src=x onerror=" in page.locator("#clients-chart .tip").inner_text()
        assert page.evaluate("window.hurt") is None


@pytest.mark.parametrize(("viewport", "scheme"), [(PHONE, "light"), (LAPTOP, "dark")])
def test_the_page_is_accessible(browser, pages, viewport, scheme):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed: make setup")
    for name in ("halving", "children"):
        with opened(browser, pages(name), viewport, scheme) as page:
            page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
            found = axe.Axe().run(page).response["violations"]
            bad = [(one["id"], [node["html"][:200] for node in one["nodes"]]) for one in found]
            assert bad == []


def test_several_studies_are_compared_and_each_can_be_chosen(browser, tmp_path):
    paths = [tmp_path / f"{kind}{seed}" for kind in ("tuned", "plain") for seed in (0, 1)]
    for path in paths:
        changed = {"fedex": None} if path.name.startswith("plain") else {}
        toys.tune(store=path, seed=int(path.name[-1]), **changed).evaluate("test")
    with opened(browser, report(paths, tmp_path / "all.html").as_uri()) as page:
        assert dict(option(page, "comparison-chart"))["seeds"] == 4
        page.locator("#study").select_option("3")
        page.wait_for_selector("body[data-drawn]")
        assert page.locator("#name").inner_text() == str(paths[3])


def test_an_interrupted_study_is_drawn(browser, tmp_path):
    toys.tune(store=tmp_path / "s")
    events = list(Folder(tmp_path / "s").events())
    for n in (1, 5, 14):
        (tmp_path / "part").mkdir(exist_ok=True)
        (tmp_path / "part" / "journal.jsonl").write_bytes(encode(events[:n]))
        with opened(browser, report([tmp_path / "part"], tmp_path / "part.html").as_uri()) as page:
            assert "Not finished" in page.locator("#state").inner_text()


def test_the_live_page_moves_while_a_study_runs(browser, tmp_path):
    study = toys.write_study(tmp_path)
    command = [
        sys.executable,
        "-m",
        "fedtuner",
        "run",
        str(study),
        "--store",
        str(tmp_path / "s"),
        "--quiet",
        "--workers",
        "1",
    ]
    with subprocess.Popen(command, env=toys.environment(TOY_NAP="0.05"), stdout=subprocess.DEVNULL) as process:
        toys.until(
            lambda: (tmp_path / "s" / "journal.jsonl").exists() and (tmp_path / "s" / "journal.jsonl").stat().st_size
        )
        with Server(tmp_path / "s") as server:
            thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
            thread.start()
            try:
                with opened(browser, server.address) as page:
                    page.evaluate("window.kept = true")  # a reload would forget it
                    rounds = page.locator("#figures")
                    assert "of 30" in rounds.inner_text()
                    assert json.loads(page.locator("#data").inner_text())["studies"][0]["used"] < 30
                    page.locator("#state", has_text="Finished").wait_for()
                    page.wait_for_selector("body[data-drawn]")
                    assert "30 of 30" in rounds.inner_text()
                    assert page.evaluate("window.kept")
                    assert len([id for id, _ in option(page, "race-chart") if id.startswith("arm-")]) == 4
            finally:
                server.shutdown()
                thread.join()
        assert process.wait() == 0
