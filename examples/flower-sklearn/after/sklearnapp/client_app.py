"""What a device does."""

import warnings

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from sklearn.metrics import log_loss

import fedtuner as ft
from sklearnapp.task import LABELS, create_model, load_data

app = ClientApp()


@app.train()
def train(msg: Message, context: Context) -> Message:
    (x, y), _ = load_data(context.node_config["partition-id"], context.node_config["num-partitions"])
    settings = context.run_config["C"], context.run_config["local-epochs"]
    model = create_model(msg.content["arrays"].to_numpy_ndarrays(), *settings)
    with warnings.catch_warnings():  # so few iterations do not converge
        warnings.simplefilter("ignore")
        model.fit(x, y)
    arrays = ArrayRecord([model.coef_, model.intercept_])
    return Message(RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": len(y)})}), reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context) -> Message:
    _, (x, y) = load_data(context.node_config["partition-id"], context.node_config["num-partitions"])
    model = create_model(msg.content["arrays"].to_numpy_ndarrays())
    loss = log_loss(y, model.predict_proba(x), labels=LABELS)
    metrics = MetricRecord({"test_logloss": loss, "accuracy": model.score(x, y), "num-examples": len(y)})
    return Message(RecordDict({"metrics": metrics}), reply_to=msg)


app = ft.flower.tuned(app, loss="test_logloss", accuracy="accuracy")
