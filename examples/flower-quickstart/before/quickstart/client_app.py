"""What a device does."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from quickstart.task import Net, fit, load_data, test

app = ClientApp()


@app.train()
def train(msg: Message, context: Context) -> Message:
    net = Net()
    net.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    trainset, _ = load_data(context.node_config["partition-id"], context.node_config["num-partitions"])
    lr, run_config = msg.content["config"]["lr"], context.run_config
    fit(net, trainset, run_config["local-epochs"], lr, run_config["batch-size"])
    metrics = MetricRecord({"num-examples": len(trainset[1])})
    return Message(RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}), reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context) -> Message:
    net = Net()
    net.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    _, validset = load_data(context.node_config["partition-id"], context.node_config["num-partitions"])
    loss, accuracy = test(net, validset)
    metrics = MetricRecord({"eval_loss": loss, "eval_acc": accuracy, "num-examples": len(validset[1])})
    return Message(RecordDict({"metrics": metrics}), reply_to=msg)
