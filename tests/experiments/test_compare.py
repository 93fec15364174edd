"""What is said about runs over seeds: means, intervals, pairs, and how it is printed."""

from __future__ import annotations

import json
import math

import pytest

import toys
from fedtuner.errors import SpecError
from fedtuner.experiments import compare, results, statistics, tables, tabulate

ERRORS = {  # by tuning and target: five seeds
    ("plain", "global"): [0.30, 0.32, 0.28, 0.31, 0.34],
    ("plain", "personalized"): [0.20, 0.21, 0.19, 0.22, 0.24],
    ("+ FedEx", "global"): [0.29, 0.30, 0.27, 0.29, 0.30],
    ("+ FedEx", "personalized"): [0.21, 0.20, 0.20, 0.22, 0.25],
}


@pytest.fixture
def file(tmp_path):
    """A suite's results: two targets, plain and with FedEx, on two problems; one published number."""
    studies = []
    for data, shift in (("small", 0.0), ("large", 0.1)):
        for (tuning, target), errors in ERRORS.items():
            for seed, error in enumerate(errors):
                labels = {"data": data, "target": target, "tuning": tuning}
                study = {
                    "labels": labels,
                    "seed": seed,
                    "problem": {"name": data},
                    "target": target,
                    "test": {"global": error + shift, "personalized": error + shift - 0.05, target: error + shift},
                    "rounds": 30 + seed,
                    "trainings": 300 + 10 * seed,
                    "budget": 40,
                    "arms": 4,
                    "diverged": [1] if seed == 0 else [],
                    "broken": seed,
                    "dropped": 1,
                    "machine": {"cpu": "a processor", "cores": 2},
                    "versions": {"fedtuner": "0.0"},
                }
                studies.append(study)
    suite = {
        "name": "mine",
        "axes": {"data": ["small", "large"], "target": ["global", "personalized"], "tuning": ["plain", "+ FedEx"]},
        "columns": "data",
        "along": "tuning",
        "title": "A title",
        "paper": {"small / global / plain": [22.81, 4.56, 2.64]},
    }
    file = tmp_path / "results" / "mine.jsonl"
    results.write(file, results.Results(suite, tuple(studies)))
    return file


def both(error):
    return {"global": error, "personalized": error}


def change(file, changed):
    """Replace each study of a file by what a function makes of it; None leaves it out."""
    kept = results.read(file)
    studies = (changed(study) for study in kept.studies)
    results.write(file, results.Results(kept.suite, tuple(study for study in studies if study)))


def change_one(file, name, seed, **changed):
    """Replace entries of one study, given by its labels and its seed."""

    def one(study):
        found = (" / ".join(study["labels"].values()), study["seed"]) == (name, seed)
        return {**study, **changed} if found else study

    change(file, one)


def test_studies_are_runs_that_differ_in_seed_alone(file):
    made = compare.compare([file])
    assert [study.name for study in made.studies][:3] == [
        "small / global / plain",
        "small / global / + FedEx",
        "small / personalized / plain",
    ]
    first = made.studies[0]
    assert list(first.errors.values()) == ERRORS["plain", "global"]
    assert (first.rounds, first.trainings, first.arms, first.diverged) == (32, 320, 20, 1)
    assert (first.broken, first.dropped) == (10, 5)
    assert first.summary == statistics.summary(ERRORS["plain", "global"])


def test_pairs_are_of_the_same_seed_along_an_axis(file):
    made = compare.compare([file])
    assert len(made.pairs) == 4
    pair = made.pairs[0]
    assert (pair.first.name, pair.second.name) == ("small / global / plain", "small / global / + FedEx")
    assert pair.difference == statistics.paired(ERRORS["plain", "global"], ERRORS["+ FedEx", "global"])
    assert (pair.difference.better, pair.difference.unequal) == (5, 5)
    assert pair.difference.wilcoxon == 2 / 2**5
    other = compare.compare([file], along="target").pairs[0]
    assert (other.first.labels["target"], other.second.labels["target"]) == ("global", "personalized")


def test_pairs_take_the_seeds_that_both_have(file):
    change(file, lambda study: None if (study["labels"]["tuning"], study["seed"]) == ("plain", 3) else study)
    pair = compare.compare([file]).pairs[0]
    assert pair.seeds == (0, 1, 2, 4)


def test_metrics(file):
    of_target, of_global = (compare.compare([file], metric=metric).studies for metric in ("target", "global"))
    assert of_target[2].errors == dict(enumerate(ERRORS["plain", "personalized"]))
    assert of_global[0].errors == of_target[0].errors
    assert of_global[2].errors == dict(enumerate(ERRORS["plain", "personalized"]))
    assert compare.compare([file], metric="personalized").studies[0].errors[0] == pytest.approx(0.25)
    assert all(not study.paper for study in of_global)  # published are the targets' errors
    with pytest.raises(SpecError, match="metric = 'loss', but must be one of"):
        compare.compare([file], metric="loss")


