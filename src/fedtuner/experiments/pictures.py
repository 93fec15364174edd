"""What all pictures have in common: curves with bands, colours, and files with the same bytes for the same data."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedtuner.errors import SpecError, StoreError
from fedtuner.run.store.files import replace_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")  # Okabe and Ito's
ABOUT: dict[str, dict[str, Any]] = {
    "png": {"Software": None}, "svg": {"Date": None, "Creator": None}, "pdf": {"CreationDate": None, "Creator": None},
}  # fmt: skip
FORMATS = tuple(ABOUT)


def picture(
    draw: Callable[[Figure], None], size: tuple[float, float], font: float, dpi: int,
    formats: Iterable[str] = ("png", "svg"),
) -> dict[str, bytes]:  # fmt: skip
    """Return what a function draws on a canvas of this size in inches, by format: {"png": ..., "svg": ...}."""
    import matplotlib
    from matplotlib.figure import Figure

    made = {}
    fixed: Any = {"svg.hashsalt": "fedtuner", "svg.fonttype": "none", "pdf.fonttype": 42, "font.size": font}
    with matplotlib.rc_context(fixed):
        canvas = Figure(figsize=size, layout="constrained")
        draw(canvas)
        for suffix in formats:
            data = io.BytesIO()
            canvas.savefig(data, format=suffix, dpi=dpi, metadata=ABOUT[suffix])
            made[suffix] = data.getvalue()
    return made


def needed(what: str) -> None:
    """Refuse to draw where matplotlib is not installed."""
    try:
        import matplotlib as _  # noqa: F401
    except ImportError as error:
        raise SpecError(f"{what} need matplotlib: pip install 'fedtuner[plot]'") from error


def write(folder: Path, files: Mapping[str, bytes]) -> list[Path]:
    """Write files, given by their names, to a folder; return their paths."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in files.items():
            replace_file(folder / name, data)
    except OSError as error:
        raise StoreError(f"cannot write to {folder}: {error.strerror}") from error
    return [folder / name for name in files]


def plain(ax: Axes) -> None:
    """Leave out the frame's upper and right lines."""
    ax.spines[["top", "right"]].set_visible(False)


Numbers = Sequence[float]
Band = tuple[Numbers, Numbers]


def curve(ax: Axes, x: Numbers, y: Numbers, band: Band, *, steps: bool = False, **style: Any) -> None:
    """Draw a curve and its band; ``steps``: its values stay until the next one. One point alone is a dot."""
    drawn = {"lw": 1.4, **({"marker": "o", "ms": 4} if len(x) == 1 else {}), **style}
    ax.fill_between(x, *band, step="post" if steps else None, color=drawn.get("color"), alpha=0.18, lw=0)
    ax.plot(x, y, drawstyle="steps-post" if steps else "default", **drawn)


def intervals(ax: Axes, x: Numbers, y: Numbers, band: Band, *, across: bool = False, **style: Any) -> None:
    """Draw points with their intervals as bars: upright, or ``across``."""
    values = x if across else y
    low, high = ([abs(v - end) for v, end in zip(values, ends, strict=True)] for ends in band)
    bars: dict[str, Any] = {"xerr" if across else "yerr": [low, high]}
    ax.errorbar(x, y, **bars, **{"marker": "o", "ms": 4, "capsize": 3, "lw": 1, **style})
