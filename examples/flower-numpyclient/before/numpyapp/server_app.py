"""What the server does."""

from flwr.app import Context
from flwr.common import ndarrays_to_parameters
from flwr.server import ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.serverapp import ServerApp

from numpyapp.task import Net, get_weights, load_test, set_weights, test


def evaluate(server_round: int, parameters: list, config: dict) -> tuple:
    net = Net()
    set_weights(net, parameters)
    loss, accuracy = test(net, load_test())
    print("accuracy:", accuracy)
    return loss, {"accuracy": accuracy}


def server_fn(context: Context) -> ServerAppComponents:
    strategy = FedAvg(
        fraction_evaluate=context.run_config["fraction-evaluate"],
        initial_parameters=ndarrays_to_parameters(get_weights(Net())),
        evaluate_fn=evaluate,
    )
    config = ServerConfig(num_rounds=context.run_config["num-server-rounds"])
    return ServerAppComponents(strategy=strategy, config=config)


app = ServerApp(server_fn=server_fn)
