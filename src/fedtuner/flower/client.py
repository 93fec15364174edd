"""The client side: a ClientApp of a task and its data, or a wrapper of an app that keeps its own training code."""

from __future__ import annotations

import copy
import math
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import flwr
import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MessageType, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import Mod

from fedtuner import methods
from fedtuner.core.method import Method
from fedtuner.core.model import Learner, Metrics, Task
from fedtuner.core.records import Plan, Report, Tried
from fedtuner.core.work import work
from fedtuner.errors import ClientError, SpecError, brief, one_line, suggest
from fedtuner.federations import Client, Simulation
from fedtuner.flower import handshake, reads
from fedtuner.flower.app_state import arm_context, copied
from fedtuner.flower.messages import ARRAYS, HANDSHAKE, WORK, lineage_of, plan_of, report_content
from fedtuner.flower.secure import secure_train
from fedtuner.flower.wire import Flat
from fedtuner.space import Config

_ACTION = "fedtuner"
_NO_VECTOR = np.zeros(0, np.float32)


def client_app(
    task: Task | Learner,
    data: Callable[[Context], Client],
    *,
    method: Method | None = None,
    secure: bool = False,
    secret: str | None = None,
    mods: list[Mod] | None = None,
) -> ClientApp:
    """Return a ClientApp that does a study's work with a task, or with a learner.

    ``data(context)`` gives the client: its splits, and an id that stays the same when the node restarts, such as
    ``context.node_config["partition-id"]``. ``method`` is only needed where it is not one of ``fedtuner.methods``.
    ``secure=True`` is for a ``Fleet`` with secure aggregation; such an app takes part in no other. It draws its
    candidates from fresh randomness, or repeatably from a ``secret``.
    """
    app = ClientApp(mods=mods)
    wire = Flat(task.size)
    code = handshake.app_code(*sorted(Simulation.code_of(task).items()), method, *(mods or ()))

    def find(name: str) -> Method:
        return method or method_named(name)

    @app.query(_ACTION)
    def handshake_reply(message: Message, context: Context) -> Message:
        return handshake.reply(message, data(context).id, task.size, secure, code=code)

    if secure:
        secure_train(app, task, data, find, secret)
        return app

    @app.train(_ACTION)
    def train(message: Message, context: Context) -> Message:
        name, plan = plan_of(message.content)
        plan = replace(plan, w=wire.vector(message.content.array_records[ARRAYS]))
        report = work(find(name), Simulation(task, [data(context)]), plan, plan.jobs[0])
        return Message(report_content(report, wire.record(report.change)), reply_to=message)

    return app


def method_named(name: str) -> Method:
    """Return the method of this name."""
    if name not in methods.ALL:
        hint = suggest(name, list(methods.ALL))
        raise SpecError(f"no method {name!r} here{hint}; give a method of your own: client_app(method=)")
    return methods.ALL[name]


def tuned(
    app: ClientApp,
    *,
    loss: str = "",
    accuracy: str | None = "",
    error: str | None = None,
    examples: str = "num-examples",
    splits: tuple[str, ...] = ("valid",),
    id: Callable[[Context], str | int] | None = None,
    arrays: str = "arrays",
    config: str = "config",
) -> ClientApp:
    """Return the app, ready to be tuned: its own ``train`` and ``evaluate`` functions do a study's work.

    A round is three calls: evaluate (the server's model), train, evaluate (the client's). Each sees the model in
    ``message.content["arrays"]`` and, in ``message.content["config"]``, the client hyperparameters drawn for it under
    their names in the study's space, ``server-round`` and ``split``; in ``context.run_config`` values of these names
    are replaced by them. Train returns ``arrays`` and the metric ``num-examples``, |T|; evaluate the metrics
    ``eval_loss``, ``eval_acc`` and ``num-examples``, |V|: other names are given here. An app made with a ``client_fn``
    gets and returns the same through ``fit`` and ``evaluate`` of its client; its accuracy is the metric ``accuracy``.
    ``error`` names a metric that is the error; with neither that nor an accuracy (None) the loss is. ``splits``
    has ``"test"`` if evaluate chooses its data by ``config["split"]``. ``id`` gives the client's id, which must
    outlive a restart; by default it is the node's ``partition-id``. Messages that are not fedtuner's go to the app
    unchanged. What the functions keep in ``context.state`` is kept apart for each arm (``app_state.py``).
    """
    if not isinstance(app, ClientApp):
        raise SpecError(f"app = {brief(app)}, but must be a ClientApp: ClientApp(), or ClientApp(client_fn)")
    older = getattr(app, "_call", None) is not None  # set by a client_fn
    usual = ("loss", "accuracy") if older else ("eval_loss", "eval_acc")
    right = usual[1] if accuracy == "" else accuracy
    names = _Names(loss or usual[0], right, error, "num_examples" if older else examples, arrays, config)
    return _Tuned(app, names, ("valid", *splits), id or _partition, older)


