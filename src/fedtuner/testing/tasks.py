"""The laws that every task keeps. Subclass in your tests and give a task and a split:

class TestMine(fedtuner.testing.TaskLaws):
    def task(self): return MyTask()
    def split(self): return x, y
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fedtuner.core.engine import ENGINES
from fedtuner.core.model import Rates, Task
from fedtuner.space import Config


class TaskLaws:
    """Laws of a task on one split with a few examples."""

    config: Config = {}  # noqa: RUF012
    step = 1e-2  # of the finite differences
    tolerance = 2e-2

    def task(self) -> Task:
        raise NotImplementedError("override task()")

    def split(self) -> Any:
        raise NotImplementedError("override split()")

    def test_its_layout_is_its_size(self) -> None:
        task = self.task()
        assert sum(part.size for part in task.layout()) == task.size >= task.trainable > 0

    def test_its_start_depends_on_the_seed_alone(self) -> None:
        task = self.task()
        one, again, other = task.initial(1), task.initial(1), task.initial(2)
        assert one.dtype == np.float32
        assert one.shape == (task.size,)
        assert np.array_equal(one, again)
        assert not np.array_equal(one, other)

    def test_evaluation_changes_nothing(self) -> None:
        task, data, w, _ = self._begun()
        kept = w.copy()
        first = task.evaluate(w, data, self.config)
        assert first == task.evaluate(w, data, self.config)
        assert first.count == len(data)
        assert np.array_equal(w, kept)

    def test_an_empty_split_has_no_metrics(self) -> None:
        task = self.task()
        metrics = task.evaluate(task.initial(0), task.prepare(None), self.config)
        assert metrics.count == 0
        assert np.isnan(metrics.loss)

    def test_the_gradient_is_that_of_the_loss(self) -> None:
        """Along a few directions it agrees with finite differences of the loss."""
        task, data, w, rows = self._begun()
        with task.training(data, self.config, 0) as trainer:
            gradient = trainer.gradient(w.copy(), rows, key=0).copy()
        for direction in self._directions(task.trainable):
            losses = [task.evaluate(moved, data, self.config).loss for moved in self._both_ways(w, direction)]
            slope = (losses[0] - losses[1]) / (2 * self.step)
            assert np.isclose(gradient @ direction, slope, rtol=self.tolerance, atol=self.tolerance * 0.1)

    def test_the_curvature_is_that_of_the_gradient(self) -> None:
        """Along a few directions it agrees with finite differences of the gradient."""
        task, data, w, rows = self._begun()
        with task.training(data, self.config, 0) as trainer:
            for direction in self._directions(task.trainable):
                product = trainer.curvature(w.copy(), direction, rows, key=0).copy()
                ahead, behind = (trainer.gradient(m, rows, key=0).copy() for m in self._both_ways(w, direction))
                gap = np.abs(product - (ahead - behind) / (2 * self.step)).max()
                assert gap <= self.tolerance * max(1.0, np.abs(product).max())

    def test_training_depends_on_its_seed_alone(self) -> None:
        task, data, w, rows = self._begun()
        runs = []
        for _ in range(2):
            with task.training(data, self.config, 7) as trainer:
                runs.append([trainer.gradient(w.copy(), rows).copy() for _ in range(3)])
        assert all(np.array_equal(a, b) for a, b in zip(*runs, strict=True))

    def test_a_step_is_that_of_sgd(self) -> None:
        """g += decay w;  velocity = momentum velocity + g;  w -= lr velocity; without momentum there is no velocity."""
        task = self.task()
        w, g, velocity = self._directions(task.trainable)
        with task.training(task.prepare(self.split()), self.config, 0) as trainer:
            for rates in (Rates(0.1, 0.5, 0.01), Rates(0.1, 0.0, 0.01), Rates(0.1)):
                stepped, moving = w.copy(), velocity.copy() if rates.momentum else None
                trainer.sgd(stepped, g.copy(), moving, rates)
                slope = g + np.float32(rates.decay) * w + np.float32(rates.momentum) * velocity
                assert np.allclose(stepped, w - np.float32(rates.lr) * slope, rtol=1e-4, atol=1e-6)
                assert moving is None or np.allclose(moving, slope, rtol=1e-4, atol=1e-6)

    def test_a_descent_is_step_after_step(self) -> None:
        """``descend`` is ``gradient`` and ``sgd`` on each batch in turn, but for rounding."""
        task, rates = self.task(), Rates(0.05, 0.5, 0.01)
        data, n = task.prepare(self.split()), task.trainable
        batches = np.array_split(np.arange(len(data)), 2) * 2
        whole, parts, velocity = task.initial(0), task.initial(0), np.zeros(n, np.float32)
        with task.training(data, self.config, 3) as trainer:
            trainer.descend(whole, iter(batches), rates)
        with task.training(data, self.config, 3) as trainer:
            for rows in batches:
                gradient = trainer.gradient(parts, rows)
                trainer.sgd(parts[:n], gradient, velocity, rates)
        assert np.allclose(whole, parts, rtol=1e-3, atol=1e-5)

    def test_a_trainer_turns_to_another_split(self) -> None:
        task, data, w, rows = self._begun()
        with task.training(data, self.config, 0) as trainer:
            first = trainer.gradient(w.copy(), rows, key=0).copy()
        with task.training(task.prepare(None), self.config, 0) as trainer:
            assert np.allclose(trainer.on(data).gradient(w.copy(), rows, key=0), first, rtol=1e-4, atol=1e-6)

    def test_its_engines_have_their_names(self) -> None:
        """The engine "auto" is one of the others, and always the same one."""
        task = self.task()
        assert task.engine("sequential").name == "sequential"
        assert task.engine("auto").name == self.task().engine("auto").name
        assert task.engine("auto").name in ENGINES

    def _begun(self) -> tuple[Task, Any, Any, Any]:
        """Return the task, a client's data, initial weights, and all rows of the data."""
        task = self.task()
        data = task.prepare(self.split())
        return task, data, task.initial(0), np.arange(len(data))

    def _both_ways(self, w: Any, direction: Any) -> list[Any]:
        """Return w moved by a step along a direction, and against it."""
        moved = np.zeros_like(w)
        moved[: direction.size] = self.step * direction
        return [w + moved, w - moved]

    def _directions(self, size: int) -> list[Any]:
        rng = np.random.default_rng(0)
        raw = [rng.standard_normal(size) for _ in range(3)]
        return [(v / np.linalg.norm(v)).astype(np.float32) for v in raw]
