"""A ClientApp that attacks where its run says so: for tests on real networks, and in this process."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord
from flwr.clientapp import ClientApp


class Attacker(ClientApp):
    """Partition 2 greets with an id of 5000 digits.

    Partition 1 sends the bytes of a zip file as its first update, and then one of huge numbers with the best loss.
    """

    def __init__(self, app: ClientApp) -> None:
        super().__init__()
        self._app = app

    def __call__(self, message: Message, context: Context) -> Message:
        """Do the app's work, and lie about it."""
        about: Any = message.content.config_records["fedtuner"]
        reply, partition = self._app(message, context), context.node_config["partition-id"]
        if not context.run_config.get("attack"):
            return reply
        if message.metadata.message_type == "query.fedtuner":
            if partition == 2:
                greeting: Any = {**reply.content.config_records["fedtuner"], "id": "1" * 5000}
                reply.content["fedtuner"] = ConfigRecord(greeting)
        elif partition == 1 and about["round"] == 0:
            file = io.BytesIO()
            np.savez(file, w=np.zeros(13, np.float32))
            reply.content["arrays"] = ArrayRecord({"w": Array("float32", (13,), "numpy.ndarray", file.getvalue())})
        elif partition == 1:
            reply.content["arrays"] = ArrayRecord({"w": Array(np.full(13, 3e38, np.float32))})
            numbers: Any = {**reply.content.metric_records["report"], "loss_before": [-1e308], "loss_after": [-1e308]}
            reply.content["report"] = MetricRecord(numbers)
        return reply