@dataclass(frozen=True)
class _Names:
    loss: str
    accuracy: str | None
    error: str | None
    examples: str
    arrays: str
    config: str


class _Tuned(ClientApp):
    def __init__(
        self, app: ClientApp, names: _Names, splits: tuple[str, ...], id: Callable[[Context], str | int], older: bool
    ) -> None:
        super().__init__()
        self._app, self._names, self._splits, self._id = app, names, splits, id
        self._calls = _OlderCalls if older else _Calls
        registered = getattr(app, "_registered_funcs", {})
        self._code = handshake.app_code(*(registered[name] for name in sorted(registered)), getattr(app, "_call", None))

    def __call__(self, message: Message, context: Context) -> Message:
        """Do fedtuner's work, or pass the message on."""
        kind = message.metadata.message_type
        if kind == HANDSHAKE:
            return handshake.reply(message, self._id(context), None, code=self._code)
        return self._work(message, context) if kind == WORK else self._app(message, context)

    def _work(self, message: Message, context: Context) -> Message:
        (_, plan), model = plan_of(message.content), message.content.array_records[ARRAYS]
        first, *others = plan.jobs[0].choices
        if plan.split not in self._splits:
            raise ClientError(
                f"the app evaluates on {self._splits[0]!r} data only: let evaluate read config['split'] and give "
                f"tuned(app, splits=('valid', {plan.split!r}))"
            )
        lineage = lineage_of(message.content)
        with arm_context(context, plan.arm, lineage.parent, lineage.out, keep=not lineage.evaluation) as mine:
            starts = [copied(mine) for _ in others]  # what other candidates would give is measured, and not kept
            read = set[str]()
            call = self._calls(self._app, message, mine, self._names, plan, read)
            before = call.evaluate(model, first.config)
            update, count, after = call.train(model, first.config, before.count)
        tried = []
        for choice, start in zip(others, starts, strict=True):
            call = self._calls(self._app, message, start, self._names, plan, read)
            tried.append(Tried(choice.label, before, call.train(model, choice.config, before.count)[2]))
        report = Report(0, _NO_VECTOR, {}, {}, count, (Tried(first.label, before, after), *tried), finite=True)
        drawn = {name for choice in (first, *others) for name in choice.config}
        return Message(reads.told(report_content(report, update), drawn, read), reply_to=message)


