"""Architecture as a hyperparameter: one vector w, and a module that reads from its configuration which part it uses.

FedEx over architectures with shared weights is federated architecture search, the paper's outlook. The module has all
parameters that any shape needs; ``configure(module, choices)`` sets which it uses (an activation, a block that is on or
off, the first ``width`` units of a layer) and never which it has. What a shape does not use gets no gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import nn

from fedtuner.core.model import Hyper
from fedtuner.errors import FAILURES, SpecError, TaskError, brief, one_line
from fedtuner.space import Choice, Config, Value

Configure = Callable[[nn.Module, Config], None]


class Shapes:
    """The hyperparameters that shape a model, and the function that sets them on a module."""

    def __init__(self, choices: Mapping[str, Any] | None, configure: Configure | None) -> None:
        if choices is not None and not isinstance(choices, Mapping):
            raise TaskError(f"choices = {brief(choices)}, but must be a mapping of names to values")
        if configure is not None and not callable(configure):
            raise TaskError(f"configure is {type(configure).__name__}, but must be a function(module, choices)")
        self.choices = {name: _hyper(name, values) for name, values in (choices or {}).items()}
        self._configure = configure
        self._tried: set[tuple[Value, ...]] = set()  # shapes in which the module was seen to keep its parameters
        self._now: tuple[Value, ...] | None = None
        if bool(self.choices) != (configure is not None):
            given, missing = ("choices", "configure") if self.choices else ("configure", "choices")
            raise TaskError(f"{given} needs {missing}: Task(build, choices={{name: values}}, configure=function)")

    def set(self, module: nn.Module, config: Config) -> None:
        """Give the module the configuration's shape, if it does not have it; hyperparameters not named are default."""
        wanted = self._values(config)
        if wanted == self._now:
            return
        before = None if wanted in self._tried else _tensors(module)
        self._now = None  # until it is known to have worked
        self._apply(module, wanted)
        if before is not None and _tensors(module) != before:
            raise TaskError(f"configure() changed the model's parameters for {self.named(wanted)}: {_RULE}")
        self._tried.add(wanted)
        self._now = wanted

    def set_once(self, module: nn.Module, config: Config) -> None:
        """Give another module the configuration's shape."""
        self._apply(module, self._values(config))

    def named(self, values: Sequence[Value]) -> dict[str, Value]:
        """Return the values by their names."""
        return dict(zip(self.choices, values, strict=True))

    def _values(self, config: Config) -> tuple[Value, ...]:
        return tuple(config.get(name, hyper.default) for name, hyper in self.choices.items())

    def _apply(self, module: nn.Module, values: Sequence[Value]) -> None:
        if self._configure is None:
            return
        try:
            self._configure(module, self.named(values))
        except FAILURES as error:
            why = f"{type(error).__name__}: {one_line(str(error), 200)}"
            raise TaskError(f"configure() failed for {brief(self.named(values))}: {why}") from error
        module.train(module.training)  # modules that it put in must be in the same mode


_RULE = "it may set which of them are used, not replace, add or remove any"


def _tensors(module: nn.Module) -> list[int]:
    return [id(tensor) for tensor in (*module.parameters(), *module.buffers())]


def _hyper(name: str, values: Any) -> Hyper:
    """Return the hyperparameter that a list of values (the first is the default), or a Hyper, stands for."""
    if isinstance(values, Hyper):
        return values
    try:
        domain = values if isinstance(values, Choice) else Choice(values)
    except SpecError as error:
        raise TaskError(f"choices[{name!r}]: give a list of values, or a Hyper: {error}") from error
    return Hyper(domain, domain.values[0], options=domain.values, about="shapes the model")
