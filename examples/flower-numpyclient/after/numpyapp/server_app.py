"""What the server does."""

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

import fedtuner as ft
from numpyapp.task import Net, get_weights, load_test, set_weights, test


def evaluate(server_round: int, parameters: list, config: dict) -> tuple:
    net = Net()
    set_weights(net, parameters)
    loss, accuracy = test(net, load_test())
    print("accuracy:", accuracy)
    return loss, {"accuracy": accuracy}


app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    client = {"learning-rate": ft.Float(0.001, 1, log=True), "local-epochs": ft.Int(1, 5), "batch-size": [8, 16, 32]}
    today = {name: context.run_config[name] for name in client}
    fleet = ft.flower.Fleet(grid, get_weights(Net()), deadline=120)
    study = ft.tune(fleet, ft.Space(client), include=[{"client": today}], **ft.flower.settings(context.run_config))
    evaluate(0, fleet.record(study.best.model).to_numpy_ndarrays(), {})
