"""A server that sees nothing but sums."""

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

import fedtuner as ft
from toys import SPACE, Softmax

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    fleet = ft.flower.Fleet(grid, Softmax(), deadline=300.0, secure=ft.flower.SecAgg(most_examples=20))
    schedule = ft.halving(budget=3, longest=2, eta=2, eliminations=1)
    study = ft.tune(fleet, SPACE, schedule=schedule, fedex=ft.FedEx(k=3, eps=0.3), cohort=3, seed=5,
                    store=str(context.run_config["store"]), progress=False)  # fmt: skip
    print("theta", study.best.theta.tolist())
