"""study.toml and --set: every key arrives, and every mistake is named with its remedy."""

from __future__ import annotations

import dataclasses
import re

import pytest

import fedtuner as ft
import toys
from fedtuner import methods, samplers, tables, tuners
from fedtuner.core.method import default_space
from fedtuner.core.robust import Median, Trimmed
from fedtuner.core.setup import Setup
from fedtuner.core.tally import mean
from fedtuner.errors import SpecError
from fedtuner.run import spec
from fedtuner.run.spec import tomllib
from fedtuner.space import domain

EVERYTHING = """
problem = "toys:problem"
method = "fedprox"
cohort = 4
cohorts = "shared"
target = "global"
weights = "shared"
cooling = 0.25
engine = "sequential"
seed = 12

[schedule]
kind = "halving"
budget = 40
longest = 16
eta = 2
eliminations = 2
discount = 0.5
score = "loss"

[fedex]
k = 5
eps = 0.25
step = "adaptive"
gamma = 0.75
metric = "loss"
signal = "improvement"
cutoff = 0.125

[client]
lr = { low = 0.01, high = 1.0, log = true }
momentum = [0.0, 0.9]
weight_decay = 0.0
epochs = { low = 1, high = 3 }
batch = { low = 2, high = 8, power_of_two = true }
mu = { low = 0.001, high = 0.1, log = true }

[server]
lr = 1.0
momentum = { low = 0.0, high = 0.5 }
gamma = { one_minus = { low = 0.0001, high = 0.01, log = true } }
"""


def parse(text):
    return spec.parse(tomllib.loads(text))


def test_every_key_arrives_in_the_spec():
    parsed = parse(EVERYTHING)
    assert parsed.problem == "toys:problem"
    assert parsed.method == "fedprox"
    assert (parsed.cohort, parsed.target, parsed.seed) == (4, "global", 12)
    assert parsed.settings == {
        "cohort": 4, "cohorts": "shared", "target": "global", "weights": "shared", "cooling": 0.25,
        "engine": "sequential", "seed": 12,
    }  # fmt: skip
    assert parsed.schedule == ft.halving(40, 16, 2, 2, 0.5, "loss")
    assert parsed.tuner == ft.FedEx(5, 0.25, "adaptive", 0.75, "loss", 0.125, "improvement")


def test_every_key_arrives_in_the_study(tmp_path):
    study = parse(EVERYTHING).study(tmp_path / "s", 3)
    setup, space = study.setup, study.setup.space
    assert (setup.cohort, setup.cohorts, setup.target, setup.seed) == (4, "shared", "global", 12)
    assert (setup.weights, setup.cooling, setup.engine) == ("shared", 0.25, "sequential")
    assert setup.method is methods.fedprox
    assert setup.tuner == ft.FedEx(5, 0.25, "adaptive", 0.75, "loss", 0.125, "improvement")
    assert setup.schedule == ft.halving(40, 16, 2, 2, 0.5, "loss")
    assert study.problem.name == "toy"
    assert (study.path, study.where.workers) == (tmp_path / "s", 3)
    assert {name: space.client[name] for name in ("lr", "momentum", "weight_decay", "epochs", "batch", "mu")} == {
        "lr": ft.Float(0.01, 1.0, log=True),
        "momentum": ft.Choice([0.0, 0.9]),
        "weight_decay": ft.Choice([0.0]),
        "epochs": ft.Int(1, 3),
        "batch": ft.PowerOfTwo(2, 8),
        "mu": ft.Float(0.001, 0.1, log=True),
    }
    assert {name: space.server[name] for name in ("lr", "momentum", "gamma")} == {
        "lr": ft.Choice([1.0]),
        "momentum": ft.Float(0.0, 0.5),
        "gamma": ft.OneMinus(ft.Float(0.0001, 0.01, log=True)),
    }


def test_the_study_describes_itself_by_the_names_of_the_file():
    described, table = parse(EVERYTHING).study(None, 1).describe(), tomllib.loads(EVERYTHING)
    for key in ("method", "cohort", "cohorts", "target", "weights", "cooling", "engine", "seed", "schedule"):
        assert described[key] == table[key]
    assert described["tuner"] == {"kind": "fedex", **table["fedex"], "tries": 1}
    for side in ("client", "server"):
        assert described[side].items() >= table[side].items()