class _Calls:
    """The app's own functions, called as Flower calls them, in a context that is for this work alone."""

    def __init__(
        self, app: ClientApp, message: Message, context: Context, names: _Names, plan: Plan, read: set[str]
    ) -> None:
        self._app, self._message, self._context, self._names, self._plan = app, message, context, names, plan
        self._run_config, self._read = context.run_config, read

    def train(self, model: ArrayRecord, drawn: Config, validated: int) -> tuple[ArrayRecord, int, Metrics]:
        """Return the model after training, |T|, and the metrics of that model on the client's validation data."""
        content = self._call(MessageType.TRAIN, model, drawn)
        if self._names.arrays not in content.array_records:
            raise ClientError(f"train returned no arrays {self._names.arrays!r}, only {sorted(content)}")
        update = content.array_records[self._names.arrays]
        count = int(self._metric(content, self._names.examples, "train"))
        if not all(bool(np.isfinite(a.numpy()).all()) for a in update.values()):
            return update, count, Metrics(math.nan, math.nan, validated)
        return update, count, self.evaluate(update, drawn)

    def evaluate(self, model: ArrayRecord, drawn: Config) -> Metrics:
        """Return the metrics of a model on the client's validation data."""
        names, content = self._names, self._call(MessageType.EVALUATE, model, drawn)
        loss, count = (float(self._metric(content, n, "evaluate")) for n in (names.loss, names.examples))
        error = loss
        if names.error is not None:
            error = float(self._metric(content, names.error, "evaluate"))
        elif names.accuracy is not None:
            error = 1 - float(self._metric(content, names.accuracy, "evaluate"))
        return Metrics(loss, error, int(count))

    def _call(self, kind: str, model: ArrayRecord, drawn: Config) -> RecordDict:
        original = self._message.content
        self._message.content = RecordDict()  # only the metadata is to be copied
        message = copy.deepcopy(self._message)
        self._message.content = original
        message.metadata.message_type = kind
        # Flower's strategies send server-round too; splits= needs split. A study refuses hyperparameters of these
        # names.
        config: Any = {**drawn, "server-round": self._plan.round + 1, "split": self._plan.split}
        message.content = self._sent(kind, copy.deepcopy(model), reads.Config(config, self._read))
        self._context.run_config = reads.RunConfig({**self._run_config, **drawn}, self._read)
        try:
            reply = self._app(message, self._context)
        except Exception as error:
            raise ClientError(f"{kind} failed: {_described(error)}; its config was {brief(config, 100)}") from error
        if reply.has_error():
            raise ClientError(f"{kind} returned an error: {reply.error.reason}")
        return self._returned(kind, model, reply.content)

    def _sent(self, kind: str, model: ArrayRecord, config: ConfigRecord) -> RecordDict:
        return RecordDict({self._names.arrays: model, self._names.config: config})

    def _returned(self, kind: str, model: ArrayRecord, content: RecordDict) -> RecordDict:
        return content

    def _metric(self, content: RecordDict, name: str, where: str) -> Any:
        metrics: Mapping[str, Any] = {k: v for record in content.metric_records.values() for k, v in record.items()}
        if name not in metrics:
            argument = next(f.name for f in fields(self._names) if getattr(self._names, f.name) == name)
            remedy = f"name yours by tuned(app, {argument}=...)"
            raise ClientError(f"{where} returned no metric {name!r}, only {sorted(metrics)}: {remedy}")
        return metrics[name]


class _OlderCalls(_Calls):
    """The client of a ``client_fn``, called as Flower calls it: its arrays have no names, and its metrics a record."""

    def _sent(self, kind: str, model: ArrayRecord, config: ConfigRecord) -> RecordDict:
        asked = "fitins" if kind == MessageType.TRAIN else "evaluateins"
        return RecordDict({f"{asked}.parameters": model, f"{asked}.config": config})

    def _returned(self, kind: str, model: ArrayRecord, content: RecordDict) -> RecordDict:
        numbers: dict[str, Any] = {k: v for r in content.metric_records.values() for k, v in r.items()}
        said = content.config_records[f"{'fitres' if kind == MessageType.TRAIN else 'evaluateres'}.metrics"]
        numbers |= {k: v for k, v in said.items() if type(v) in (int, float) and k not in numbers}
        made = RecordDict({"metrics": MetricRecord(numbers)})
        for record in content.array_records.values():
            if len(record) != len(model):
                raise ClientError(f"{kind} returned {len(record)} arrays, but was sent {len(model)}")
            named = zip(model, record.values(), strict=True)
            made[self._names.arrays] = ArrayRecord({name: Array(array.numpy()) for name, array in named})
        return made


def _described(error: Exception) -> str:
    """Return an error and the last line of code outside of installed packages that it came through."""
    frames = traceback.extract_tb(error.__traceback__)
    others = ("site-packages", str(Path(flwr.__file__).parent), __file__, reads.__file__)
    own = [f for f in frames if not any(part in f.filename for part in others)]
    at = f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""
    return f"{type(error).__name__}: {one_line(str(error), 120)}{at}"


def _partition(context: Context) -> str | int:
    id = context.node_config.get("partition-id", context.node_id)
    return id if isinstance(id, (int, str)) and not isinstance(id, bool) else str(id)
