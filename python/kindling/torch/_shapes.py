"""What comes out of each operator, for real tensors and for fake ones alike.

Both kinds of kernels allocate here, so that they cannot disagree. Nothing here reads an element.
For arguments that fit no layout the results have some shape; what is wrong with them is for the
library to say, in :func:`describe` where there is no memory yet.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kindling import _core
from kindling import _schema as schema
from kindling._rows import DEFAULTS, TENSORS, RowArguments
from kindling._schema import lse_shape, teacher_width


def dense_like(tensor: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    return torch.empty_like(tensor, dtype=dtype, memory_format=torch.contiguous_format)


def lse(q: Tensor, rows: RowArguments) -> Tensor:
    """lse, or loss rows."""
    return q.new_empty(lse_shape(q.shape, rows["layout_q"]), dtype=torch.float32)


def metadata(device: torch.device | str = "cpu") -> Tensor:
    return torch.empty(64, dtype=torch.int32, device=device)


def teacher(q: Tensor, k: Tensor, rows: RowArguments, max_seqlen_k: int) -> Tensor:
    """p. Its last dim must be known without reading lengths."""
    stride = teacher_width(k.shape, rows, max_seqlen_k)
    return q.new_empty((*q.shape[:-2], 1, stride), dtype=torch.float32)


def grads(q: Tensor, k: Tensor, w: Tensor, wide: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """dq, dk and dw; the first two in fp32 if `wide`."""
    dtype = torch.float32 if wide else None
    return dense_like(q, dtype), dense_like(k, dtype), dense_like(w)


def loss(q: Tensor, rows: RowArguments, reduction: str) -> Tensor:
    return lse(q, rows) if reduction == "none" else q.new_empty((), dtype=torch.float32)


def check_devices(tensors: dict[str, Any]) -> None:
    """The arguments of a call, of which the tensors lie on one device.

    Fake kernels are called where any tensor is on the meta device, and must not answer for those
    that are not. Lengths may be real where everything else has no memory.
    """
    device = None
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            continue
        device = device or tensor.device
        is_real_length = device.type == "meta" and not tensor.is_floating_point()
        if tensor.device != device and not is_real_length:
            raise ValueError(f"{name}: expected a tensor on {device}, got one on {tensor.device}")


def describe(operator: str, rows: RowArguments, **own: Any) -> None:
    """Refuse, without reading memory, what the library would refuse whatever the lengths are.

    Nothing is asked of tensors whose extents only a running program knows.
    """
    named = {**DEFAULTS, **rows}
    views = {name: _view_of(name, value) for name, value in own.items()}
    for name in TENSORS:
        views[name] = _view_of(name, named.pop(name))
    if any(view is _UNKNOWN for view in views.values()):
        return
    described = {**named, **{name: views.pop(name) for name in TENSORS}}
    getattr(_core, f"describe_{operator}")({**schema.own(operator), **views}, described)


_UNKNOWN = object()


def _view_of(name: str, value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    extents = [_extent(extent) for extent in value.shape]
    if None in extents:
        return _UNKNOWN
    return _core.described_view(name, tuple(extents), word(value.dtype))


def _extent(extent: Any) -> int | None:
    """A number; of a symbol the one that it stands for while tracing, if any.

    Unlike ``int(extent)`` this does not make the traced program hold for that number only.
    """
    if isinstance(extent, torch.SymInt):
        node = extent.node
        return int(node.hint) if node.has_hint() else None
    return int(extent)


def word(dtype: torch.dtype) -> str:
    """What messages call a dtype."""
    return str(dtype).removeprefix("torch.")