def test_the_table_has_columns_and_the_papers_numbers(fedtuner, file):
    code, out, _ = fedtuner("compare", file)
    assert code == 0
    lines = out.splitlines()
    table = lines[lines.index(next(line for line in lines if line.startswith("target "))) :]
    assert [word.strip() for word in table[0].split("  ") if word.strip()] == [
        "target", "tuning", "small (n = 5)", "small: paper", "large (n = 5)",
    ]  # fmt: skip
    assert [word.strip() for word in table[1].split("  ") if word.strip()] == [
        "global", "plain", "31.00 ± 2.13 (2.24)", "22.81 ± 2.64 (4.56)", "41.00 ± 2.13 (2.24)",
    ]  # fmt: skip
    assert "21.20 ± 1.83 (1.92) *" in table[3]  # the lowest of its column
    assert sum(line.count("*") for line in table[:5]) == 2
    assert "A title" in out
    assert "difference" in out


def test_a_line_per_study_has_everything(fedtuner, file):
    _, out, _ = fedtuner("compare", file, "--columns", "")
    line = next(line for line in out.splitlines() if line.startswith("small  global        plain "))
    assert line.split()[3:] == [
        "5",
        "31.00",
        "±",
        "2.13",
        "2.24",
        "32",
        "320",
        "1",
        "of",
        "20",
        "22.81",
        "±",
        "2.64",
        "(4.56)",
    ]


def test_formats(fedtuner, file):
    markdown = fedtuner("compare", file, "--format", "markdown")[1]
    assert "| --- | --- |" in markdown
    assert "**21.20 ± 1.83 (1.92)**" in markdown
    latex = fedtuner("compare", file, "--format", "latex")[1]
    assert r"\textbf{21.20 $\pm$ 1.83 (1.92)}" in latex
    assert latex.count(r"\begin{tabular}") == latex.count(r"\end{tabular}") == 2
    assert all(line.startswith(("%", "\\")) or "&" in line or not line for line in latex.splitlines())
    shown = json.loads(fedtuner("compare", file, "--format", "json")[1], parse_constant=pytest.fail)
    assert shown["studies"][0]["mean"] == pytest.approx(0.31)
    assert shown["studies"][0]["paper"] == [22.81, 4.56, 2.64]
    assert shown["pairs"][0]["wilcoxon"] == 0.0625


def test_few_seeds_are_told(file):
    change(file, lambda study: study if study["seed"] == 0 else None)
    made = compare.compare([file])
    assert "One seed gives no interval: 8 studies have one" in made.notes[0]
    assert "With one pair that differs signed ranks cannot give a p below 1" in made.notes[1]
    assert "±" not in tabulate.render(made, "text").split("\n\n")[2].replace("2.64", "").replace("22.81 ±", "")


def test_pairs_that_are_equal_are_not_counted_as_evidence(file):
    for seed in (1, 2):
        change_one(file, "small / global / + FedEx", seed, test=both(ERRORS["plain", "global"][seed] + 1e-16))
    pair, *_ = compare.compare([file]).pairs
    assert (pair.difference.better, pair.difference.unequal, pair.difference.n) == (3, 3, 5)
    assert pair.difference.wilcoxon == pair.difference.least == 0.25
    assert any("With 3 pairs that differ" in note for note in compare.compare([file]).notes)


def test_many_comparisons_are_told(file):
    notes = compare.compare([file]).notes
    shown = next(
        note
        for note in notes
        if note.startswith("Of 2 comparisons with five pairs that differ, or more, 2 have p < 0.1")
    )
    assert "after Holm's adjustment 0 would be" in shown  # 2 * 0.0625


@pytest.mark.parametrize(
    ("data", "said"), [("small / global / plain", "1 study has one"), ("small", "4 studies have one")]
)
def test_studies_with_one_seed_are_counted(file, data, said):
    change(
        file,
        lambda study: (
            study if study["seed"] == 0 or not " / ".join(study["labels"].values()).startswith(data) else None
        ),
    )
    assert (
        f"One seed gives no interval: {said} (small / global / plain); run more seeds." in compare.compare([file]).notes
    )


def test_what_comparisons_have_in_common_is_told(file):
    """The two problems have the same seeds, hence the same arms; with seeds of their own only targets share rounds."""

    def shown():
        return any("are not independent" in note for note in compare.compare([file]).notes)

    change(file, lambda study: study if study["target"] == "global" else None)
    assert shown()
    change(file, lambda study: {**study, "seed": study["seed"] + 10 * (study["labels"]["data"] == "large")})
    assert not shown()


