"""A client of the toy problem."""

from attacker import Attacker
from deployed import CLIENTS
from flwr.app import Context

import fedtuner as ft
from toys import Softmax, remembering


def data(context: Context) -> ft.Client:
    return CLIENTS[int(context.node_config["partition-id"])]


app = Attacker(ft.flower.client_app(Softmax(), data, method=remembering))  # an honest one, unless its run says so