def test_the_stored_spec_parses_back():
    described = parse(EVERYTHING).study(None, 1).describe()
    kept = {key: described[key] for key in tomllib.loads(EVERYTHING) if key not in ("problem", "fedex")}
    table = {**kept, "problem": "toys:problem", "tuner": described["tuner"], "sampler": described["sampler"]}
    assert spec.parse(table).study(None, 1).describe() == described


def test_what_is_not_said_keeps_its_default():
    parsed = parse('problem = "toys:problem"')
    assert parsed == spec.Spec("toys:problem")
    assert parsed.schedule == ft.halving()
    assert parsed.tuner == ft.FedEx()
    assert parsed.sampler is samplers.uniform
    assert (parsed.cohort, parsed.target, parsed.seed) == (10, "personalized", 0)
    assert parsed.space(methods.fedavg, spec.load_problem("toys:problem").model) is None


def same_in_python(text, client=None, server=None, **settings):
    """The space of a file, which must be that of the same study in Python."""
    made = parse(f'problem = "toys:problem"\ncohort = 3\n{text}').study(None, 1).setup.space
    given = None if client is None and server is None else ft.Space(client, server)
    assert made == ft.prepare(toys.problem(), given, cohort=3, **settings).setup.space
    return made


def test_where_no_range_is_named_the_methods_are_searched_except_of_what_is_set():
    usual = default_space(methods.fedavg, {})
    assert same_in_python("") == usual
    space = same_in_python("client.batch = 4\nclient.lr = 0.5", {"batch": 4, "lr": 0.5})
    assert list(space.client) == list(usual.client)
    assert space == ft.Space({**usual.client, "batch": 4, "lr": 0.5}, usual.server)
    adam = same_in_python('server.optimiser = "adam"', server={"optimiser": "adam"})
    assert adam.server["lr"] == methods.fedavg.optimisers["adam"].hypers["lr"].domain
    assert adam.client == usual.client


def test_only_ranges_that_are_named_are_searched():
    assert same_in_python("client.lr = [0.1, 0.5]", {"lr": [0.1, 0.5]}) == ft.Space({"lr": [0.1, 0.5]})
    text = "client.batch = 4\nserver.lr = { low = 0.5, high = 1.0 }"
    assert same_in_python(text, {"batch": 4}, {"lr": ft.Float(0.5, 1.0)}) == ft.Space(
        {"batch": 4}, {"lr": ft.Float(0.5, 1.0)}
    )
    assert ft.prepare(toys.problem(), ft.Space(), cohort=3).setup.space == ft.Space()
    wide = methods.paper_ranges(methods.fedavg)
    paper = same_in_python("ranges = 'paper'\nclient.epochs = 1", {"epochs": 1}, method=wide)
    assert paper == ft.prepare(toys.problem(), ft.Space({"epochs": 1}), recipe=ft.paper(300), cohort=3).setup.space


def test_the_order_of_a_file_does_not_matter():
    a = parse('problem = "toys:problem"\ncohort = 3\nclient.batch = [2, 4]\nclient.lr = [0.5, 0.1]').study(None, 1)
    b = parse('problem = "toys:problem"\ncohort = 3\nclient.lr = [0.5, 0.1]\nclient.batch = [2, 4]').study(None, 1)
    drawn = [
        [study.setup.sampler.propose(study.setup.space, 0, arm, 0, ()) for arm in range(5)] for study in (a, b)
    ]  # fmt: skip
    assert drawn[0] == drawn[1]


@pytest.mark.parametrize(
    ("text", "tuner"),
    [
        ("fedex = false", tuners.none),
        ("fedex = true", ft.FedEx()),
        ("[fedex]", ft.FedEx()),
        ("fedex.k = 3", ft.FedEx(k=3)),
        ("[tuner]", ft.FedEx()),
        ("tuner.k = 3", ft.FedEx(k=3)),
        ("tuner.kind = 'fedex'\ntuner.k = 3", ft.FedEx(k=3)),
        ("tuner.kind = 'none'", tuners.none),
        ("tuner = {kind = 'none', k = 3}", tuners.none),  # the kind alone can be changed
        ("fedex = false\ntuner.kind = 'none'", tuners.none),
    ],
)
def test_the_tuner_by_either_name(text, tuner):
    assert parse(f'problem = "digits"\n{text}').tuner == tuner


