"""A task's metric, end to end: F1, AUC, a loss alone; tables in and out; all clients, the worst of them, groups."""

from __future__ import annotations

import math
import pickle
from collections import OrderedDict

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fedtuner as ft
from fedtuner import cli, metrics
from fedtuner.core.records import Arm
from fedtuner.errors import SpecError, TaskError
from fedtuner.rng import stream
from fedtuner.space import Space

CLIENTS = 12


def pairs(i, n=24):
    rng = stream(0, "metrics of tasks", i)
    x = rng.normal(size=(n, 3)).astype(np.float32)
    y = (x[:, 0] + 0.5 * rng.normal(size=n) > 0).astype(np.int64)
    return x, np.ones_like(y) if i == 5 else y  # one client has one class alone


def clients(make=pairs):
    return [ft.Client(i, make(i), make(i + 100 if i != 5 else 5), make(i)) for i in range(CLIENTS)]


def linear():
    return nn.Linear(3, 2)


def tuned(task, make=pairs, groups=None, **settings):
    problem = ft.Simulation(task, clients(make), groups=groups)
    settings = {"space": Space({"lr": ft.Float(0.1, 1.0, log=True)}), "cohort": 6, "workers": 1, **settings}
    return ft.tune(problem, fedex=ft.FedEx(k=2), schedule=ft.random_search(8, 4), **settings)


def test_auc_is_pooled_and_a_client_without_it_is_skipped_and_counted():
    study = tuned(ft.pytorch.Task(linear, metric=metrics.auc()))
    found = study.evaluate("test")
    assert found["undefined"] == 1
    assert found["global"] > 0.6  # higher is better
    assert study.evaluate("test", metric="error")["global"] == pytest.approx(1 - found["global"])
    assert study.evaluate("test", across="mean of clients")["global"] != found["global"]
    assert study.evaluate("test", across="worst tenth")["global"] < found["global"]
    assert 0 < study.best.score <= 1
    with_client = [r for r in study.history if any(row.client == 5 for row in r.rows)]
    assert with_client
    assert all(r.undefined == 1 and math.isfinite(r.error) for r in with_client)
    scores = {arm: study.schedule.scoring.score(study.journal.records(arm), study.setup.target)[0] for arm in (0, 1)}
    assert study.winner[0] == min(scores, key=scores.get)


def test_groups_are_evaluated_and_can_be_tuned_for():
    groups = {i: "rural" if i % 3 else "urban" for i in range(CLIENTS)}
    study = tuned(ft.pytorch.Task(linear), groups=groups, across="worst group")
    by_group = [study.evaluate("test", across=f"group {name}")["personalized"] for name in ("rural", "urban")]
    assert study.evaluate("test", across="worst group")["personalized"] == max(by_group)
    for record in study.history:
        errors = {name: [r for r in record.rows if groups[r.client] == name] for name in ("rural", "urban")}
        means = [
            np.average([r.error_after for r in rows], weights=[r.validated for r in rows])
            for rows in errors.values()
            if rows
        ]
        assert record.error_after == pytest.approx(max(means))
    with pytest.raises(SpecError, match="across = 'worst group', but clients have no groups"):
        tuned(ft.pytorch.Task(linear), across="worst group")
    with pytest.raises(SpecError, match="groups has 77, but no client has that id"):
        tuned(ft.pytorch.Task(linear), groups={77: "rural"})


def test_the_worst_tenth_can_be_tuned_for():
    study = tuned(ft.pytorch.Task(linear), across="worst tenth", target="global")
    for record in study.history:
        assert record.error == record.error_before == max(row.error_before for row in record.rows)
    assert ft.untuned(study, rounds=1).setup.across == "worst tenth"


def regression(i):
    x, _ = pairs(i)
    return x, x[:, :1] * 0.1


