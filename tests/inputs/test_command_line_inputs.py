"""Bad command lines: exit code 2, nothing on standard output, one line that says what is wrong and what to do."""

# ruff: noqa: E501 (a row is a line)

from __future__ import annotations

import pytest
from answers import check, soon

from fedtuner import cli

# id, the command, whose usage is shown, what the last line must match.
USAGES = [
    ("none", (), "fedtuner", r"required: COMMAND"),
    ("unknown", ("rnu",), "fedtuner", r"invalid choice: 'rnu'.*'run'"),
    ("option-first", ("--seed", "1", "run"), "fedtuner", r"unrecognized arguments|invalid choice"),
    ("run-nothing", ("run",), "fedtuner run", r"required: study"),
    ("run-two", ("run", "a", "b"), "fedtuner run", r"unrecognized arguments: b"),
    ("run-misspelt", ("run", "a", "--sed", "1"), "fedtuner run", r"unrecognized arguments: --sed 1; did you mean --seed\?"),
    ("run-misspelt-after", ("run", "a", "--stroe=x"), "fedtuner run", r"unrecognized arguments: --stroe=x; did you mean --store\?"),
    ("run-seed-text", ("run", "a", "--seed", "x"), "fedtuner run", r"argument --seed: .*'x'"),
    ("run-seed-real", ("run", "a", "--seed", "1.5"), "fedtuner run", r"argument --seed: .*'1.5'"),
    ("run-seed-empty", ("run", "a", "--seed", ""), "fedtuner run", r"argument --seed: .*''"),
    ("run-seed-digits", ("run", "a", "--seed", "9" * 6000), "fedtuner run", r"argument --seed: .*'9+ ?\.\.\."),
    ("run-seed-newline", ("run", "a", "--seed", "x\ny"), "fedtuner run", r"argument --seed: .*'x\\ny'"),
    ("run-seed-absent", ("run", "a", "--seed"), "fedtuner run", r"argument --seed: expected one argument"),
    ("run-workers-text", ("run", "a", "--workers", "all"), "fedtuner run", r"argument --workers: .*'all'"),
    ("run-engine", ("run", "a", "--engine", "fast"), "fedtuner run", r"argument --engine: invalid choice: 'fast'"),
    ("run-newline", ("run", "a", "b\nc"), "fedtuner run", r"unrecognized arguments: b\\nc"),
    ("run-many", ("run", "a", *["b" * 50] * 50), "fedtuner run", r"unrecognized arguments: b+ .*\.\.\."),
    ("store-empty", ("run", "a", "--store", ""), "fedtuner run", r"argument --store: '', but must be the name of a file or folder"),
    ("store-blank", ("run", "a", "--store", " "), "fedtuner run", r"argument --store: ' ', but must be the name of a file or folder"),
    ("store-nul", ("run", "a", "--store", "a\0b"), "fedtuner run", r"argument --store: 'a\\x00b', but must be the name"),
    ("show-empty", ("show", ""), "fedtuner show", r"argument store: '', but must be the name of a file or folder"),
    ("show-nul", ("show", "a\0b"), "fedtuner show", r"argument store: 'a\\x00b', but must be the name"),
    ("init-empty", ("init", ""), "fedtuner init", r"argument file: '', but must be the name of a file or folder"),
    ("init-nul", ("init", "a\0b"), "fedtuner init", r"argument file: 'a\\x00b', but must be the name"),
    ("bench-out-empty", ("bench", "s", "--out", ""), "fedtuner bench", r"argument --out: '', but must be the name"),
    ("run-set-absent", ("run", "a", "--set"), "fedtuner run", r"argument --set: expected one argument"),
    ("show-nothing", ("show",), "fedtuner show", r"required: store"),
    ("show-option", ("show", "s", "--jsno"), "fedtuner show", r"unrecognized arguments: --jsno; did you mean --json\?"),
    ("diff-one", ("diff", "s"), "fedtuner diff", r"required: second"),
    ("export-option", ("export", "s", "--froce"), "fedtuner export", r"unrecognized arguments: --froce; did you mean --force\?"),
    ("list-unknown", ("list", "everything"), "fedtuner list", r"invalid choice: 'everything'"),
    ("data-nothing", ("data",), "fedtuner data", r"required: WHAT"),
    ("data-unknown", ("data", "gte"), "fedtuner data", r"invalid choice: 'gte'"),
    ("data-get-nothing", ("data", "get"), "fedtuner data get", r"required: NAME"),
    ("data-get-option", ("data", "get", "x", "--qiet"), "fedtuner data get", r"unrecognized arguments: --qiet; .* --quiet\?"),
    ("bench-nothing", ("bench",), "fedtuner bench", r"required: suite"),
    ("compare-format", ("compare", "s", "--format", "pdf"), "fedtuner compare", r"invalid choice: 'pdf'"),
    ("theory-tau", ("theory", "--tau", "1e5"), "fedtuner theory", r"argument --tau: .*'1e5'"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "prog", "match"), [pytest.param(*row[1:], id=row[0]) for row in USAGES])
def test_arguments_that_are_wrong(
    arguments: tuple[str, ...], prog: str, match: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with soon(), pytest.raises(SystemExit) as end:
        cli.main(arguments)
    out, err = capsys.readouterr()
    assert (end.value.code, out) == (2, "")
    usage, _, last = err.removesuffix("\n").rpartition("\n")
    assert usage.startswith(f"usage: {prog} [-h]"), usage
    assert last.startswith(f"{prog}: error: ")
    check(last, match)
