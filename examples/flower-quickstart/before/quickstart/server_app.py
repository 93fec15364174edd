"""What the server does."""

from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from quickstart.task import Net, load_test, test

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    lr = context.run_config["learning-rate"]
    net = Net()
    arrays = ArrayRecord(net.state_dict())
    strategy = FedAvg(fraction_evaluate=context.run_config["fraction-evaluate"])
    rounds = context.run_config["num-server-rounds"]
    result = strategy.start(grid, arrays, num_rounds=rounds, train_config=ConfigRecord({"lr": lr}))
    net.load_state_dict(result.arrays.to_torch_state_dict())
    print("accuracy:", test(net, load_test())[1])