def test_where_a_loss_alone_is_given_the_error_is_the_loss_and_no_percentage(tmp_path, capsys):
    task = ft.pytorch.Task(lambda: nn.Linear(3, 1), F.mse_loss)
    assert (task.metric.name, task.metric.rate, task.metric.worst) == ("loss", False, math.inf)
    study = tuned(task, regression, store=tmp_path / "mine")
    assert study.evaluate("test") == study.evaluate("test", metric="loss")
    assert all(r.error_after == r.loss_after for r in study.history)
    assert cli.main(["show", str(tmp_path / "mine")]) == 0
    out = capsys.readouterr().out
    assert "loss over all clients" in out
    assert "worst tenth" in out
    assert "%" not in out.replace("(95 %)", "")


def test_an_error_of_ones_own_is_no_rate_unless_its_worst_value_is_1():
    def error(output, y):
        return (output.argmax(1) != y).float()

    assert not ft.pytorch.Task(linear, error=error).metric.rate
    assert ft.pytorch.Task(linear, error=error, worst_error=1.0).metric.rate
    smoothed = nn.CrossEntropyLoss(label_smoothing=0.1)
    assert ft.pytorch.Task(linear, smoothed).metric == ft.pytorch.Task(linear).metric == ft.Metric()
    assert ft.pytorch.Task(linear, lambda o, y: F.cross_entropy(o, y), error="argmax").metric.rate


class Tokens(nn.Module):
    """As Hugging Face's models are: tables in, a table with loss and logits out."""

    def __init__(self):
        super().__init__()
        self.embed, self.out = nn.Embedding(9, 4), nn.Linear(4, 3)

    def forward(self, input_ids, attention_mask, labels=None):
        seen = self.embed(input_ids) * attention_mask.unsqueeze(-1)
        logits = self.out(seen)
        loss = None if labels is None else F.cross_entropy(logits.reshape(-1, 3), labels.reshape(-1))
        return OrderedDict(loss=loss, logits=logits, hidden=None)


def table(i):
    ids = stream(0, "tokens", i).integers(0, 9, (16, 5))
    labels = ids % 3
    labels[:, -1] = -100  # padding, which the loss and the error pass over
    return {"input_ids": ids, "attention_mask": np.ones((16, 5), np.float32), "labels": labels}


def test_a_model_that_takes_tables_and_returns_its_loss_and_logits():
    study = tuned(ft.pytorch.Task(Tokens), table, space=Space({"lr": ft.Float(0.5, 2.0), "epochs": 3}))
    before, after = study.history[0].loss_before, study.evaluate("test", metric="loss")["personalized"]
    assert after < 0.8 * before
    assert study.evaluate("test")["personalized"] < 0.5
    examples = [{key: part[n] for key, part in table(0).items()} for n in range(16)]  # a data set's own rows
    one, other = (ft.pytorch.Task(Tokens).prepare(split) for split in (table(0), examples))
    assert all(torch.equal(one.x[key], other.x[key]) for key in one.x)
    assert len(one) == 16
    errors = [ft.pytorch.Task(Tokens, metric=m) for m in (None, metrics.accuracy(), metrics.f1(classes=3))]
    argmax, right, macro = (task.evaluate(task.initial(0), task.prepare(table(0))) for task in errors)
    assert right.error == pytest.approx(argmax.error)
    assert right.sums[1] == 16 * 4  # without the padding
    assert 0 < macro.error < 1


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 2), nn.Linear(3, 1)

    def forward(self, x, scale):
        return {"class": self.first(x * scale), "size": self.second(x)}


def heads(i):
    x, y = pairs(i)
    return (x, np.full((len(x), 1), 2.0)), {"class": y, "size": x[:, :1]}


def both(output, y):
    return F.cross_entropy(output["class"], y["class"]) + F.mse_loss(output["size"], y["size"])


