"""The layers: who may import whom, which libraries are imported where, and how many arguments a function takes."""

from __future__ import annotations

import ast
import functools
import sys
from collections.abc import Iterator
from pathlib import Path

import fedtuner

ROOT = Path(fedtuner.__file__).parent

# A module imports only from lines above its own; in the first and the last line also from its left.
LAYERS = (
    ("errors", "rng", "checks", "constraints", "domains", "space", "tables"),
    ("core",),
    ("methods", "tuners", "schedules", "samplers", "tasks", "federations"),
    ("run",),
    ("flower", "data", "problems", "report", "watchers", "experiments", "page", "theory", "testing", "cli"),
)
# The public names: they import from everywhere, and nobody imports them.
FACE = {"__init__", "__main__", "metrics", "pytorch", "sklearn"}

# Libraries beside NumPy, and the files that adapt them: a name that ends in a slash is a folder.
ADAPTERS = {
    "torch": ("tasks/", "problems/models.py", "samplers/by_optuna.py"),  # Optuna's gp is torch's, too
    "greenlet": ("tasks/batched.py",),
    "flwr": ("flower/",),
    "google": ("flower/",),  # protobuf, which Flower's messages are made of
    "ray": ("run/executors/on_ray/",),
    "optuna": ("samplers/by_optuna.py", "report/to_optuna.py", "page/importance.py"),
    "sqlalchemy": ("report/to_optuna.py",),
    "matplotlib": ("experiments/figures.py", "experiments/pictures.py", "page/plots.py", "theory/picture.py"),
    "sklearn": ("data/digits.py", "problems/digits.py", "tasks/estimator.py"),
    "IPython": ("run/watch.py",),
    "pandas": ("run/result.py",),
    "pooch": ("data/download.py",),
    "requests": ("data/download.py",),
    "urllib3": ("data/download.py",),
    "obstore": ("run/store/bucket.py",),
    "ijson": ("data/leaf.py",),
    "PIL": ("data/convert.py",),
    "rich": ("report/", "run/watch.py"),
    "safetensors": ("run/store/states.py", "run/export.py"),
    "tomli": ("run/spec.py",),
}
MOST = 6  # arguments by position


def modules() -> list[str]:
    """The files of the package, such as core/round.py."""
    return sorted(str(file.relative_to(ROOT)) for file in ROOT.rglob("*.py"))


@functools.cache
def tree(file: str) -> ast.Module:
    return ast.parse((ROOT / file).read_text())


def imports(file: str) -> Iterator[str]:
    """Yield what a file imports anywhere in it, as names with dots."""
    for node in ast.walk(tree(file)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file} has a relative import"
            if node.module == "fedtuner":
                yield from (f"fedtuner.{alias.name}" for alias in node.names)
            else:
                yield str(node.module)


def part(name: str) -> str:
    """The part of the package that a file or a name belongs to: core, run, errors ..."""
    return name.removeprefix("fedtuner.").replace("/", ".").removesuffix(".py").partition(".")[0]


def allowed(one: str) -> set[str]:
    """The parts that a part may import from."""
    line = next(n for n, names in enumerate(LAYERS) if one in names)
    above = {name for names in LAYERS[:line] for name in names}
    beside = LAYERS[line][: LAYERS[line].index(one)] if line in (0, len(LAYERS) - 1) else ()
    return above | set(beside) | {one}


def test_every_part_of_the_package_has_its_layer():
    known = {name for names in LAYERS for name in names} | FACE
    assert {part(file) for file in modules()} <= known


def test_the_layers_are_those_of_the_design():
    assert allowed("space") == {"errors", "rng", "checks", "constraints", "domains", "space"}
    assert "tuners" not in allowed("core") | allowed("methods")
    assert {"core", "methods", "tuners"} < allowed("run")
    assert "report" in allowed("cli")
    assert "cli" not in allowed("report")


def test_a_module_imports_only_from_layers_above():
    wrong = [
        f"{file} imports {name}"
        for file in modules()
        if part(file) not in FACE
        for name in imports(file)
        if name.partition(".")[0] == "fedtuner" and part(name) not in {*allowed(part(file)), "__version__"}
    ]
    assert not wrong, "\n".join(wrong)


def test_libraries_are_imported_by_their_adapters_alone():
    standard = {*sys.stdlib_module_names, "fedtuner", "numpy"}
    for file in modules():
        for library in {name.partition(".")[0] for name in imports(file)} - standard:
            assert library in ADAPTERS, f"{file} imports {library}, which has no adapter"
            assert file.startswith(ADAPTERS[library]), f"{file} imports {library}, but only {ADAPTERS[library]} may"


def test_no_core_module_imports_anything_but_numpy():
    found = {name.partition(".")[0] for file in modules() if part(file) == "core" for name in imports(file)}
    assert found - set(sys.stdlib_module_names) == {"fedtuner", "numpy"}


def by_position(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """How many arguments a function takes by position; those of a class and its instances aside."""
    names = [argument.arg for argument in (*function.args.posonlyargs, *function.args.args)]
    return len(names) - (names[:1] in (["self"], ["cls"]))


def test_no_function_takes_many_arguments_by_position():
    """Past six nobody knows their order: make them a record, or keyword-only."""
    many = {
        (file, node.name)
        for file in modules()
        for node in ast.walk(tree(file))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and by_position(node) > MOST
    }
    assert not many, f"{sorted(many)} take more than {MOST} arguments by position"


def test_no_call_passes_many_arguments_by_position():
    """Also where a record is made, but for rows: a row is a line of a table."""
    many = [
        f"{file}, line {node.lineno}"
        for file in modules()
        for node in ast.walk(tree(file))
        if isinstance(node, ast.Call)
        and sum(not isinstance(argument, ast.Starred) for argument in node.args) > MOST
        and ast.unparse(node.func) != "Row"
    ]
    assert not [place for place in many if not place.startswith("testing/stores.py")], many
