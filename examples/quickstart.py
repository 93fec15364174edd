"""Tune FedAvg on handwritten digits: the ten lines of the README. Takes a few seconds."""

import fedtuner as ft
from fedtuner.problems import digits

if __name__ == "__main__":
    study = ft.tune(
        digits.problem(),  # 56 clients, a small perceptron
        schedule=ft.halving(budget=200, longest=40, eta=3, eliminations=2),  # 9 trainings ("arms"), 200 rounds in all
        fedex=ft.FedEx(k=9, eps=0.1),  # each arm chooses among 9 client configurations
        seed=0,
    )
    print(study.best.server)  # hyperparameters of the aggregation
    print(study.best.client)  # hyperparameters of local training
    print(study.evaluate("test"))  # {'global': ..., 'personalized': ...}
