"""Take the pictures of docs/page.md and of the README: screenshots of the page, in the browser of scripts/browser.sh.

python scripts/page_pictures.py        # writes docs/page/*.png: about two minutes
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "docs" / "page"
STUDIES = {
    "runs/halving": ("--set", "schedule.budget=400", "--set", "schedule.longest=100", "--baseline"),
    "runs/digits": ("--budget", "500", "--baseline"),
}


def main() -> None:
    """Run the studies, write their pages, and take the pictures."""
    OUT.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        for store, settings in STUDIES.items():
            fedtuner("run", "digits", *settings, "--store", store, "--quiet", cwd=folder)
            fedtuner("report", store, cwd=folder)
        browser = playwright.chromium.launch(executable_path=str(ROOT / ".browser" / "chromium"))
        halving, auto = (f"file://{folder}/{store}/report.html" for store in STUDIES)

        def page(address: str, width: int, height: int, scheme: str) -> Page:
            look = {"viewport": {"width": width, "height": height}, "color_scheme": scheme}
            made: Page = browser.new_context(**look, device_scale_factor=1.5).new_page()  # type: ignore[arg-type]
            made.goto(address)
            made.wait_for_selector("body[data-drawn]")
            return made

        laptop = page(halving, 1000, 960, "light")
        keep("race", laptop.screenshot())
        keep("theta", _between(laptop, "#theta-text", "#theta-chart"))
        keep("served", _between(laptop, "#served", "#served-test"))
        keep("configurations", laptop.locator("#configurations").screenshot())
        keep("lineage", page(auto, 1000, 900, "dark").locator("#lineage").screenshot())
        keep("phone", page(auto, 390, 844, "dark").screenshot())
        browser.close()


def fedtuner(*arguments: str, cwd: str) -> None:
    """Run a command in a folder."""
    path = os.pathsep.join(filter(None, (str(ROOT / "src"), os.environ.get("PYTHONPATH"))))
    command = [sys.executable, "-m", "fedtuner", *arguments]
    subprocess.run(command, cwd=cwd, check=True, env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.DEVNULL)


def _between(page: Page, first: str, last: str) -> bytes:
    """Return a picture from the top of one element to the end of another, with a margin."""
    boxes = [box for name in (first, last) if (box := page.locator(name).bounding_box()) is not None]
    left, top = (min(box[side] for box in boxes) for side in ("x", "y"))
    right, end = (max(box[side] + box[size] for box in boxes) for side, size in (("x", "width"), ("y", "height")))
    area = {"x": left - 20, "y": top - 12, "width": right - left + 40, "height": end - top + 24}
    return page.screenshot(clip=area, full_page=True)  # type: ignore[arg-type]


def keep(name: str, data: bytes) -> None:
    """Write a picture with few colours: a third of the bytes."""
    Image.open(io.BytesIO(data)).convert("RGB").quantize(128, dither=Image.Dither.NONE).save(
        OUT / f"{name}.png", optimize=True
    )


if __name__ == "__main__":
    main()
