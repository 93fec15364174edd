"""Milliseconds a round of 10 trivial clients in Flower's simulation engine; run with a Python that has it.

The server sends ten messages, waits for ten replies and does it again; the clients send back what they got.
"""

from __future__ import annotations

import json
import logging
import time

import numpy as np
from flwr.app import ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

ROUNDS = 30
client, server = ClientApp(), ServerApp()


@client.train()
def train(message: Message, context: Context) -> Message:
    return Message(content=message.content, reply_to=message)


@server.main()
def main(grid: Grid, context: Context) -> None:
    while len(nodes := list(grid.get_node_ids())) < 10:
        time.sleep(0.1)
    content = RecordDict({"w": ArrayRecord([np.zeros(4, np.float32)])})
    for t in range(ROUNDS + 5):
        if t == 5:  # the first rounds start workers
            began = time.perf_counter()
        messages = [Message(content=content, dst_node_id=node, message_type="train") for node in nodes]
        replies = list(grid.send_and_receive(messages))
        assert len(replies) == 10
        assert not any(reply.has_error() for reply in replies)
    print(json.dumps({"ms": 1e3 * (time.perf_counter() - began) / ROUNDS}), flush=True)


if __name__ == "__main__":
    logging.disable(logging.INFO)
    run_simulation(server, client, num_supernodes=10)