@pytest.mark.parametrize(
    ("text", "sampler"),
    [
        ("sampler = 'uniform'", samplers.uniform),
        ("sampler = 'tpe'", samplers.optuna("tpe")),
        ("sampler = {kind = 'gp', startup = 3}", samplers.optuna("gp", 3)),
        ("sampler = 'ball'", samplers.Ball()),
        ("sampler = {kind = 'ball', eps = 0.5}", samplers.Ball(0.5)),
    ],
)
def test_every_kind_of_sampler(text, sampler):
    parsed = parse(f'problem = "digits"\n{text}').sampler
    assert parsed == sampler
    assert spec.sampler(tables.table(sampler)) == sampler


@pytest.mark.parametrize(
    ("text", "schedule"),
    [
        ('kind = "random_search"\nbudget = 40\nlongest = 8', ft.random_search(40, 8)),
        ('kind = "hyperband"\nbudget = 80\nlongest = 8\neta = 2\nscore = "loss"', ft.hyperband(80, 8, 2, score="loss")),
        ("budget = 4000\nlongest = 800", ft.halving(4000, 800)),
        ('kind = "random_search"\neta = 2\neliminations = 4', ft.random_search()),  # the kind alone can be changed
    ],
)
def test_every_kind_of_schedule(text, schedule):
    assert parse(f'problem = "digits"\n[schedule]\n{text}').schedule == schedule


