"""The tables of bad inputs are as long as they should be."""

from __future__ import annotations

from types import ModuleType

import test_command_line_inputs
import test_data_inputs
import test_python_inputs
import test_store_inputs
import test_toml_inputs

AREAS = {
    "the command line": (test_command_line_inputs, test_store_inputs),
    "TOML": (test_toml_inputs,),
    "Python": (test_python_inputs,),
    "data readers": (test_data_inputs,),
}


def rows(module: ModuleType) -> set[tuple[str, str]]:
    """Return the rows of a module's tables: the table, and the row's name."""
    tables = {name: table for name, table in vars(module).items() if name.isupper() and isinstance(table, list)}
    return {(name, row[0]) for name, table in tables.items() for row in table if isinstance(row, tuple)}


def test_there_are_many_rows_of_each_kind() -> None:
    found = {area: sum(len(rows(module)) for module in modules) for area, modules in AREAS.items()}
    assert min(found.values()) >= 50, found
    assert sum(found.values()) >= 300, found
