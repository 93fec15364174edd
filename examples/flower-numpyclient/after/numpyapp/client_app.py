"""What a device does."""

from flwr.app import Context
from flwr.client import Client, NumPyClient
from flwr.clientapp import ClientApp

import fedtuner as ft
from numpyapp.task import Net, fit, get_weights, load_data, set_weights, test


class FlowerClient(NumPyClient):
    def __init__(self, net: Net, data: tuple, local_epochs: int, learning_rate: float, batch_size: int) -> None:
        self.net, self.settings = net, (local_epochs, learning_rate, batch_size)
        self.trainset, self.validset = data

    def fit(self, parameters: list, config: dict) -> tuple:
        set_weights(self.net, parameters)
        fit(self.net, self.trainset, *self.settings)
        return get_weights(self.net), len(self.trainset[1]), {}

    def evaluate(self, parameters: list, config: dict) -> tuple:
        set_weights(self.net, parameters)
        loss, accuracy = test(self.net, self.validset)
        return loss, len(self.validset[1]), {"accuracy": accuracy}


def client_fn(context: Context) -> Client:
    data = load_data(context.node_config["partition-id"], context.node_config["num-partitions"])
    settings = (context.run_config[name] for name in ("local-epochs", "learning-rate", "batch-size"))
    return FlowerClient(Net(), data, *settings).to_client()


app = ClientApp(client_fn)
app = ft.flower.tuned(app)
