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

import numpy as np
import pytest
from shown import HOSTILE, STUDIES, unreliable, view
from torch import nn

import fedtuner as ft
import toys
from fedtuner.page.compare import comparison
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


@pytest.mark.filterwarnings("ignore:.*outside of the space")
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
        continued = any(arm["parent"] for arm in view["arms"])
        assert page.locator("#lineage").is_visible() == continued
        assert page.locator("#lineage-text").inner_text().endswith(view["parts"] or "dotted line.") or not continued
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


def test_the_worst_tenth_and_groups_are_drawn_and_clients_can_be_chosen_by_group(browser, pages):
    journal = shown_at(pages("groups"))
    arm = journal["served"][str(journal["winner"]["arm"])]
    hostile = f"group {HOSTILE[:-1]}"
    with opened(browser, pages("groups")) as page:
        drawn = dict(option(page, "served-chart"))
        assert drawn == {
            f"served-{who}": len(arm["rounds"]) for who in ("clients", "worst tenth", hostile, "group town")
        }
        told = page.locator("#served-table").inner_text().replace("\u00a0", " ")
        for who, clients, before, after in arm["whom"]:
            name = {"clients": "all clients", "worst tenth": "worst tenth of clients"}.get(who, who)
            assert f"{name}\t{clients}\t{100 * before:.1f} %\t{100 * after:.1f} %" in told
        test = page.locator("#served-test").inner_text().replace("\u00a0", " ")
        for who, (before, after) in journal["across"]["tuned"]["test mode"].items():
            assert f"{who.replace('tenth', 'tenth of clients')}\t{100 * before:.1f} %\t{100 * after:.1f} %" in test
        chart = page.locator("#served-chart")
        chart.scroll_into_view_if_needed()
        box, value = chart.bounding_box(), arm["lines"]["after"]["worst tenth"][4]
        x, y = page.evaluate(
            "(at) => echarts.getInstanceByDom(document.getElementById('served-chart'))"
            ".convertToPixel({ xAxisIndex: 0, yAxisIndex: 0 }, at)",
            [arm["rounds"][4], value],
        )
        page.mouse.move(box["x"] + x, box["y"] + y + 20)
        page.mouse.move(box["x"] + x, box["y"] + y)
        page.locator("#served-chart .tip").wait_for()
        said = page.locator("#served-chart .tip").inner_text().replace("\u00a0", " ")
        assert f"Round {arm['rounds'][4]}" in said
        assert f"worst tenth of clients: {100 * value:.1f} %" in said
        page.locator("input[name=when][value=before]").check()
        assert "before local training" in page.locator("#served-chart").get_attribute("aria-label")
        everyone = sum(n for _, n in option(page, "clients-chart"))
        page.locator("#group").focus()
        page.locator("#group").select_option("town")
        some = [row for row in journal["clients"][str(journal["winner"]["arm"])] if row[6] == "town"]
        assert sum(n for _, n in option(page, "clients-chart")) == len(some) < everyone
        assert page.evaluate("window.hurt") is None


def test_late_clients_are_told_from_silent_ones(browser, tmp_path):
    unreliable(tmp_path / "s")
    with opened(browser, report([tmp_path / "s"], tmp_path / "s.html").as_uri()) as page:
        said = page.locator("#health-text").inner_text()
        assert (
            "4 did not report: 1 failed (an error, or a reply that could not be used), 1 came late, 2 gave no" in said
        )
        assert "2 updates broken" in said
        assert [id for id, _ in option(page, "health-chart")] == ["failed", "late", "silent", "broken", "bounded"]
        assert page.locator("#health-table tbody tr").count() == 2


@pytest.mark.parametrize(("viewport", "scheme"), [(PHONE, "light"), (LAPTOP, "dark")])
def test_the_page_is_accessible(browser, pages, viewport, scheme):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed: make setup")
    for name in ("halving", "children", "groups"):
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
        assert "Test error" in page.locator("#comparison-chart").get_attribute("aria-label")
        page.locator("#study").select_option("3")
        page.wait_for_selector("body[data-drawn]")
        assert page.locator("#name").inner_text() == str(paths[3])


def linear():
    return nn.Linear(3, 2)