def test_the_table_says_what_was_spent_and_what_failed(file):
    """Four studies a column, each with 30 to 34 rounds, 5 x 4 arms of which one diverged, 0 + 1 + 2 + 3 + 4 broken."""
    wide = tabulate.render(compare.compare([file]), "markdown")
    line = (
        "32 rounds and 320 local trainings a study; 4 of 80 arms diverged; 40 updates were broken, 20 reports dropped"
    )
    assert f"small: {line}" in wide
    assert f"large: {line}" in wide
    long = tabulate.render(compare.compare([file], columns=""))
    assert "8 of 160 arms diverged; 80 updates were broken, 40 reports dropped." in long
    change_one(file, "small / global / plain", 0, trainings=5300)
    assert "32 rounds and 320 to 1,320 local trainings" in tabulate.render(compare.compare([file]))


def test_the_table_says_what_is_bold(file):
    made = compare.compare([file])
    assert "A star: the lowest mean of its column, sure or not." in tabulate.render(made)
    assert "Bold: the lowest mean of its column" in tabulate.render(made, "markdown")
    assert "lowest mean of its problem" in tabulate.render(compare.compare([file], columns=""), "latex")


def test_errors_that_are_no_rates_are_not_percent(file):
    change_one(file, "small / global / plain", 0, test=both(17.5))
    made = compare.compare([file], columns="")
    assert not made.rates
    assert "in percent" not in tabulate.render(made)


def test_errors_that_are_not_finite_have_no_mean(file):
    change_one(file, "small / global / plain", 0, test=both(math.inf))
    made = compare.compare([file])
    assert math.isinf(made.studies[0].summary.mean)
    assert any("not finite" in note for note in made.notes)
    assert "infinite" in tabulate.render(made)


def test_studies_without_test_examples_have_no_mean(file):
    change_one(file, "small / global / plain", 0, test=both(math.nan))
    text = tabulate.render(compare.compare([file]))
    assert "no client has test examples, so there is no test error" in text
    assert "nan" not in text


@pytest.mark.slow
def test_stores_are_compared_too(tmp_path, fedtuner, monkeypatch):
    """Folders of ``fedtuner run``: seeds belong together; other settings are another study, and said."""
    monkeypatch.chdir(tmp_path)
    toys.write_study(tmp_path)
    for seed in (0, 1):
        for name, extra in (("fedex", ()), ("plain", ("--set", "fedex=false")), ("wide", ("--set", "fedex.eps=0.9"))):
            store = tmp_path / f"{name}{seed}"
            assert (
                fedtuner("run", "study.toml", "--workers", 1, "--quiet", "--seed", seed, "--store", store, *extra)[0]
                == 0
            )
    code, out, err = fedtuner(
        "compare", *sorted(tmp_path.glob("*0")), *sorted(tmp_path.glob("*1")), "--along", "tuning"
    )
    assert code == 0, err
    assert "fedex.eps = 0.9" in out
    assert "+ FedEx" in out
    made = compare.compare([tmp_path / "fedex0", tmp_path / "fedex1", tmp_path / "plain0", tmp_path / "plain1"])
    assert [(study.labels["tuning"], len(study.errors)) for study in made.studies] == [("+ FedEx", 2), ("plain", 2)]
    assert len(made.pairs) == 1
    assert fedtuner("compare", tmp_path / "fedex0", tmp_path / "fedex0")[0] == 2
    journal = tmp_path / "fedex0" / "journal.jsonl"
    lines = journal.read_text().splitlines(keepends=True)
    journal.write_text("".join(line for line in lines if '"evaluated"' not in line))
    assert "not evaluated on test data: 'fedtuner run' continues it" in fedtuner("compare", tmp_path / "fedex0")[2]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("absent",), "no runs in absent"),
        (("absent.jsonl",), "no runs in absent.jsonl"),
        (("absent.toml",), "no runs in results/absent.jsonl"),
        ((".",), ". is no file of results"),
    ],
)
def test_nothing_to_compare(arguments, says, tmp_path, monkeypatch, fedtuner):
    monkeypatch.chdir(tmp_path)
    code, _, err = fedtuner("compare", *arguments)
    assert code == 2
    assert says in err


def test_a_suites_file_stands_for_its_results(file, fedtuner):
    assert fedtuner("compare", file.parent.parent / "mine.toml")[0] == 0


def test_an_unknown_axis_is_named(file):
    with pytest.raises(SpecError, match=r"--along 'tunin', but the axes are .*; did you mean 'tuning'"):
        compare.compare([file], along="tunin")


def test_tables_escape_what_their_format_reads():
    assert tables.markdown(["a|b"], [["x"]]).startswith("| a\\|b |")
    assert r"50 \% \& more" in tables.latex(["h"], [["50 % & more"]])
    assert tables.text(["head"], [[tables.Bold("x")]], colours=True).splitlines()[1] == "\033[1mx   \033[0m"
