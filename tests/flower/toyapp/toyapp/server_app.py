"""The server of the toy problem."""

from deployed import tune
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

import fedtuner as ft
from toys import Softmax

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    c = context.run_config
    fleet = ft.flower.Fleet(grid, Softmax(), least=int(c["least"]), wait=300.0, deadline=float(c["deadline"]))
    study = tune(fleet, int(c["arms"]), int(c["cohort"]), str(c["store"]))
    print("faults", dict(fleet.faults))
    if c["evaluate"]:
        print("test error", study.evaluate("test"))
