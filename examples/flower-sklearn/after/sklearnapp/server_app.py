"""What the server does."""

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp

import fedtuner as ft
from sklearnapp.task import create_model, initial, load_test

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    arrays = ArrayRecord(initial())
    client = {"C": ft.Float(0.1, 100, log=True), "local-epochs": ft.Int(1, 10)}
    today = {name: context.run_config[name] for name in client}
    fleet = ft.flower.Fleet(grid, arrays, deadline=120)
    study = ft.tune(fleet, ft.Space(client), include=[{"client": today}], **ft.flower.settings(context.run_config))
    model = create_model(fleet.record(study.best.model).to_numpy_ndarrays())
    print("accuracy:", model.score(*load_test()), "with", study.best.client)
