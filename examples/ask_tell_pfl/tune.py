"""pfl-research's own loop, tuned by fedtuner: its users, trainer, metrics and aggregation do the work of every plan.

    make pfl

pfl (Granqvist et al., "pfl-research: simulation framework for accelerating research in Private Federated Learning",
2024) has a server of its own: a backend runs an algorithm on a cohort and returns sums. Here its federated averaging
asks a study before each iteration and tells it the sums afterwards, as a tally. fedtuner chooses the cohort, each
user's hyperparameters, and the step of the server's model; everything between the two is pfl's.
"""

from collections import deque
from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import PersonalizedNNAlgorithmParams
from pfl.algorithm.reptile import Reptile
from pfl.common_types import Population
from pfl.context import CentralContext
from pfl.data.dataset import Dataset, DatasetSplit
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, StringMetricName, TrainMetricName, Weighted
from pfl.model.pytorch import PyTorchModel
from pfl.stats import MappedVectorStatistics
from torch import nn

import fedtuner as ft
from fedtuner.data import digits

SPACE = ft.Space(
    client={"lr": ft.Float(0.01, 1.0, log=True), "epochs": ft.Int(1, 3), "batch": ft.PowerOfTwo(8, 32)},
    server={"lr": ft.Float(0.5, 2.0, log=True)},
)
SCHEDULE = ft.halving(budget=90, longest=18, eta=3, eliminations=2)


class Net(nn.Sequential):
    """A network as pfl takes it: with a loss and metrics of its own."""

    def __init__(self):
        super().__init__(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))

    def loss(self, x, y):
        return F.cross_entropy(self(x), y.long())  # pfl's tensors are of floats

    @torch.no_grad()
    def metrics(self, x, y):
        wrong = (self(x).argmax(1) != y).sum().item()
        return {"loss": Weighted(self.loss(x, y).item() * len(y), len(y)), "error": Weighted(wrong, len(y))}


class Tuned(Reptile):
    """pfl's federated averaging, with its evaluation before and after local training, under a study's orders."""

    def __init__(self, study, queue):
        super().__init__()
        self.study, self.queue = study, queue
        self.plan, self.jobs, self.labels = None, {}, set()

    def get_next_central_contexts(self, model, iteration, algorithm_params, train_params, eval_params=None):
        """Ask for a round: its users go to the queue from which pfl samples, its weights into the model."""
        self.plan = plan = self.study.ask()
        if plan is None:
            return None, model, Metrics()
        self.jobs = {self.study.problem.id_of(job.client): job for job in plan.jobs}
        self.labels = {choice.label for job in plan.jobs for choice in job.choices}
        self.queue.extend(self.jobs)
        arrays = self.study.problem.model.arrays(plan.w)
        model.set_parameters(MappedVectorStatistics({name: torch.from_numpy(a) for name, a in arrays.items()}))
        context = CentralContext(
            iteration, do_evaluation=True, cohort_size=len(plan.jobs), population=Population.TRAIN,
            algorithm_params=algorithm_params, model_train_params=train_params, model_eval_params=eval_params,
            seed=self._get_seed(),
        )  # fmt: skip
        return (context,), model, Metrics()

    def simulate_one_user(self, model, user_dataset, central_context):
        """Train with the user's own configuration; beside pfl's metrics, sum up what the tuner makes of it."""
        job = self.jobs[user_dataset.user_id]
        params = NNTrainHyperParams(
            local_batch_size=job.config["batch"], local_num_epochs=job.config["epochs"],
            local_learning_rate=job.config["lr"],
        )  # fmt: skip
        statistics, metrics = super().simulate_one_user(
            model, user_dataset, replace(central_context, model_train_params=params)
        )
        statistics.reweight(len(user_dataset))  # |T|
        [tried] = self.plan.tried(job, (measured(metrics, after=False), measured(metrics, after=True)))
        value, weight = self.study.setup.tuner.value(tried), tried.after.count
        for label in self.labels:  # pfl adds up metrics that all users have
            own = label == tried.label
            metrics[name_of(label)] = Weighted(value * weight if own else 0, weight if own else 0)
        return statistics, metrics

    def process_aggregated_statistics(self, central_context, aggregate_metrics, model, statistics):
        """Tell the study what the backend has summed up; the step of the model is the study's."""
        examples = round(float(statistics.weight))
        statistics.average()
        change = self.study.problem.model.vector(dict(statistics.items()))
        before, after = (measured(aggregate_metrics, after=after) for after in (False, True))
        sums = {label: aggregate_metrics[name_of(label)] for label in self.labels}
        values = {label: (value.overall_value, value.weight) for label, value in sums.items()}
        self.study.tell(self.plan, self.plan.tally(change, examples, before, after, values))
        return model, Metrics()


def name_of(label):
    return StringMetricName(f"value of label {label}")


def measured(metrics, after):
    """Return pfl's metrics on the users' validation data as fedtuner's."""
    loss, error = (metrics[TrainMetricName(name, Population.TRAIN, after, "val")] for name in ("loss", "error"))
    return ft.Metrics(loss.overall_value, error.overall_value, round(loss.weight))


def users():
    """Return the digits' writers as pfl's users, by id."""
    made = {}
    for client in digits.clients():
        train, valid = (
            Dataset([np.asarray(x, np.float32), y], user_id=client.id) for x, y in (client.train, client.valid)
        )
        made[client.id] = DatasetSplit(train, valid)
    return made


def main(store=None):
    """Run pfl's loop until the study has a winner."""
    net, data, queue = Net(), users(), deque()
    federation = FederatedDataset(data.__getitem__, queue.popleft)
    outside = ft.Outside(dict(net.named_parameters()), list(data), name="digits by pfl")
    study = ft.prepare(outside, SPACE, fedex=ft.FedEx(k=9), schedule=SCHEDULE, store=store)
    params = PersonalizedNNAlgorithmParams(
        central_num_iterations=SCHEDULE.budget, evaluation_frequency=1, train_cohort_size=10, val_cohort_size=None,
        val_split_fraction=None, min_train_size=None, min_val_size=None,
    )  # fmt: skip
    Tuned(study, queue).run(
        params, SimulatedBackend(federation, federation),
        PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), 1.0)),
        NNTrainHyperParams(local_batch_size=None, local_num_epochs=1, local_learning_rate=0.1),
        NNEvalHyperParams(local_batch_size=None), send_metrics_to_platform=False,
    )  # fmt: skip
    return study


def test_error(study):
    """Return the error of the winner's model over the test data of all users."""
    net, wrong, total = Net(), 0, 0
    net.load_state_dict({n: torch.from_numpy(a) for n, a in study.problem.model.arrays(study.best.model).items()})
    for client in digits.clients():
        x, y = map(torch.from_numpy, client.test)
        wrong, total = wrong + int((net(x).argmax(1) != y).sum()), total + len(y)
    return wrong / total


if __name__ == "__main__":
    torch.set_num_threads(1)
    found = main()
    print("client", found.best.client)
    print("server", found.best.server)
    print(f"test error {test_error(found):.3f} after {found.rounds_used} rounds of pfl")
