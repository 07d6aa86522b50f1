"""The loss in double precision, as plain loops: what :mod:`kindling.torch` is tested against."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kindling import reference


class _KLLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, w: Tensor, p: Tensor, lengths: dict) -> Tensor:
        lse, loss_rows = reference.softmax_lse(q, k, w, p=p, **lengths)
        ctx.save_for_backward(q, k, w, p, lse)
        ctx.lengths = lengths
        return loss_rows

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple:
        grads = reference.kl_loss_grad(
            *ctx.saved_tensors, row_scale=grad, return_softmax=False, **ctx.lengths
        )
        inputs = ctx.saved_tensors[:3]
        return *(g.to(x.dtype) for g, x in zip(grads[:3], inputs, strict=True)), None, None


def indexer_kl_loss(
    q: Tensor, k: Tensor, w: Tensor, p: Tensor, *, reduction: str = "sum", **lengths: Any
) -> Tensor:
    """:func:`kindling.torch.indexer_kl_loss` in double, for torch.autograd.gradcheck.

    Parameters
    ----------
    q, k, w, p : Tensor
        As there, of any floating dtype; computed in float64.
    reduction : {"sum", "none"}
    **lengths
        The length tensors, layouts, mask_mode and cmp_ratio.

    Returns
    -------
    Tensor, float64
    """
    if reduction not in ("sum", "none"):
        raise ValueError(f'reduction: expected "sum" or "none", got "{reduction}"')
    loss_rows = _KLLoss.apply(q, k, w, p.detach(), lengths)
    return loss_rows.sum() if reduction == "sum" else loss_rows