BAD = {
    # a misspelt key gets the nearest name
    "problm = 'digits'": "no setting 'problm'; did you mean 'problem'?",
    "shedule.budget = 3": "no setting 'shedule'; did you mean 'schedule'?",
    "cohrot = 3": "no setting 'cohrot'; did you mean 'cohort'?",
    "workers = 3": "no setting 'workers'; known: across, auto, budget, client, cohort, cohorts, ",
    "schedule.bugdet = 3": "no setting schedule.bugdet in halving; did you mean 'budget'?",
    "schedule.knid = 'halving'": "no setting schedule.knid in halving; did you mean 'kind'?",
    "schedule = {kind = 'random_search', etaa = 3}": "no setting schedule.etaa in random_search",
    "schedule.kind = 'halvign'": "schedule.kind = 'halvign', but must be one of .*; did you mean 'halving'?",
    "schedule.kind = 'mine:'": "schedule.kind = 'mine:', but must be 'package.module:name'",
    "schedule.kind = 'toys:Race'": "schedule.kind = 'toys:Race': toys has no 'Race'",
    "schedule.kind = 'toys:SPACE'": "schedule = Space.*, but must be a schedule such as .*: Space has no budget",
    "tuner.kind = 'fedx'": "tuner.kind = 'fedx', but must be one of .*; did you mean 'fedex'?",
    "tuner.kind = 'toys:Softmax'": "tuner = .*, but must be a tuner such as .*: Softmax has no labels, tried",
    "tuner.epsilon = 3": "no setting tuner.epsilon in fedex; did you mean 'eps'?",
    "tuner = 'none'": r"tuner = 'none', but must be a table: \[tuner\]",
    "tuner.k = 3\nfedex.k = 4": r"\[tuner\] and fedex are both given, but an arm has one tuner",
    "fedex = false\ntuner.k = 4": r"\[tuner\] and fedex are both given, but an arm has one tuner",
    "sampler = 'unifrom'": "sampler = 'unifrom', but must be one of .*; did you mean 'uniform'?",
    "sampler = {kind = 'tpe', strtup = 3}": "no setting sampler.strtup; did you mean 'startup'?",
    "sampler = 3": "sampler = 3, but must be one of",
    "sampler = 'toys:Softmax'": "sampler = .*Softmax.*, but must be a sampler such as .*has no learns",
    "method = 'toys:remebering'": "method = 'toys:remebering': toys has no 'remebering'; did you mean 'remembering'?",
    "method = 'toys:SPACE'": "method = 'toys:SPACE' is Space, but must be a Method",
    "server.optimiser = 'toys:SPACE'": "server.optimiser = 'toys:SPACE' is Space, but must be an Optimiser",
    "server.optimiser = 'sgdd'": "server.optimiser = 'sgdd', but must be one of",
    "weights = 'sharde'": "weights = 'sharde', but must be one of .*; did you mean 'shared'?",
    "weights = 3": "weights = 3, but must be a string",
    "cooling = 2.0": r"cooling = 2.0, but must be in \[0, 1\]",
    "engine = 'fast'": "engine = 'fast', but must be one of",
    "device = 3": "device = 3, but must be a string",
    "schedule.kind = 3": "schedule.kind = 3, but must be one of",
    "schedule.kind = ['halving']": r"schedule.kind = \['halving'\], but must be one of",
    "fedex.epsilon = 3": "no setting fedex.epsilon; did you mean 'eps'?",
    "fedex.gama = 3": "no setting fedex.gama; did you mean 'gamma'?",
    "fedex.step = 'agressive'": "fedex.step = 'agressive', but must be one of .*; did you mean 'aggressive'?",
    "fedex.metric = 'accuracy'": "fedex.metric = 'accuracy', but must be one of",
    "fedex.signal = 'improvment'": "fedex.signal = 'improvment', .*; did you mean 'improvement'?",
    "method = 'fedvag'": "no method 'fedvag'; did you mean 'fedavg'?",
    "target = 'personalised'": "target = 'personalised', but must be one of .*; did you mean 'personalized'?",
    "cohorts = 'sharde'": "cohorts = 'sharde', but must be one of .*; did you mean 'shared'?",
    "client.leraning_rate = 0.1": "no client hyperparameter 'leraning_rate' in fedavg; did you mean 'lr'?",
    "client.lr = {low = 0.1, hgih = 1.0}": "client.lr: no key 'hgih' in a range; did you mean 'high'?",
    "server.mometnum = 0.1": "no server hyperparameter 'mometnum' in fedavg; did you mean 'momentum'?",
    "client.mu = 0.1": "no client hyperparameter 'mu' in fedavg",
    "client.dropout = 0.1": "the model has no dropout layer",
    # a value of the wrong kind
    "problem = 3": "problem = 3, but must be a string",
    "method = true": "method = True, but must be a string",
    "target = 3": "target = 3, but must be a string",
    "cohorts = 3": "cohorts = 3, but must be a string",
    "cohort = 'many'": "cohort = 'many', but must be a whole number >= 1",
    "cohort = 2.0": "cohort = 2.0, but must be a whole number >= 1",
    "cohort = true": "cohort = True, but must be a whole number >= 1",
    "seed = 'x'": "seed = 'x', but must be a whole number",
    "schedule = 3": r"schedule = 3, but must be a table: \[schedule\]",
    "client = 'lr'": r"client = 'lr', but must be a table: \[client\]",
    "server = []": r"server = \[\], but must be a table: \[server\]",
    "fedex = 'yes'": r"fedex = 'yes', but must be a table \(\[fedex\]\) or false",
    "schedule.budget = '2000'": "schedule.budget = '2000', but must be a whole number >= 1",
    "schedule.budget = 2e3": "schedule.budget = 2000.0, but must be a whole number >= 1",
    "schedule.longest = true": "schedule.longest = True, but must be a whole number >= 1",
    "schedule.eta = 'three'": "schedule.eta = 'three', but must be a whole number >= 2",
    "schedule.eliminations = -1": "schedule.eliminations = -1, but must be a whole number >= 0",
    "schedule.discount = 'half'": "schedule.discount = 'half', but must be ",
    "schedule.score = 3": "schedule.score = 3, but must be one of",
    "fedex.k = 'many'": "fedex.k = 'many', but must be a whole number >= 1",
    "fedex.k = true": "fedex.k = True, but must be a whole number >= 1",
    "fedex.k = 2.5": "fedex.k = 2.5, but must be a whole number >= 1",
    "fedex.eps = 'wide'": "fedex.eps = 'wide', but must be ",
    "fedex.eps = [0.1]": r"fedex.eps = \[0.1\], but must be ",
    "fedex.gamma = 'none'": "fedex.gamma = 'none', but must be ",
    "fedex.cutoff = 'low'": "fedex.cutoff = 'low', but must be ",
    "fedex.step = 3": "fedex.step = 3, but must be one of",
    "client.lr = 'fast'": "client.lr = 'fast', but must be a number",
    "client.lr = 2020-01-01": r"client.lr = datetime.date\(2020, 1, 1\) is no domain",
    "client.lr = {low = 0.1}": "client.lr = .*: a range needs low and high",
    "client.lr = []": r"Choice\(\[\]\): give a list of at least one value",
    # a value out of its range
    "cohort = 0": "cohort = 0, but must be a whole number >= 1",
    "cohort = 7": "cohort = 7, but the problem has 6 clients: lower cohort",
    "schedule.budget = 0": "schedule.budget = 0, but must be a whole number >= 1",
    "schedule.budget = 100": "budget = 100 is less than longest = 200: raise budget or lower longest",
    "schedule.eta = 1": "schedule.eta = 1, but must be a whole number >= 2",
    "schedule.discount = 1.5": r"schedule.discount = 1.5, but must be in \[0, 1\]",
    "schedule.discount = nan": "schedule.discount = nan, but must be ",
    "fedex.k = 0": "fedex.k = 0, but must be a whole number >= 1",
    "fedex.eps = -1.0": "fedex.eps = -1.0, but must be >= 0",
    "fedex.eps = nan": "fedex.eps = nan, but must be >= 0",
    "fedex.gamma = 2.0": r"fedex.gamma = 2.0, but must be in \[0, 1\]",
    "fedex.cutoff = -0.1": "fedex.cutoff = -0.1, but must be >= 0",
    "client.lr = -0.1": "client.lr = -0.1, but must be >= 0",
    "client.lr = nan": "client.lr = nan, but must be a number",
    "client.epochs = 0": "client.epochs = 0, but must be >= 1",
    "client.epochs = {low = 1.0, high = 2.5}": "client.epochs = .*, but must be a whole number",
    "client.momentum = [0.5, 1.5]": "client.momentum = 1.5, but must be <= 1",
    "server.gamma = {one_minus = {low = -1.0, high = 0.5}}": "server.gamma = 2.0, but must be <= 1",
    "client.lr = {low = 1.0, high = 0.1}": r"Float\(1.0, 0.1\): low must not exceed high",
    "client.lr = {low = 0.0, high = 0.1, log = true}": "low must be > 0 on a logarithmic scale",
    "client.batch = {low = 3, high = 8, power_of_two = true}": "3 is not a power of two",
}


