"""From the number of an arm to its hyperparameters."""

from __future__ import annotations

from collections.abc import Callable

from fedtuner.arm import Arm
from fedtuner.fedex import FedEx
from fedtuner.methods.base import Method, defaults
from fedtuner.rng import stream
from fedtuner.space import Space, draw, near

Sampler = Callable[[int], Arm]


def local(space: Space, method: Method, settings: FedEx, seed: int) -> Sampler:
    """Return the paper's sampler: b and c_1 uniform, c_2..c_k from the eps-neighbourhood of c_1.

    An arm's b and c_1 do not depend on k, so a study with FedEx and one without it meet the same arms. Hyperparameters
    that the space does not name keep the method's defaults; a model keeps its own.
    """
    fixed = defaults(method.client)

    def arm(id: int) -> Arm:
        centre = draw(space.client, stream(seed, "arm", id, "client"))
        others = (
            near(space.client, centre, settings.eps, stream(seed, "arm", id, "candidate", j))
            for j in range(1, settings.k)
        )
        server = defaults(method.server) | draw(space.server, stream(seed, "arm", id, "server"))
        gamma = float(stream(seed, "arm", id, "gamma").random()) if settings.gamma is None else settings.gamma
        return Arm(id, server, tuple(fixed | c for c in (centre, *others)), gamma)

    return arm
