"""Tune FedAvg on handwritten digits: the ten lines of the README. Takes a few seconds."""

import fedtuner as ft
from fedtuner.problems import digits

if __name__ == "__main__":
    study = ft.tune(digits.problem(), budget=500, seed=0)  # 56 clients, a small perceptron, 500 rounds in all
    print(study.best.server)  # hyperparameters of the aggregation
    print(study.best.client)  # hyperparameters of local training
    print(study.evaluate("test"))  # {'global': ..., 'personalized': ...}

    default = ft.untuned(study)  # your own settings with the same 500 rounds: what tuning has to beat
    print(default.evaluate("test"))
