"""What the server does."""

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp

import fedtuner as ft
from quickstart.task import Net, load_test, test

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    lr = context.run_config["learning-rate"]
    net = Net()
    arrays = ArrayRecord(net.state_dict())
    client = {"lr": ft.Float(0.001, 1, log=True), "local-epochs": ft.Int(1, 5), "batch-size": [8, 16, 32]}
    today = {"lr": lr, **{name: context.run_config[name] for name in ("local-epochs", "batch-size")}}
    fleet = ft.flower.Fleet(grid, arrays, deadline=120)
    study = ft.tune(fleet, ft.Space(client), include=[{"client": today}], **ft.flower.settings(context.run_config))
    net.load_state_dict(fleet.record(study.best.model).to_torch_state_dict())
    print("accuracy:", test(net, load_test())[1], "with", study.best.client)
