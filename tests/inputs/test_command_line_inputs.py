"""Bad command lines: exit code 2, nothing on standard output, one line that says what is wrong and what to do."""

# ruff: noqa: E501 (a row is a line)

from __future__ import annotations

import os
from pathlib import Path

import pytest
from answers import answer, check, soon

from fedtuner import cli
from fedtuner.run.store import Folder

RUN = ("run", "study.toml", "--workers", "1", "--quiet")
BAD = b"\xff".decode("utf-8", "surrogateescape")  # a name that is no text, as the shell passes it


def set_to(*settings: str) -> tuple[str, ...]:
    return (*RUN, "--store", "new", *(word for setting in settings for word in ("--set", setting)))


# id, the command, what the line must match. They run in a folder with a study.toml, a finished study "done", a folder
# "folder", an empty file "file", an old study "old", results "results.jsonl" and a suite "suite.toml".
COMMANDS = [
    # run: the study
    ("run-absent", ("run", "nowhere.toml"), r"cannot read nowhere.toml: No such file or directory; 'fedtuner init'"),
    ("run-preset", ("run", "digts"), r"no preset and no file 'digts'; did you mean 'digits'\?"),
    ("run-empty", ("run", ""), r"no preset and no file ''"),
    ("run-blank", ("run", " "), r"no preset and no file ' '"),
    ("run-dots", ("run", ".."), r"no preset and no file '..'|'..' is a folder"),
    ("run-folder", ("run", "folder"), r"no preset and no file 'folder'|folder is a folder"),
    ("run-a-store", ("run", "done"), r"'done'.*folder|no preset and no file 'done'"),
    ("run-an-empty-file", ("run", "file"), r"no problem is given"),
    ("run-binary", ("run", "model.bin"), r"model.bin is not TOML"),
    ("run-a-folder-toml", ("run", "folder.toml"), r"cannot read folder.toml: Is a directory"),
    ("run-a-loop", ("run", "loop.toml"), r"cannot read loop.toml: Too many levels of symbolic links"),
    ("run-a-suite", ("run", "suite.toml"), r"no setting 'base': this file is a suite, which 'fedtuner bench' runs"),
    ("run-newline", ("run", "a\nb"), r"no preset and no file 'a\\nb'"),
    ("run-nul", ("run", "a\0b"), r"no preset and no file 'a\\x00b'"),
    ("run-bytes", ("run", BAD), r"no preset and no file '\\udcff'"),
    ("run-long", ("run", "x" * 5000), r"no preset and no file 'x+ ?\.\.\."),
    ("run-unicode", ("run", "d\u00edgits"), r"no preset and no file 'd\u00edgits'; did you mean 'digits'\?"),
    ("run-escape", ("run", "\x1b[31m"), r"no preset and no file '\\x1b\[31m'"),
    # run: --set
    ("set-no-value", set_to("fedex.eps"), r"--set 'fedex.eps', but must be KEY=VALUE"),
    ("set-no-key", set_to("=3"), r"--set '=3', but must be KEY=VALUE"),
    ("set-empty", set_to(""), r"--set '', but must be KEY=VALUE"),
    ("set-dots", set_to("..=3"), r"--set '..=3', but must be KEY=VALUE"),
    ("set-half-a-key", set_to("schedule.=3"), r"--set 'schedule.=3', but must be KEY=VALUE"),
    ("set-key-below-nothing", set_to(".budget=3"), r"--set '.budget=3', but must be KEY=VALUE"),
    ("set-a-newline", set_to("cohort=3\nseed=1"), r"--set 'cohort=3\\nseed=1', but must be .*one line"),
    ("set-a-newline-in-the-key", set_to("co\nhort=3"), r"--set 'co\\nhort=3', but must be .*one line"),
    ("set-two-values", set_to("cohort=3 4"), r"cohort = '3 4', but must be a whole number"),
    ("set-no-value-after", set_to("cohort="), r"cohort = '', but must be a whole number"),
    ("set-below-a-value", set_to("cohort.size=3"), r"cohort = \{'size': 3\}, but must be a whole number|no setting"),
    ("set-top", set_to("budget=100"), r"both given.*did you mean 'schedule.budget'\?"),
    ("set-table", set_to("fedex.epss=1"), r"no setting fedex.epss; did you mean 'eps'\?"),
    ("set-text", set_to("seed=x"), r"seed = 'x', but must be a whole number"),
    ("set-unclosed", set_to("client.lr=[1,"), r"client.lr = '\[1,', but must be a number"),
    ("set-deep", set_to("client.lr=" + "[" * 5000), r"--set 'client.lr=\[+ ?\.\.\..*nested|client.lr"),
    ("set-deep-closed", set_to("client.lr=" + "[" * 5000 + "]" * 5000), r"--set 'client.lr=\[+ ?\.\.\..*nested|client.lr"),
    ("set-deep-key", set_to(".".join(["a"] * 3000) + "=1"), r"no setting 'a'"),
    ("set-digits", set_to("cohort=1" + "0" * 5000), r"--set 'cohort=10+ ?\.\.\.|cohort = "),
    ("set-bytes", set_to(f"problem={BAD}"), r"no problem '\\udcff'"),
    ("set-method", set_to("method=fedvag"), r"no method 'fedvag'; did you mean 'fedavg'\?"),
    ("set-problem", set_to("problem=toys:problme"), r"toys has no 'problme'; did you mean 'problem'\?"),
    ("set-problem-fails", set_to("problem=broken:raises"), r"problem = 'broken:raises' failed: ValueError: two lines \(broken.py"),
    ("set-problem-exits", set_to("problem=broken:exits"), r"problem = 'broken:exits' .*SystemExit"),
    ("set-problem-prints", set_to("problem=broken:none"), r"problem = 'broken:none' gave NoneType, but must give a Sim"),
    ("set-problem-syntax", set_to("problem=crooked:f"), r"problem = 'crooked:f' cannot be imported: SyntaxError"),
    ("set-k", set_to("fedex.k=100000000"), r"fedex.k = 100000000, but must be at most"),
    ("set-eliminations", set_to("schedule.eliminations=100000000"), r"eliminations 100000000.*lower eliminations"),
    ("set-cohort", set_to("cohort=7"), r"cohort = 7, but the problem has 6 clients: lower cohort"),
    ("set-combine", set_to("combine=medain"), r"combine.* = 'medain', but must be one of .*did you mean 'median'\?"),
    # run: other options
    ("workers-zero", (*RUN[:-1], "--workers", "0"), r"workers = 0, but must be a whole number >= 1"),
    ("workers-negative", (*RUN[:-1], "--workers", "-3"), r"workers = -3, but must be a whole number >= 1"),
    ("workers-many", (*RUN[:-1], "--workers", "1000000000"), r"workers = 1000000000, but must be at most"),
    ("device", (*RUN, "--device", "gpu"), r"device = 'gpu', but Softmax runs only where it is"),
    ("device-empty", (*RUN, "--device", ""), r"device = '', but"),
    ("store-a-file", (*RUN, "--store", "study.toml"), r"study.toml is a file, but a study's store is a folder: use another --store"),
    ("store-below-a-file", (*RUN, "--store", "study.toml/s"), r"study.toml is a file, but a study's store is a folder"),
    ("store-a-device", (*RUN, "--store", "/dev/null"), r"/dev/null is a file, but a study's store is a folder"),
    ("store-unwritable", (*RUN, "--store", "/proc/s"), r"cannot write to /proc/s: "),
    ("store-a-loop", (*RUN, "--store", "loop.toml"), r"cannot write to loop.toml: |Too many levels"),
    ("store-long", (*RUN, "--store", "x" * 256), r"cannot write to x+.*: File name too long"),
    ("store-old", (*RUN, "--store", "old"), r"old holds a study of the first format"),
    ("store-of-another", (*RUN, "--store", "done", "--set", "fedex.eps=0.5"), r"done holds another study \(tuner.eps: 0.3 in"),
    ("store-of-another-seed", (*RUN, "--store", "done", "--seed", "5"), r"done holds another study \(seed: 0 in the store, 5"),
    ("store-of-many-changes", (*RUN, "--store", "done", "--set", "client.lr=[" + ",".join(f"{i}.0" for i in range(1, 300)) + "]"),
     r"done holds another study \(client.batch: .*Use another --store"),
    ("extend-zero", (*RUN, "--store", "new", "--extend", "0"), r"--extend = 0, but must be a whole number >= 1"),
    ("resume-winner-negative", (*RUN, "--store", "new", "--resume-winner", "-2"), r"--resume-winner = -2, but must be a whole number >= 1"),
    ("retrain-zero", (*RUN, "--store", "new", "--retrain", "0"), r"--retrain = 0, but must be a whole number >= 1"),
    ("evaluate-sample-negative", (*RUN, "--store", "new", "--evaluate-sample", "-1"), r"sample = -1, but must be a whole number >= 30"),
    ("timeout-nan", (*RUN, "--store", "new", "--timeout", "nan"), r"timeout = nan, but must be >= 0"),
    ("timeout-infinite", (*RUN, "--store", "new", "--timeout", "inf"), r"timeout = inf, but must be finite and >= 0"),
    ("patience-zero", (*RUN, "--store", "new", "--patience", "0"), r"patience = 0, but must be a whole number >= 1"),
    ("budget-huge", (*RUN, "--store", "new", "--budget", "1" + "0" * 14), r"schedule.budget = 10+, but must be at most 1000000"),
    ("proxy-empty", (*RUN, "--store", "new", "--proxy", ""), r"no problem ''; known: "),
    ("start-from-absent", (*RUN, "--store", "new", "--start-from", "nowhere"), r"no study in nowhere: there is no journal"),
    ("start-from-a-file", (*RUN, "--store", "new", "--start-from", "study.toml"), r"study.toml is no exported configuration"),
    ("address-of-processes", (*RUN, "--store", "new", "--executor", "processes", "--address", "a\nb"), r"--address a b, but processes run on this machine"),
    # watch, plot, report
    ("watch-absent", ("watch", "nowhere"), r"no study in nowhere: there is no journal"),
    ("watch-port", ("watch", "done", "--port", "70000"), r"--port 70000 cannot be used .*give another, or none"),
    ("plot-a-format", ("plot", "race", "done", "-o", "x.txt"), r"--out x.txt, but a figure's name must end in .svg, .png or .pdf"),
    ("plot-an-arm", ("plot", "theta", "done", "--arm", "99", "-o", "x.svg"), r"arm = 99, but the study has the arms \[0, 1, 2, 3\]"),
    ("plot-a-folder", ("plot", "race", "done", "-o", "folder.svg"), r"--out folder.svg, but that is a folder: give the name of a file"),
    ("plot-below-a-file", ("plot", "race", "done", "-o", "file/x.svg"), r"cannot write to file: File exists"),
    ("report-a-format", ("report", "done", "-o", "x.pdf"), r"--out x.pdf, but a page's name must end in .html"),
    ("report-below-a-file", ("report", "done", "-o", "file/x.html"), r"cannot write file/x.html: File exists"),
    # show
    ("show-absent", ("show", "nowhere"), r"no study in nowhere: there is no journal; 'fedtuner run' makes one"),
    ("show-a-folder", ("show", "folder"), r"no study in folder: there is no journal"),
    ("show-a-file", ("show", "study.toml"), r"no study in study.toml"),
    ("show-the-journal", ("show", "done/journal.jsonl"), r"no study in done/journal.jsonl"),
    ("show-old", ("show", "old"), r"old holds a study of the first format \(it has a spec.json\)"),
    ("show-loop", ("show", "loop.toml"), r"no study in loop.toml|Too many levels"),
    ("show-newline", ("show", "a\nb"), r"no study in 'a\\nb': there is no journal"),
    ("show-long", ("show", "x" * 5000), r"no study in x+ ?\.\.\.|File name too long"),
    ("show-a-journal-that-is-a-folder", ("show", "journalled"), r"cannot read journalled/journal.jsonl: Is a directory|no study"),
    # export
    ("export-absent", ("export", "nowhere"), r"no study in nowhere"),
    ("export-nothing", ("export",), r"give a store and where to: fedtuner export STORE"),
    ("export-two-folders", ("export", "done", "--to", "a", "b"), r"give a store and where to"),
    ("export-optuna-nowhere", ("export", "done", "--to", "optuna"), r"give a store and where to"),
    ("export-to-a-file", ("export", "done", "--to", "file"), r"file is a file, but must be a folder"),
    ("export-below-a-file", ("export", "done", "--to", "file/x"), r"cannot write to file/x: Not a directory"),
    ("export-to-empty", ("export", "done", "--to", ""), r"--to = '', but must be the name of a folder"),
    ("export-over-another", ("export", "done", "--to", "exported"), r"exported/model.safetensors exists: give another folder \(--to\), or --force"),
    ("export-unwritable", ("export", "done", "--to", "/proc/x"), r"cannot write to /proc/x: "),
    ("export-optuna-no-database", ("export", "done", "--to", "optuna", "nodb://x"), r"cannot write to nodb://x"),
    ("export-optuna-a-folder", ("export", "done", "--to", "optuna", "folder"), r"cannot write to folder"),
    ("export-optuna-below-a-file", ("export", "done", "--to", "optuna", "file/x.log"), r"cannot write to file/x.log"),
    ("export-optuna-empty", ("export", "done", "--to", "optuna", ""), r"--to optuna '', but must be a storage that stays, such as"),
    ("export-optuna-in-memory", ("export", "done", "--to", "optuna", "sqlite:///"), r"--to optuna 'sqlite:///', but must be a storage that stays"),
    ("export-old", ("export", "old"), r"old holds a study of the first format"),
    # diff
    ("diff-absent", ("diff", "done", "nowhere"), r"no study in nowhere"),
    ("diff-both-absent", ("diff", "here", "nowhere"), r"no study in here"),
    ("diff-old", ("diff", "done", "old"), r"old holds a study of the first format"),
    # init
    ("init-exists", ("init", "study.toml"), r"study.toml exists: give another name, or --force to replace it"),
    ("init-no-folder", ("init", "no/folder/x.toml"), r"cannot write no/folder/x.toml: No such file or directory"),
    ("init-a-folder", ("init", "folder", "--force"), r"cannot write folder: Is a directory"),
    ("init-unwritable", ("init", "/proc/x.toml"), r"cannot write /proc/x.toml: "),
    ("init-dangling", ("init", "/dev/null/x"), r"cannot write /dev/null/x: Not a directory"),
    # bench, compare, figures
    ("bench-absent", ("bench", "nowhere.toml"), r"no suite 'nowhere.toml': give a TOML file such as"),
    ("bench-a-study", ("bench", "study.toml"), r"no setting 'problem' in a suite|study.toml is a study"),
    ("bench-a-folder", ("bench", "folder"), r"no suite 'folder'"),
    ("bench-binary", ("bench", "model.bin"), r"model.bin is not TOML"),
    ("bench-workers", ("bench", "suite.toml", "--workers", "0"), r"workers = 0, but must be a whole number >= 1"),
    ("bench-workers-dry", ("bench", "suite.toml", "--dry-run", "--workers", "-1"), r"workers = -1, but must be a whole"),
    ("bench-only", ("bench", "suite.toml", "--only", "nothing"), r"--only 'nothing' matches no study of the suite"),
    ("bench-only-bracket", ("bench", "suite.toml", "--only", "[a"), r"--only '\[a' matches no study"),
    ("bench-out-a-folder", ("bench", "suite.toml", "--out", "folder"), r"folder is no file of results: .* ends in .jsonl"),
    ("bench-out-below-a-file", ("bench", "suite.toml", "--out", "file/x.jsonl"), r"cannot write .*file/x"),
    ("bench-out-other", ("bench", "suite.toml", "--out", "study.toml"), r"study.toml is no file of results"),
    ("compare-absent", ("compare", "nowhere"), r"no runs in nowhere: give results of 'fedtuner bench'"),
    ("compare-a-folder", ("compare", "folder"), r"folder is no file of results"),
    ("compare-a-file", ("compare", "file"), r"file is no file of results"),
    ("compare-a-study", ("compare", "study.toml"), r"no runs in .*study.jsonl"),
    ("compare-old", ("compare", "old"), r"old holds a study of the first format"),
    ("compare-twice", ("compare", "done", "done"), r"seed 0 twice: give each run once"),
    ("compare-along", ("compare", "done", "--along", "metod"), r"--along 'metod', but the axes are .*did you mean 'method'\?"),
    ("compare-columns", ("compare", "done", "--columns", "x"), r"--columns 'x', but the axes are"),
    ("compare-no-results", ("compare", "nothing.jsonl"), r"nothing.jsonl, line 1, is not the result of a study"),
    ("compare-not-json", ("compare", "broken.jsonl"), r"cannot read broken.jsonl, line 1"),
    ("compare-binary", ("compare", "model.bin"), r"model.bin is no file of results"),
    ("compare-half-a-result", ("compare", "half.jsonl"), r"half.jsonl, line 1, is not the result of a study"),
    ("figures-absent", ("figures", "nowhere.jsonl"), r"no results in nowhere.jsonl: 'fedtuner bench' makes them"),
    ("figures-a-study", ("figures", "study.toml"), r"no setting 'problem' in a suite|no results"),
    ("figures-not-json", ("figures", "broken.jsonl"), r"cannot read broken.jsonl, line 1"),
    ("compare-a-suite-of-none", ("compare", "listed.jsonl"), r"listed.jsonl, line 1, is not the result of a study"),
    ("compare-a-text-as-error", ("compare", "text.jsonl"), r"text.jsonl, line 1, is not the result of a study"),
    ("compare-digits", ("compare", "digits.jsonl"), r"cannot read digits.jsonl, line 1"),
    ("compare-deep", ("compare", "deep.jsonl"), r"cannot read deep.jsonl, line 1"),
    ("compare-not-utf-8", ("compare", "bytes.jsonl"), r"cannot read bytes.jsonl"),
    ("figures-half-a-result", ("figures", "half.jsonl"), r"half.jsonl, line 1, is not the result of a study"),
    ("figures-of-nothing", ("figures", "empty.jsonl"), r"no results in empty.jsonl"),
    ("figures-to-a-file", ("figures", "one.jsonl", "--to", "file"), r"cannot write to file: File exists"),
    ("figures-of-no-kind", ("figures", "other.jsonl"), r"the suite of other.jsonl names no \[\[figures\]\]: add one"),
    # data
    ("data-get-unknown", ("data", "get", "femnits"), r"no data set 'femnits' to get; did you mean 'femnist'\?"),
    ("data-get-by-hand", ("data", "get", "mnist_by_writer"), r"'mnist_by_writer' .* is not here: place mnist_by_writer.npz"),
    ("data-get-one-of-two", ("data", "get", "cifar10", "x"), r"no data set 'x' to get"),
    ("data-get-unwritable", ("data", "get", "shakespeare", "--quiet"), r"cannot (write|download)"),
    ("data-show-unknown", ("data", "show", "digts"), r"no problem 'digts'; did you mean 'digits'\?"),
    ("data-show-empty", ("data", "show", ""), r"no problem ''"),
    ("data-show-absent", ("data", "show", "cifar10"), r"'cifar10' .* is not here: run 'fedtuner data get cifar10'"),
    ("data-show-no-problem", ("data", "show", "toys:not_a_problem"), r"problem = 'toys:not_a_problem' gave dict"),
    ("data-show-no-labels", ("data", "show", "broken:odd"), r"client 'a', train data: .*"),
    # theory
    ("theory-tau", ("theory", "--tau", "10", "--quiet"), r"tau = 10, but a rate needs at least 1000 tasks"),
    ("theory-tau-huge", ("theory", "--tau", "1" + "0" * 30, "--quiet"), r"tau = 10+, but must be at most"),
    ("theory-seeds", ("theory", "--seeds", "1", "--quiet"), r"seeds = 1, but an interval needs at least 2"),
    ("theory-seeds-huge", ("theory", "--seeds", "1000000000", "--quiet"), r"seeds = 1000000000, but must be at most"),
    ("theory-m", ("theory", "--m", "0", "--quiet"), r"m = 0"),
    ("theory-m-huge", ("theory", "--m", "1000000000000", "--quiet"), r"m = 1000000000000, but must be at most"),
    ("theory-k", ("theory", "--k", "1", "--quiet"), r"k = 1, but there must be at least 2 steps"),
    ("theory-k-huge", ("theory", "--k", "100000000", "--quiet"), r"k = 100000000, but must be at most"),
    ("theory-out-a-file", ("theory", "--out", "file", "--tau", "1000", "--seeds", "2", "--quiet"), r"cannot (write to|read) file"),
    ("theory-out-broken", ("theory", "--out", "theories", "--quiet"), r"cannot read theories/theory.json"),
]  # fmt: skip

