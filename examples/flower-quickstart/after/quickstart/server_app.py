"""What the server does."""

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp

import fedtuner as ft
from quickstart.task import Net

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    rounds = context.run_config["rounds"]
    client = {"lr": ft.Float(0.001, 1, log=True), "epochs": ft.Int(1, 3), "batch": ft.Choice([8, 16, 32])}
    study = ft.tune(
        ft.flower.Fleet(grid, ArrayRecord(Net().state_dict()), deadline=120),
        space=ft.Space(client=client, server={"lr": ft.Float(0.3, 3, log=True)}),
        fedex=ft.FedEx(k=8),
        schedule=ft.halving(budget=rounds * 3 // 2, longest=rounds, eta=2, eliminations=1),
        cohort=3,
        target="global",
        store=context.run_config["store"],
    )
    print("accuracy:", 1 - study.best.score, "with", study.best.client, study.best.server)