def test_several_inputs_and_several_outputs():
    def wrong(output, y):
        return output["class"].argmax(1) != y["class"]

    task = ft.pytorch.Task(TwoHeads, both, wrong, worst_error=1.0)
    split = heads(0)
    with pytest.raises(TaskError, match="a split must be"):
        task.prepare(((1, 2), 3))
    problem = ft.Simulation(task, [ft.Client(i, *[((x, s), y) for (x, s), y in [heads(i)] * 3]) for i in range(3)])
    problem.check()
    assert len(problem.data(0, "train")) == len(split[1]["class"])

    f1 = metrics.f1()
    named = ft.Metric("f1", rate=True, maximise=True, value=f1.value, sums=lambda o, y: f1.sums(o["class"], y["class"]))
    task = ft.pytorch.Task(TwoHeads, both, metric=named)
    evaluated = task.evaluate(task.initial(0), task.prepare(split), {})
    assert 0 < evaluated.error < 1
    assert len(evaluated.sums) == 3
    plain = ft.pytorch.Task(TwoHeads)
    with pytest.raises(TaskError, match=r"the model returns a table of \['class', 'size'\], without 'logits'"):
        plain.evaluate(plain.initial(0), plain.prepare((split[0], split[1]["class"])), {})


def whole_auc(output, y):
    from sklearn.metrics import roc_auc_score

    return roc_auc_score(y, output[:, 1]) if len(set(y)) > 1 else None


def test_a_metric_of_all_of_a_clients_examples_need_not_be_made_of_sums():
    own = ft.Metric("auc", rate=True, maximise=True, value=whole_auc)
    task = pickle.loads(pickle.dumps(ft.pytorch.Task(linear, metric=own)))
    large = pairs(0, 3000)  # several chunks
    data = task.prepare(large)
    output = task.module(task.initial(0))(data.x).detach().numpy()
    assert task.evaluate(task.initial(0), data).error == pytest.approx(1 - whole_auc(output, large[1]))
    assert task.evaluate(task.initial(0), task.prepare(pairs(5))).undefined


def test_an_undefined_metric_moves_no_candidate():
    study = ft.prepare(ft.Simulation(ft.pytorch.Task(linear, metric=metrics.auc()), clients()), Space(), cohort=12)
    from fedtuner.core.round import Round

    rounds = Round(study.setup, study.problem)
    arm = Arm(0, study.describe()["defaults"]["client"], study.describe()["defaults"]["server"])
    plan = rounds.plan(arm, rounds.begin(arm), range(CLIENTS))
    tally = rounds.tally(plan, [rounds.work(plan, job) for job in plan.jobs])
    weights = {job.client: seen.weight for job, seen in zip(plan.jobs, tally.seen, strict=True)}
    assert [client for client, weight in weights.items() if not weight] == [5]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: ft.pytorch.Task(linear, metric="f1"), r"metric = 'f1', but must be a Metric with a value"),
        (lambda: ft.pytorch.Task(linear, metric=metrics.f1(), error=len), r"metric is given beside error"),
        (lambda: ft.pytorch.Task(linear, error="accuracy"), r"error = 'accuracy', but must be 'argmax', 'loss' or"),
        (lambda: ft.pytorch.Task(linear).prepare({"x": np.zeros(3)}), r"a table of \['x'\], but has no 'labels'"),
    ],
)
def test_what_is_no_metric_of_a_task_is_refused(make, said):
    with pytest.raises(TaskError, match=said):
        make()


def test_where_no_client_who_validates_has_the_metric_show_says_so(tmp_path, capsys):
    def one_class(i):
        x, y = pairs(i)
        return x, np.ones_like(y)

    made = [ft.Client(i, pairs(i), one_class(i + 10), one_class(i + 20)) for i in range(4)]
    problem = ft.Simulation(ft.pytorch.Task(linear, metric=metrics.auc()), made)
    ft.tune(problem, fedex=None, schedule=ft.random_search(2, 1), cohort=2, workers=1, store=tmp_path / "s")
    assert cli.main(["show", str(tmp_path / "s")]) == 0
    said = capsys.readouterr().out
    assert "No arm has a score, so the first one has won: auc is not defined for the clients who validate" in said
    assert "diverged" not in said


def test_a_metric_that_is_defined_for_nobody_is_refused():
    never = ft.Metric("never", value=lambda output, y: math.nan)
    with pytest.raises(TaskError, match="the never of the untrained model is NaN for every client"):
        ft.Simulation(ft.pytorch.Task(linear, metric=never), clients()).check()
