"""A table of strings as plain text, as Markdown and as LaTeX; some of its cells may be bold."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Bold:
    """A bold cell."""

    words: str


Cell = str | Bold


def table(format: str, head: Sequence[str], rows: Sequence[Sequence[Cell]], colours: bool = False) -> str:
    """Return a table in a format."""
    if format == "markdown":
        return markdown(head, rows)
    return latex(head, rows) if format == "latex" else text(head, rows, colours)


def text(head: Sequence[str], rows: Sequence[Sequence[Cell]], colours: bool = False) -> str:
    """Return a table with aligned columns; bold cells have a star or, with ``colours``, a terminal's bold letters."""
    cells = [list(head), *([_plain(cell, colours) for cell in row] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
    lines = []
    for n, row in enumerate(cells):
        padded = [word.ljust(width) for word, width in zip(row, widths, strict=True)]
        if colours and n:
            both = zip(padded, rows[n - 1], strict=True)
            padded = [f"\033[1m{p}\033[0m" if isinstance(cell, Bold) else p for p, cell in both]
        lines.append("  ".join(padded).rstrip())
    return "\n".join(lines) + "\n"


def _plain(cell: Cell, colours: bool) -> str:
    return cell if isinstance(cell, str) else cell.words + ("" if colours else " *")


def markdown(head: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    """Return a Markdown table."""
    lines = [head, ["---"] * len(head)]
    lines += [[f"**{c.words}**" if isinstance(c, Bold) else c for c in row] for row in rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def latex(head: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    """Return a LaTeX tabular, with booktabs' rules."""
    lines = [" & ".join(_tex(cell) for cell in row) + r" \\" for row in rows]
    columns = "l" * len(head)
    top = " & ".join(map(_tex, head))
    body = "\n".join(lines)
    return (
        f"\\begin{{tabular}}{{{columns}}}\n\\toprule\n{top} \\\\\n\\midrule\n{body}\n\\bottomrule\n\\end{{tabular}}\n"
    )


def _tex(cell: Cell) -> str:
    if isinstance(cell, Bold):
        return rf"\textbf{{{_tex(cell.words)}}}"
    escaped = re.sub(r"([&%$#_{}])", r"\\\1", cell)
    return escaped.replace("±", r"$\pm$").replace("<", "$<$")


def fill(page: str, tables: Mapping[str, str]) -> str:
    """Return a page with the text between ``<!-- NAME -->`` and ``<!-- /NAME -->`` replaced by the table NAME."""

    def place(found: re.Match[str]) -> str:
        return f"{found[1]}\n{tables[found[2]]}\n\n{found[3]}" if found[2] in tables else found[0]

    return re.sub(r"(<!-- ([\w-]+) -->\n).*?(<!-- /\2 -->)", place, page, flags=re.DOTALL)
