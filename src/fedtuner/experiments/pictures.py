"""Pictures as PNG and as SVG: the same bytes for the same data and the same matplotlib."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from fedtuner.errors import StoreError
from fedtuner.run.store.files import replace_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def picture(draw: Callable[[Figure], None], size: tuple[float, float], font: float, dpi: int) -> dict[str, bytes]:
    """Return what a function draws on a canvas of this size in inches, as {"png": ..., "svg": ...}."""
    import matplotlib
    from matplotlib.figure import Figure

    made = {}
    with matplotlib.rc_context({"svg.hashsalt": "fedtuner", "svg.fonttype": "none", "font.size": font}):
        canvas = Figure(figsize=size, layout="constrained")
        draw(canvas)
        for suffix, about in (("png", {"Software": None}), ("svg", {"Date": None, "Creator": None})):
            data = io.BytesIO()
            canvas.savefig(data, format=suffix, dpi=dpi, metadata=about)
            made[suffix] = data.getvalue()
    return made


def write(folder: Path, files: Mapping[str, bytes]) -> list[Path]:
    """Write files, given by their names, to a folder; return their paths."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in files.items():
            replace_file(folder / name, data)
    except OSError as error:
        raise StoreError(f"cannot write to {folder}: {error.strerror}") from error
    return [folder / name for name in files]
