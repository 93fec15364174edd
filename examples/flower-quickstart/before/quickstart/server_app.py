"""What the server does."""

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from quickstart.task import Net

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    rounds = context.run_config["rounds"]
    strategy = FedAvg()
    result = strategy.start(grid, ArrayRecord(Net().state_dict()), num_rounds=rounds)
    print("accuracy:", result.evaluate_metrics_clientapp[rounds]["eval_acc"])
