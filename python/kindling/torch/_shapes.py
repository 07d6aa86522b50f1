"""What comes out of each operator, for real tensors and for fake ones alike.

Both kinds of kernels allocate here, so that they cannot disagree. Nothing here reads an element.
For arguments that fit no layout the results have some shape; what is wrong with them is for the
library to say, or for :func:`check`, which is all that a fake kernel can check.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def dense_like(tensor: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    return torch.empty_like(tensor, dtype=dtype, memory_format=torch.contiguous_format)


def rows_shape(q: Tensor, layout_q: str) -> tuple[int, ...]:
    """Shape of lse and of loss rows."""
    if layout_q == "TND" and q.dim() >= 1:
        return (1, q.shape[0])
    if layout_q == "BSND" and q.dim() >= 2:
        return (q.shape[0], 1, q.shape[1])
    return (0,)


def lse(q: Tensor, layout_q: str) -> Tensor:
    return q.new_empty(rows_shape(q, layout_q), dtype=torch.float32)


def metadata(device: torch.device | str = "cpu") -> Tensor:
    return torch.empty(64, dtype=torch.int32, device=device)


def teacher(q: Tensor, k: Tensor, layout_q: str, layout_k: str, max_seqlen_k: int) -> Tensor:
    """p. Its last dim must be known without reading lengths."""
    if layout_q == layout_k == "BSND":
        stride = k.shape[1]
    elif max_seqlen_k > 0:
        stride = max_seqlen_k
    else:
        raise ValueError(
            "max_seqlen_k: expected > 0 where a layout is TND, as the shape of p must not depend "
            f"on data, got {max_seqlen_k}"
        )
    return q.new_empty((*q.shape[:-2], 1, stride), dtype=torch.float32)


def grads(q: Tensor, k: Tensor, w: Tensor, wide: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """dq, dk and dw; the first two in fp32 if `wide`."""
    dtype = torch.float32 if wide else None
    return dense_like(q, dtype), dense_like(k, dtype), dense_like(w)


def loss(q: Tensor, layout_q: str, reduction: str) -> Tensor:
    shape = rows_shape(q, layout_q) if reduction == "none" else ()
    return q.new_empty(shape, dtype=torch.float32)


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


def check(q: Tensor, k: Tensor, layout_q: str, layout_k: str) -> None:
    """Refuse, without reading memory, what would make the shapes above meaningless."""
    for name, layout in (("layout_q", layout_q), ("layout_k", layout_k)):
        if layout not in ("BSND", "TND"):
            raise ValueError(f'{name}: expected "BSND" or "TND", got "{layout}"')
    for name, tensor, layout, shape in (
        ("q", q, layout_q, {"BSND": "(B, S1, N1, D)", "TND": "(T1, N1, D)"}),
        ("k", k, layout_k, {"BSND": "(B, S2, N2, D)", "TND": "(T2, N2, D)"}),
    ):
        if tensor.dim() != len(shape[layout].split()):
            raise ValueError(f"{name}: expected shape {shape[layout]}, got {tuple(tensor.shape)}")
    if q.dtype not in _DTYPES:
        raise TypeError(f"q: expected dtype bfloat16, float16 or float32, got {_word(q)}")
    if k.dtype != q.dtype:
        raise TypeError(f"k: expected dtype {_word(q)}, got {_word(k)}")


def check_float32(**tensors: Tensor | None) -> None:
    for name, tensor in tensors.items():
        if tensor is not None and tensor.dtype != torch.float32:
            raise TypeError(f"{name}: expected dtype float32, got {_word(tensor)}")


def _word(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