@pytest.mark.parametrize("text", BAD)
def test_a_mistake_is_named_with_its_remedy(text, tmp_path):
    table = {"problem": "toys:problem", "cohort": 3} | tomllib.loads(text)
    with pytest.raises(SpecError, match=BAD[text].replace("?", r"\?").replace(".", "[.]").replace("[.]*", ".*")):
        spec.parse(table).study(tmp_path / "s", 1)
    assert not (tmp_path / "s").exists()


def test_no_problem_is_a_mistake():
    with pytest.raises(SpecError, match=r"no problem is given: problem = 'digits', or 'package.module:function'"):
        spec.parse({})


# Problems


PROBLEMS = {
    "digit": "no problem 'digit'; did you mean 'digits'?",
    "mnist": "no problem 'mnist'.*your own is named 'package.module:function'",
    "toys:problme": "problem = 'toys:problme': toys has no 'problme'; did you mean 'problem'?",
    "toys:": "no problem 'toys:'.*'package.module:function'",
    ":problem": "no problem ':problem'.*'package.module:function'",
    "no_such_module:problem": "problem = 'no_such_module:problem': no module 'no_such_module' here",
    "toys.below:problem": "no module 'toys.below'|'toys' is not a package",
    "..toys:problem": "problem = '..toys:problem'|no problem '..toys:problem'",
    "toys:not_a_problem": r"problem = 'toys:not_a_problem' gave dict, but must give a Simulation\(task, clients\)",
    "toys:STUDY": "gave str, but must give a Simulation",
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_problem_that_is_none(name):
    with pytest.raises(SpecError, match=PROBLEMS[name].replace("?", r"\?")):
        spec.load_problem(name)


def test_a_problem_of_ones_own(tmp_path, monkeypatch):
    module = "import toys\n\ndef mine():\n    return toys.ft.Simulation(toys.Softmax(), toys.clients())\n"
    (tmp_path / "my_own_problem.py").write_text(module)
    monkeypatch.chdir(tmp_path)
    problem = spec.load_problem("my_own_problem:mine")
    assert isinstance(problem, ft.Simulation)
    assert problem.name == "my_own_problem:mine"  # it has no name of its own
    assert spec.load_problem("toys:problem").name == "toy"
    assert spec.load_problem("toys:NOT_A_FUNCTION") is toys.NOT_A_FUNCTION


def test_a_module_that_fails_shows_its_own_error(tmp_path, monkeypatch):
    (tmp_path / "needs_more.py").write_text("import a_module_that_nobody_has\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SpecError, match=r"needs_more:problem.*a_module_that_nobody_has"):
        spec.load_problem("needs_more:problem")


# --set


@pytest.mark.parametrize(
    ("setting", "path", "value"),
    [
        ("seed=3", ("seed",), 3),
        ("schedule.budget=200", ("schedule", "budget"), 200),
        (" schedule.budget = 200 ", ("schedule", "budget"), 200),
        ("fedex.eps=0.5", ("fedex", "eps"), 0.5),
        ("fedex.eps=1e-2", ("fedex", "eps"), 0.01),
        ("fedex=false", ("fedex",), False),
        ("method=fedprox", ("method",), "fedprox"),
        ('method="fedprox"', ("method",), "fedprox"),
        ("problem=toys:problem", ("problem",), "toys:problem"),
        ("client.lr=[0.1, 0.2]", ("client", "lr"), [0.1, 0.2]),
        ("client.lr={low = 0.1, high = 1.0}", ("client", "lr"), {"low": 0.1, "high": 1.0}),
        ("client.lr.low=0.5", ("client", "lr", "low"), 0.5),
        ("problem=a=b", ("problem",), "a=b"),
        ("problem=", ("problem",), ""),
    ],
)
def test_settings_are_read_as_toml_or_as_words(setting, path, value):
    table = spec.override({"problem": "digits"}, [setting])
    for part in path:
        table = table[part]
    assert table == value
    assert type(table) is type(value)


def test_settings_keep_the_rest_and_the_last_one_counts():
    before = {"problem": "digits", "schedule": {"budget": 1, "longest": 2}, "fedex": False}
    copy = {"problem": "digits", "schedule": {"budget": 1, "longest": 2}, "fedex": False}
    after = spec.override(before, ["schedule.budget=5", "schedule.budget=6", "fedex.k=3"])
    assert after == {"problem": "digits", "schedule": {"budget": 6, "longest": 2}, "fedex": {"k": 3}}
    assert before == copy


@pytest.mark.parametrize("setting", ["seed", "=3", " = 3", ""])
def test_a_setting_without_a_key_or_value(setting):
    with pytest.raises(SpecError, match=re.escape(f"--set {setting!r}, but must be KEY=VALUE, such as")):
        spec.override({}, [setting])


# Files and presets


def test_reading_a_file(tmp_path):
    name, table = spec.read(str(toys.write_study(tmp_path)))
    assert name == "study"
    assert table == tomllib.loads(toys.STUDY)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nowhere.toml", "cannot read nowhere.toml: No such file or directory; 'fedtuner init' writes a study.toml"),
        ("digts", "no preset and no file 'digts'; did you mean 'digits'?"),
        ("folder.toml", "cannot read folder.toml: Is a directory"),
        ("broken.toml", "broken.toml is not TOML: "),
        ("latin.toml", "latin.toml is not TOML: "),
    ],
)
def test_what_cannot_be_read(tmp_path, monkeypatch, name, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.toml").mkdir()
    (tmp_path / "broken.toml").write_text("problem = \n")
    (tmp_path / "latin.toml").write_bytes(b'problem = "\xe9"')
    with pytest.raises(SpecError, match=re.escape(said)):
        spec.read(name)


@pytest.mark.parametrize("name", spec.presets())
def test_every_preset_parses_and_says_what_it_is(name):
    found, table = spec.read(name)
    assert found == name
    assert isinstance(spec.parse(table), spec.Spec)
    assert spec.presets()[name].startswith("# ")


# init


def taken_out(text, begin, end):
    """Return a part of the template without the # before its settings and tables."""
    part = text[text.index(begin) :]
    return re.sub(r"(?m)^# (?=\[\w+\]|\w+ = )", "", part[: part.index(end)])


def papers(text):
    """Return the template's table with the paper's tuning in place of the budget, and the ranges that it shows."""
    head = text[: text.index("# The paper's")].replace("\nbudget = 500", "\n#")
    rest = taken_out(text, "# The paper's", "# Where") + taken_out(text + "# End", "[client]", "# End")
    return tomllib.loads(head + rest)


def test_the_template_is_a_budget_and_defaults():
    parsed = parse(spec.template())
    assert parsed.auto == ft.auto(500)
    for name, value in parsed.settings.items():
        assert value == ("auto" if name == "engine" else getattr(Setup, name)), name
    problem = toys.problem()
    made, alone = parsed.study(None, 1, problem), parse('problem = "digits"\nbudget = 500').study(None, 1, problem)
    assert made.describe() == alone.describe() == ft.prepare(problem, budget=500).describe()


def test_what_the_template_says_that_a_budget_chooses():
    chosen = parse(spec.template()).study(None, 1, toys.problem()).setup
    shown = tomllib.loads(taken_out(spec.template(), "# The budget chooses", "# The paper"))
    assert {name: getattr(chosen, name) for name in shown} == shown
    assert set(shown) == {"cohorts", "weights", "cooling"}


def test_the_templates_other_part_is_the_papers_tuning():
    table = papers(spec.template())
    del table["fedex"]["gamma"]  # drawn, if it is left out
    parsed, default = spec.parse(table), spec.Spec("digits")
    for field in dataclasses.fields(spec.Spec):
        if field.compare and field.name not in ("client", "server", "settings", "ranges"):
            assert getattr(parsed, field.name) == getattr(default, field.name), field.name
    assert parsed.ranges == "paper"
    usual = default_space(methods.fedavg, {})
    for side in ("client", "server"):
        domains = {name: domain(value) for name, value in getattr(parsed, side).items()}
        assert dict(getattr(usual, side)).items() <= domains.items()
        given = getattr(methods.fedavg, side)
        others = domains.keys() - getattr(usual, side).keys() - {"dropout"}
        assert {name: domains[name] for name in others} == {name: domain(given[name].default) for name in others}


def test_the_template_lists_every_setting():
    """Also those that are commented out; FedEx's prior comes from start_from."""
    text = spec.template()
    table = papers(text)
    shown = {name for name in spec._KNOWN if re.search(rf"(?m)^(# )?(\[{name}\]|{name} = )", text)}
    assert shown | {"tuner", "auto", "privacy"} == set(spec._KNOWN)
    assert "\n# [privacy] " in text
    assert "; [auto] " in text
    assert "[tuner] kind = " in text
    halving = {"kind", "budget", "longest", "eta", "eliminations", "discount", "score"}
    assert set(table["schedule"]) == {*halving, "together", "fill", "paired"}
    assert set(table["fedex"]) | {"prior"} == {field.name for field in dataclasses.fields(ft.FedEx)}
    assert {*table["client"], *table["server"]} >= {*methods.fedavg.client, *methods.fedavg.server, "dropout"}
    for key, value in (("schedule", tables.table(ft.halving())), ("fedex", dataclasses.asdict(ft.FedEx()))):
        alike = {name: shown for name, shown in table[key].items() if name in value and name != "gamma"}
        assert alike.items() <= value.items()


def test_every_setting_of_the_template_is_explained():
    settings = [line for line in spec.template().splitlines() if re.match(r"(# )?\w+ = ", line)]
    assert len(settings) > 25
    assert [line for line in settings if "  # " not in line] == ["seed = 0"]


# How updates are combined


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ('combine = "mean"', mean),
        ('combine = "median"', Median()),
        ('combine = "trimmed"', Trimmed()),
        ('[combine]\nkind = "trimmed"\nshare = 0.25', Trimmed(0.25)),
        ('[combine]\nkind = "median"\nshare = 0.25', Median()),  # the kind alone can be changed
        ("", mean),
    ],
)
def test_how_updates_are_combined(text, made):
    study = parse(f'problem = "toys:problem"\ncohort = 3\n{text}').study(None, 1)
    assert study.setup.combine == made
    again = spec.parse({"problem": "toys:problem", "cohort": 3, "combine": study.describe()["combine"]})
    assert again.combine == made
