"""Derivatives of the loss operators, for the dispatcher's autograd key.

torch.library.register_autograd would do as well, but its wrapper spends 100 us on an operator of
sixteen arguments (torch 2.13).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_NUM_ARGUMENTS = 16  # of indexer_kl_loss and indexer_kl_loss_with_grads: q, k, w, then the others
_NO_GRADS = (None,) * (_NUM_ARGUMENTS - 3)


class KLLoss(torch.autograd.Function):
    """The backward pass calls the gradient operator once, with what comes in as row_scale."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, w: Tensor, p: Tensor, lse: Any, *rest: Any) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            loss, own_lse = torch.ops.kindling.indexer_kl_loss(q, k, w, p, lse, *rest)
        ctx.save_for_backward(q, k, w, p, own_lse if lse is None else lse, *rest[:6])
        ctx.attributes = rest[6:]
        ctx.mark_non_differentiable(own_lse)
        ctx.set_materialize_grads(False)
        return loss, own_lse

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, _: None) -> tuple:
        if grad is None:
            return None, None, None, *_NO_GRADS
        inputs = (*ctx.saved_tensors, *ctx.attributes)
        return *torch.ops.kindling.indexer_kl_loss_backward(grad, *inputs), *_NO_GRADS


class KLLossWithGrads(torch.autograd.Function):
    """The forward pass has computed the gradients already."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, *rest: Any) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            loss, *grads = torch.ops.kindling.indexer_kl_loss_with_grads(q, *rest)
        ctx.save_for_backward(*grads)
        ctx.dtype = q.dtype
        ctx.mark_non_differentiable(*grads)
        ctx.set_materialize_grads(False)
        return loss, *grads

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, *_: None) -> tuple:
        if grad is None:
            return None, None, None, *_NO_GRADS
        if torch.is_grad_enabled():  # create_graph: what comes out would pass for a constant
            raise NotImplementedError(
                "indexer_kl_loss: expected no create_graph with grads_in_forward=True, as it can "
                "be differentiated once, got one"
            )
        dq, dk, dw = ctx.saved_tensors
        return (grad * dq).to(ctx.dtype), (grad * dk).to(ctx.dtype), grad * dw, *_NO_GRADS


class KLLossBackward(torch.autograd.Function):
    """Second derivatives are refused where they are asked for, not when the graph is built."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            return torch.ops.kindling.indexer_kl_loss_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise NotImplementedError(
            "indexer_kl_loss: expected to be differentiated once, got a second derivative"
        )


FUNCTIONS = {
    "indexer_kl_loss": KLLoss,
    "indexer_kl_loss_with_grads": KLLossWithGrads,
    "indexer_kl_loss_backward": KLLossBackward,
}
