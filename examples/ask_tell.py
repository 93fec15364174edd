"""Ask and tell: fedtuner decides who trains and with what, and a training loop of your own does the work.

The loop is plain PyTorch and knows nothing of fedtuner's problems, tasks or engines. It might as well be a queue, a
cluster or a fleet of phones: a plan says what to send to whom, and ``tell`` takes what came back, None where a client
did not answer. Run it again after a stop: the study continues where it was.
"""

import torch
import torch.nn.functional as F
from torch import nn

import fedtuner as ft
from fedtuner.data import digits

SPACE = ft.Space(
    client={"lr": ft.Float(0.01, 1.0, log=True), "epochs": ft.Int(1, 3), "batch": ft.PowerOfTwo(8, 32)},
    server={"lr": ft.Float(0.5, 2.0, log=True)},
)
torch.set_num_threads(1)  # several wait for each other where the cores are busy
SCHEDULE = ft.halving(budget=120, longest=24, eta=3, eliminations=2)


def tensors(split):
    return torch.from_numpy(split[0]), torch.from_numpy(split[1])


DATA = [{split: tensors(getattr(c, split)) for split in ("train", "valid", "test")} for c in digits.clients()]


def train(net, x, y, lr, epochs, batch):
    optimiser = torch.optim.SGD(net.parameters(), lr)
    for _ in range(epochs):
        for rows in torch.randperm(len(x)).split(batch):
            optimiser.zero_grad()
            F.cross_entropy(net(x[rows]), y[rows]).backward()
            optimiser.step()


@torch.no_grad()
def measure(net, x, y):
    output = net(x)
    return ft.Metrics(F.cross_entropy(output, y).item(), (output.argmax(1) != y).float().mean().item(), len(y))


def load(net, model, w):
    net.load_state_dict({name: torch.from_numpy(array) for name, array in model.arrays(w).items()})


def main(store="runs/ask-tell"):
    net = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    outside = ft.Outside(net.state_dict(), clients=len(DATA))
    study = ft.prepare(outside, SPACE, fedex=ft.FedEx(k=9), schedule=SCHEDULE, store=store)
    while plan := study.ask():
        reports = []
        for job in plan.jobs:
            data = DATA[job.client]
            load(net, outside.model, plan.w)
            before = measure(net, *data["valid"])
            train(net, *data["train"], **job.config)
            after = measure(net, *data["valid"])
            w = outside.model.vector(net.state_dict())
            reports.append(plan.report(job, w, len(data["train"][1]), (before, after)))
        study.tell(plan, reports)
    return study, net


if __name__ == "__main__":
    study, net = main()
    load(net, study.problem.model, study.best.model)
    print("client", study.best.client)
    print("server", study.best.server)
    print("test error", sum(measure(net, *data["test"]).error for data in DATA) / len(DATA))
