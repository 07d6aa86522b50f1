"""Derivatives of the loss operators, for the dispatcher's autograd key.

torch.library.register_autograd would do as well, but its wrapper spends 100 us on an operator of
sixteen arguments (torch 2.13). What is no input of a derivative goes through as one dict by name.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad


def _no_grads(ctx: Any) -> tuple[None, ...]:
    """For all arguments but q, k and w, which come first."""
    return (None,) * (len(ctx.needs_input_grad) - 3)


def _is_recorded() -> bool:
    """Whether a derivative of what is computed now may be asked for, in either mode."""
    return torch.is_grad_enabled() or forward_ad._current_level >= 0


class KLLoss(torch.autograd.Function):
    """The backward pass calls the gradient operator once, with what comes in as row_scale."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, w: Tensor, p: Tensor, lse: Any, options: dict[str, Any]
    ) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            loss, own_lse = torch.ops.kindling.indexer_kl_loss(q, k, w, p, lse, **options)
        tensors = {name: value for name, value in options.items() if isinstance(value, Tensor)}
        lse = own_lse if lse is None else lse
        ctx.save_for_backward(q, k, w, p, lse, *tensors.values())
        ctx.tensor_names = tuple(tensors)
        ctx.others = {name: value for name, value in options.items() if name not in tensors}
        ctx.mark_non_differentiable(own_lse)
        ctx.set_materialize_grads(False)
        return loss, own_lse

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, _: None) -> tuple:
        if grad is None:
            return None, None, None, *_no_grads(ctx)
        q, k, w, p, lse, *tensors = ctx.saved_tensors
        options = {**dict(zip(ctx.tensor_names, tensors, strict=True)), **ctx.others}
        with contextlib.nullcontext() if _is_recorded() else torch._C._AutoDispatchBelowAutograd():
            grads = torch.ops.kindling.indexer_kl_loss_backward(grad, q, k, w, p, lse, **options)
        return *grads, *_no_grads(ctx)


class KLLossWithGrads(torch.autograd.Function):
    """The forward pass has computed the gradients already."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, *inputs: Any) -> Any:
        *inputs, options = inputs
        with torch._C._AutoDispatchBelowAutograd():
            loss, *grads = torch.ops.kindling.indexer_kl_loss_with_grads(q, *inputs, **options)
        ctx.save_for_backward(*grads)
        ctx.dtype = q.dtype
        ctx.mark_non_differentiable(*grads)
        ctx.set_materialize_grads(False)
        return loss, *grads

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, *_: None) -> tuple:
        if grad is None:
            return None, None, None, *_no_grads(ctx)
        if torch.is_grad_enabled():  # create_graph: what comes out would pass for a constant
            raise NotImplementedError(
                "indexer_kl_loss: expected no create_graph with grads_in_forward=True, as it can "
                "be differentiated once, got one"
            )
        dq, dk, dw = ctx.saved_tensors
        return (grad * dq).to(ctx.dtype), (grad * dk).to(ctx.dtype), grad * dw, *_no_grads(ctx)


class KLLossBackward(torch.autograd.Function):
    """Second derivatives are refused where they are asked for, not when the graph is built."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Any:
        *inputs, options = inputs
        with torch._C._AutoDispatchBelowAutograd():
            return torch.ops.kindling.indexer_kl_loss_backward(*inputs, **options)

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise NotImplementedError(
            "indexer_kl_loss: expected to be differentiated once, got a second derivative"
        )


def _with_options_last(function: type[torch.autograd.Function]) -> Callable[..., Any]:
    """`apply` takes no keywords."""

    def kernel(*inputs: Any, **options: Any) -> Any:
        return function.apply(*inputs, options)

    return kernel


KERNELS = {
    "indexer_kl_loss": _with_options_last(KLLoss),
    "indexer_kl_loss_with_grads": _with_options_last(KLLossWithGrads),
    "indexer_kl_loss_backward": _with_options_last(KLLossBackward),
}
