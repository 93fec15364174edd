"""What the documentation shows is true: its code runs, its commands parse, its names and links exist."""

from __future__ import annotations

import ast
import os
import pkgutil
import re
import shlex
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

import fedtuner
from fedtuner.cli.arguments import parser
from fedtuner.experiments import suite
from fedtuner.run import spec
from fedtuner.run.store import Folder

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
# The quickstart is the README's first block, line by line, and all blocks are run.
EXAMPLES = sorted(path for path in (ROOT / "examples").glob("*.py") if path.name != "quickstart.py")


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)


def code() -> list[object]:
    """Every page's Python blocks; those that tune take seconds."""
    found: list[object] = []
    for page in PAGES:
        shown = blocks(page, "python")
        marks = [pytest.mark.slow] if any("tune(" in block for block in shown) else []
        if shown:
            found.append(pytest.param(shown, id=page.name, marks=marks))
    return found


def commands() -> list[str]:
    """Every ``fedtuner ...`` line of a shell block, with loops and comments taken off."""
    lines = [line for page in PAGES for block in blocks(page, "sh") for line in block.splitlines()]
    found = [re.search(r"\bfedtuner [^;#]*", line.replace("$s", "0")) for line in lines]
    return [match.group().strip() for match in found if match]


def run(*command: str | Path, cwd: Path) -> str:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, *map(str, command)], cwd=cwd, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_there_is_something_to_check() -> None:
    assert len(PAGES) >= 3
    assert blocks(ROOT / "README.md", "python")
    there = next(action.choices for action in parser()._actions if action.dest == "==SUPPRESS==" and action.choices)
    assert {command.split()[1] for command in commands()} == set(there)


@pytest.mark.parametrize("shown", code())
def test_python_blocks_run_one_after_the_other(
    shown: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "__main__"}
    for block in shown:
        exec(compile(block, "block", "exec"), names)


@pytest.mark.parametrize("command", commands())
def test_commands_parse(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = parser().parse_args(shlex.split(command)[1:])
    if command.split()[1] == "run":  # the settings, too, must be ones that a study can have
        monkeypatch.chdir(tmp_path)
        Path("study.toml").write_text(spec.template())
        spec.parse(spec.override(spec.read(arguments.study)[1], arguments.set))


@pytest.mark.parametrize("text", [b for page in PAGES for b in blocks(page, "toml")])
def test_toml_blocks_are_studies_or_suites(text: str) -> None:
    table = tomllib.loads(text)
    if "axes" in table:
        suite.parse("shown", table)
    else:
        spec.parse(table).study(None, 1)


def test_readme_has_the_lines_of_the_quickstart() -> None:
    shown = ast.parse(blocks(ROOT / "README.md", "python")[0]).body
    _, *kept = ast.parse((ROOT / "examples" / "quickstart.py").read_text()).body  # without the docstring
    guard = kept.pop()
    assert isinstance(guard, ast.If)
    assert [ast.dump(node) for node in shown] == [ast.dump(node) for node in (*kept, *guard.body)]


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_examples_run(example: Path, tmp_path: Path) -> None:
    assert run(example, cwd=tmp_path)


def test_the_journey_needs_public_names_alone() -> None:
    """And it passes through all that a user meets between a model and its export."""
    tree = ast.parse((ROOT / "examples" / "journey.py").read_text())
    modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not any(str(name).startswith("fedtuner") for name in modules)
    used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert not [name for name in used if name.startswith("_")]
    of_ours = {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute) and ast.unparse(n.value) == "ft"}
    assert of_ours <= set(fedtuner.__all__)
    assert {"forecast", "evaluate", "frame", "resume_winner", "retrain", "export", "load", "f1", "Interrupted"} <= used


@pytest.mark.slow
def test_example_study_runs(tmp_path: Path) -> None:
    small = ("--set", "budget=30")
    run("-m", "fedtuner.cli", "run", "study.toml", "--store", tmp_path / "s", "--quiet", *small, cwd=ROOT / "examples")
    assert Folder(tmp_path / "s").exists()


def anchors(page: Path) -> set[str]:
    """The anchors that a page's headings have on GitHub."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if not target.startswith("https://"):
            file, _, anchor = target.partition("#")
            assert (page.parent / file).exists(), f"{page.name} links to {target}"
            assert not anchor or anchor in anchors(page.parent / file if file else page), (
                f"{page.name} links to {target}"
            )


def test_names_in_paper_to_code_exist() -> None:
    """A name such as ``tuners.fedex.choose`` is a module or package of fedtuner and something in it."""
    modules = {path.stem for path in (ROOT / "src" / "fedtuner").iterdir() if path.suffix in ("", ".py")}
    names = re.findall(r"`((?:\w+\.)+\w+)`", (ROOT / "docs" / "paper-to-code.md").read_text())
    checked = [name for name in names if name.split(".")[0] in modules and not name.endswith((".py", ".md"))]
    assert len(checked) > 30
    for name in checked:
        pkgutil.resolve_name(f"fedtuner.{name}")  # raises if there is no such thing


def test_citation_has_the_version() -> None:
    assert f"\nversion: {fedtuner.__version__}\n" in (ROOT / "CITATION.cff").read_text()


def test_picture_is_well_formed() -> None:
    root = ET.parse(ROOT / "docs" / "round.svg").getroot()
    assert root.tag.endswith("svg")
    assert root.get("viewBox")
    assert "font-size: 72%" not in (ROOT / "docs" / "round.svg").read_text()  # CairoSVG: of the picture's width
    for text in root.iter("{http://www.w3.org/2000/svg}text"):
        assert not (len(text) and text.get("text-anchor")), "CairoSVG anchors the parts of a text one by one"
