"""What a device does: nothing here needs PyTorch."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from sklearn.metrics import log_loss

import fedtuner as ft
from sklearnapp.task import DIGITS, load_data, model

app = ClientApp()


def data(context: Context) -> tuple:
    return load_data(context.node_config["partition-id"], context.node_config["num-partitions"])


@app.train()
def train(msg: Message, context: Context) -> Message:
    config = msg.content["config"]
    (x, y), _ = data(context)
    fitted = model(msg.content["arrays"].to_numpy_ndarrays(), eta0=config["lr"], alpha=config["alpha"], random_state=0)
    for _ in range(config["epochs"]):
        fitted.partial_fit(x, y, classes=DIGITS)
    arrays = ArrayRecord([fitted.coef_, fitted.intercept_])
    return Message(RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": len(y)})}), reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context) -> Message:
    _, (x, y) = data(context)
    fitted = model(msg.content["arrays"].to_numpy_ndarrays())
    loss = log_loss(y, fitted.predict_proba(x), labels=DIGITS)
    metrics = MetricRecord({"eval_loss": loss, "eval_acc": fitted.score(x, y), "num-examples": len(y)})
    return Message(RecordDict({"metrics": metrics}), reply_to=msg)


app = ft.flower.tuned(app)
