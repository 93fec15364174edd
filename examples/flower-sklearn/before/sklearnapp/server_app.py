"""What the server does."""

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from sklearnapp.task import create_model, initial, load_test

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    arrays = ArrayRecord(initial())
    strategy = FedAvg(fraction_evaluate=context.run_config["fraction-evaluate"])
    result = strategy.start(grid, arrays, num_rounds=context.run_config["num-server-rounds"])
    model = create_model(result.arrays.to_numpy_ndarrays())
    print("accuracy:", model.score(*load_test()))