# id, the command, whose help is named, what the line must match.
ARGUMENTS = [
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
    ("run-budget-text", ("run", "a", "--budget", "3x"), "fedtuner run", r"argument --budget: '3x', but must be a whole number"),
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


@pytest.mark.slow
@pytest.mark.parametrize(("arguments", "match"), [pytest.param(*row[1:], id=row[0]) for row in COMMANDS])
def test_a_command_that_is_wrong(
    arguments: tuple[str, ...], match: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check(answer(arguments, capsys), match)


@pytest.mark.parametrize(("arguments", "prog", "match"), [pytest.param(*row[1:], id=row[0]) for row in ARGUMENTS])
def test_arguments_that_are_wrong(
    arguments: tuple[str, ...], prog: str, match: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with soon(), pytest.raises(SystemExit) as end:
        cli.main(arguments)
    out, err = capsys.readouterr()
    assert (end.value.code, out) == (2, "")
    assert err.startswith(f"{prog}: error: ")
    assert err.endswith(f" ({prog} --help shows its arguments)\n")
    check(err.removesuffix("\n"), match)


def test_a_store_in_use(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    held = Folder("done")
    held.open()
    try:
        check(answer((*RUN, "--store", "done"), capsys), r"done is in use by another running study.*another store")
    finally:
        held.close()


def test_a_disk_that_is_full(here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "fsync", full)
    check(answer((*RUN, "--store", "new"), capsys), r"cannot write to new: no room left on the disk. What was kept")
