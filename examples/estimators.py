"""Models other than networks: a scikit-learn estimator with partial_fit, and a model that two functions train.

The data is scikit-learn's breast cancer set, dealt to ten hospitals by the size of the tumours (see own_model.py).
"""

import numpy as np
from own_model import hospitals
from sklearn.linear_model import SGDClassifier

import fedtuner as ft
from fedtuner import metrics


def linear() -> ft.Simulation:
    """Return a problem with a linear classifier: 30 features, 2 classes; what is told of it is the AUC."""
    estimator = SGDClassifier(loss="log_loss", learning_rate="constant", eta0=0.01)
    return ft.Simulation(ft.sklearn.Estimator(estimator, 30, 2, metric=metrics.auc()), hospitals(), name="linear")


def fit(arrays, split, config, seed):
    """Move each class's centre towards its examples: a nearest-centroid classifier that learns step by step."""
    centres = arrays["centres"].copy()
    for x, y in zip(*split, strict=True):
        centres[y] += config["pace"] * (x - centres[y])
    return {"centres": centres}


def evaluate(arrays, split, config):
    """Return a loss and the error rate."""
    x, y = split
    far = ((x[:, None] - arrays["centres"]) ** 2).mean(axis=2)
    return float(far[np.arange(len(y)), y].mean()), float(np.mean(far.argmin(axis=1) != y))


def centroids() -> ft.Simulation:
    """Return a problem whose model is trained by the two functions above."""
    return ft.Simulation(ft.Learner({"centres": np.zeros((2, 30))}, fit, evaluate), hospitals(), name="centroids")


if __name__ == "__main__":
    study = ft.tune(linear(), budget=100, cohort=5, workers=1)
    print("linear", study.best.client, study.evaluate("test"))

    space = ft.Space(client={"pace": ft.Float(0.001, 1.0, log=True)}, server={"lr": [0.5, 1.0]})
    study = ft.tune(centroids(), space, fedex=ft.FedEx(k=4), schedule=ft.random_search(20, 10), cohort=5, workers=1)
    print("centroids", study.best.client, study.evaluate("test"))