def judged_by(metric, path):
    """Write a study of another metric: the error of the toy under this name."""
    task = toys.Softmax()
    task.metric = metric
    toys.tune(problem=ft.Simulation(task, toys.clients(), "toy"), store=path).evaluate("test")
    return path


def test_the_controls_have_the_names_of_the_metric_that_is_shown(browser, tmp_path):
    metrics = {"a": ft.Metric("auc", rate=True, maximise=True), "b": ft.Metric("mse"), "c": ft.Metric("loss")}
    paths = [judged_by(metric, tmp_path / name) for name, metric in metrics.items()]
    with opened(browser, report(paths, tmp_path / "all.html").as_uri()) as page:
        for n, name in enumerate(("auc", "mse")):
            page.locator("#study").select_option(str(n))
            page.wait_for_selector("body[data-drawn]")
            assert page.locator("label", has=page.locator("input[value=error]")).inner_text() == name
        page.locator("#study").select_option("2")  # where the metric is the loss there is nothing to choose
        page.wait_for_selector("body[data-drawn]")
        assert not page.locator("input[value=error]").is_visible()
        assert page.locator("input[value=before]").is_visible()


def test_values_below_0_are_drawn_with_their_bands_and_intervals(browser, tmp_path):
    path = judged_by(ft.Metric("reward", maximise=True), tmp_path / "s")
    other = judged_by(ft.Metric("reward"), tmp_path / "o")
    with opened(browser, report([path, other], tmp_path / "both.html").as_uri()) as page:
        drawn = page.evaluate(
            "() => { const chart = echarts.getInstanceByDom(document.getElementById('race-chart'));"
            " const band = chart.getModel().getSeries().filter((s) => /^(low|band)-/.test(s.id));"
            " return band.map((s) => s.getData().mapArray(s.getData().getCalculationInfo('stackResultDimension') ||"
            " 'y', (v) => v)); }"
        )
        low, high = drawn[:2]
        assert all(a <= b for a, b in zip(low, high, strict=True))
        assert min(high) < 0
        page.locator("#study").select_option("0")
        least = page.evaluate(
            "() => echarts.getInstanceByDom(document.getElementById('comparison-chart')).getOption().xAxis[0].min"
        )
        errors = [e for row in comparison([path, other])["rows"] for e in row["errors"].values()]
        assert least <= min(errors)


def test_clients_for_whom_the_metric_is_not_defined_are_counted(browser, tmp_path):
    def split(one_class):
        x = np.random.default_rng(0).normal(size=(12, 3))
        return x, np.ones(12, int) if one_class else (x[:, 0] > 0).astype(int)

    clients = [ft.Client(n, split(False), split(n == 2), split(n == 2)) for n in range(4)]
    problem = ft.Simulation(ft.pytorch.Task(linear, metric=ft.metrics.auc()), clients, "toy")
    study = ft.tune(problem, fedex=None, schedule=ft.random_search(2, 2), cohort=4, store=tmp_path / "s", workers=1)
    study.evaluate("test")
    with opened(browser, report([study.path], tmp_path / "s.html").as_uri()) as page:
        assert "auc is not defined for 1 client, who is left out." in page.locator("#state").inner_text()


def test_both_test_errors_are_of_the_same_split(browser, tmp_path):
    study = toys.tune(store=tmp_path / "s")
    study.evaluate("test")
    plain = ft.untuned(study, progress=False)
    plain.evaluate("valid")
    for tested in (False, True):
        with opened(browser, report([study.path], tmp_path / "s.html").as_uri()) as page:
            told = page.locator("#figures").inner_text()
        assert "Test error, personalized" in told
        assert ("Test error, untuned" in told) == tested
        plain.evaluate("test")


def test_an_interrupted_study_is_drawn(browser, tmp_path):
    toys.tune(store=tmp_path / "s")
    events = list(Folder(tmp_path / "s").events())
    for n in (1, 5, 14):
        (tmp_path / "part").mkdir(exist_ok=True)
        (tmp_path / "part" / "journal.jsonl").write_bytes(encode(events[:n]))
        with opened(browser, report([tmp_path / "part"], tmp_path / "part.html").as_uri()) as page:
            assert "Not finished" in page.locator("#state").inner_text()
            assert page.locator("#incumbent").is_visible() == page.locator("#health").is_visible() == (n > 5)


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
