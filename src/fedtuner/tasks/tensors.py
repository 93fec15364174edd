"""A module's tensors as views of one flat vector, a step of SGD on them, and threads and generators put back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from fedtuner.core.model import Part, Rates
from fedtuner.errors import TaskError


def parts(module: nn.Module) -> list[tuple[Part, Tensor]]:
    """Return what makes up w: parameters that train, those that do not, and buffers of real numbers."""
    kernels = {id(m.weight) for m in module.modules() if isinstance(m, nn.Conv2d)}
    return [(_part(name, tensor, id(tensor) in kernels), tensor) for name, tensor in named(module)]


def named(module: nn.Module) -> list[tuple[str, Tensor]]:
    """Return the same tensors with their full names."""
    parameters = list(module.named_parameters())
    return [
        *((n, p) for n, p in parameters if p.requires_grad),
        *((n, p) for n, p in parameters if not p.requires_grad),
        *((n, b) for n, b in module.named_buffers() if b.is_floating_point()),
    ]


def check_apart(one: nn.Module, other: nn.Module) -> None:
    """Refuse two modules that share the memory of something that is part of w."""
    held = {tensor.untyped_storage().data_ptr() for _, tensor in named(one) if tensor.numel()}
    for name, tensor in named(other):
        if tensor.numel() and tensor.untyped_storage().data_ptr() in held:
            raise TaskError(
                f"build() gave two modules that share the memory of {name!r}, but must make a new module at each call: "
                "build it inside the function, or return copy.deepcopy(model)"
            )


def _part(name: str, tensor: Tensor, kernel: bool) -> Part:
    if not kernel:
        return Part(name, tuple(tensor.shape))
    out, into, height, width = tensor.shape
    return Part(name, (out, height, width, into), (0, 3, 1, 2))


def in_order(part: Part, tensor: Tensor) -> Tensor:
    """Return a tensor with its entries as w has them, without gaps: fused steps read memory as it lies."""
    return (tensor.permute(0, 2, 3, 1) if part.axes else tensor).contiguous()


def joined(parts: Iterable[Part], tensors: Iterable[Tensor], out: Tensor | None = None) -> Tensor:
    """Return tensors as one row in w's order."""
    return torch.cat([in_order(part, tensor).view(-1) for part, tensor in zip(parts, tensors, strict=True)], out=out)


def stored(flat: Tensor, parts: Sequence[Part]) -> list[Tensor]:
    """Return views of ``flat`` as the parts are stored."""
    pieces = torch.split_with_sizes(flat, [part.size for part in parts])
    return [piece.view(part.shape) for piece, part in zip(pieces, parts, strict=True)]


def split(flat: Tensor, parts: Sequence[Part]) -> list[Tensor]:
    """Return views of ``flat`` as the module has its tensors."""
    views = zip(parts, stored(flat, parts), strict=True)
    return [view.permute(part.axes) if part.axes else view for part, view in views]


def take(x: Tensor, rows: Tensor) -> Tensor:
    """Return rows of x; of images that are stored channels last, without touching their order."""
    if x.ndim == 4 and x.stride(1) == 1:
        return x.permute(0, 2, 3, 1).index_select(0, rows).permute(0, 3, 1, 2)
    return x.index_select(0, rows)


def sgd(weights: Sequence[Tensor], gradients: Sequence[Tensor], velocities: Sequence[Tensor], rates: Rates) -> None:
    """Step in place, in one pass over the vectors: what torch.optim.SGD(fused=True) calls."""
    torch._fused_sgd_(
        list(weights), list(gradients), list(velocities), lr=rates.lr, momentum=rates.momentum,
        weight_decay=rates.decay, dampening=0.0, nesterov=False, maximize=False, is_first_step=False,
    )  # fmt: skip


@contextmanager
def own_generator(device: torch.device) -> Iterator[None]:
    """Leave torch's generators as they were."""
    before = torch.default_generator.get_state()
    there = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    try:
        yield
    finally:
        torch.default_generator.set_state(before)
        if there is not None:
            torch.cuda.set_rng_state(there, device)


def aligned(tensor: Tensor) -> Tensor:
    """Return a tensor that begins at a multiple of 16 bytes: kernels round differently on others."""
    return tensor if tensor.data_ptr() % 16 == 0 else tensor.clone()


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one thread."""
    before = torch.get_num_threads()
    if before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
