"""Registers the operators with PyTorch: schemas, CPU and fake kernels, autocast, vmap, autograd.

The six schemas of the vendor's surface are those of its public documentation (CANN
ops-transformer, dense_lightning_indexer_* and sparse_flash_mla_softmax_l1_norm).
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kindling.torch import _autograd as autograd
from kindling.torch import _kernels as kernels
from kindling.torch import _shapes as shapes

VENDOR = "cann_ops_transformer"

_LENGTHS = (
    "Tensor? cu_seqlens_q=None, Tensor? cu_seqlens_k=None, Tensor? seqused_q=None, "
    "Tensor? seqused_k=None, Tensor? cmp_residual_k=None"
)
_PLAN = (
    "(int num_heads_q, int num_heads_k, int head_dim, *, " + _LENGTHS + ", {more}"
    "int? batch_size=None, int? max_seqlen_q=None, int? max_seqlen_k=None, str? layout_q=None, "
    "str? layout_k=None, int? mask_mode=None, int? cmp_ratio=None) -> Tensor"
)
_GRAD = (
    "(Tensor q, Tensor k, Tensor w, Tensor attn_softmax_l1_norm, Tensor softmax_lse, *, "
    + _LENGTHS
    + ', Tensor? metadata=None, {more}str layout_q="TND", str layout_k="TND", int mask_mode=3, '
    "int cmp_ratio=1) -> (Tensor dq, Tensor dk, Tensor dw, Tensor softmax_out{out})"
)
_ROWS = (
    "*, "
    + _LENGTHS
    + ', Tensor? metadata=None, str layout_q="BSND", str layout_k="BSND", int mask_mode=0, '
    "int cmp_ratio=1"
)
_LOSS = "(Tensor q, Tensor k, Tensor w, Tensor p, Tensor? lse, " + _ROWS + ', str reduction="sum")'


class Operator(NamedTuple):
    schema: str
    kernel: Callable[..., Any]
    fake: Callable[..., Any]


VENDOR_OPERATORS = {
    "dense_lightning_indexer_kl_loss_grad_metadata": Operator(
        _PLAN.format(more=""), kernels.kl_metadata, kernels.fake_metadata
    ),
    "dense_lightning_indexer_kl_loss_grad": Operator(
        _GRAD.format(more="", out=""), kernels.kl_loss_grad, kernels.fake_kl_loss_grad
    ),
    "dense_lightning_indexer_softmax_lse_metadata": Operator(
        _PLAN.format(more=""), kernels.lse_metadata, kernels.fake_metadata
    ),
    "dense_lightning_indexer_softmax_lse": Operator(
        f"(Tensor query_index, Tensor key_index, Tensor weight, {_ROWS}) -> Tensor",
        kernels.softmax_lse,
        kernels.fake_softmax_lse,
    ),
    "sparse_flash_mla_softmax_l1_norm_metadata": Operator(
        _PLAN.format(more="Tensor? topk_length=None, int? topk=None, "),
        kernels.teacher_metadata,
        kernels.fake_metadata,
    ),
    "sparse_flash_mla_softmax_l1_norm": Operator(
        "(Tensor q, Tensor k, Tensor softmax_lse, *, Tensor? sparse_indices=None, "
        + _LENGTHS
        + ", Tensor? topk_length=None, Tensor? metadata=None, float softmax_scale=1.0, "
        'int max_seqlen_k=0, str layout_q="BSND", str layout_k="BSND", int mask_mode=0, '
        "int cmp_ratio=1) -> Tensor",
        kernels.vendor_teacher,
        kernels.fake_vendor_teacher,
    ),
}

_OUR_OPERATORS = {
    "dense_lightning_indexer_kl_loss_grad_loss": Operator(
        _GRAD.format(more="Tensor? row_scale=None, ", out=", Tensor loss_rows"),
        kernels.kl_loss_grad_loss,
        kernels.fake_kl_loss_grad_loss,
    ),
    "attention_teacher": Operator(
        "(Tensor q, Tensor k, Tensor? lse, float softmax_scale=1.0, SymInt max_seqlen_k=0, "
        f"{_ROWS}) -> Tensor",
        kernels.teacher,
        kernels.fake_teacher,
    ),
    "indexer_kl_loss": Operator(
        _LOSS + " -> (Tensor loss, Tensor lse)",
        kernels.kl_loss,
        kernels.fake_kl_loss,
    ),
    "indexer_kl_loss_backward": Operator(
        f"(Tensor grad, Tensor q, Tensor k, Tensor w, Tensor p, Tensor lse, {_ROWS}, "
        'str reduction="sum") -> (Tensor dq, Tensor dk, Tensor dw)',
        kernels.kl_loss_backward,
        kernels.fake_kl_loss_backward,
    ),
    "indexer_kl_loss_with_grads": Operator(
        _LOSS + " -> (Tensor loss, Tensor dq, Tensor dk, Tensor dw)",
        kernels.kl_loss_with_grads,
        kernels.fake_kl_loss_with_grads,
    ),
}

# What messages call tensors that the vendor's schemas call otherwise.
_OUR_NAMES = {
    "query_index": "q",
    "key_index": "k",
    "weight": "w",
    "attn_softmax_l1_norm": "p",
    "softmax_lse": "lse",
}

# Under autocast: what is multiplied goes to the low precision, what is summed to fp32.
_LOW = {"q", "k", "query_index", "key_index"}
_WIDE = {"w", "weight", "p", "attn_softmax_l1_norm", "lse", "softmax_lse", "row_scale", "grad"}

_AUTOCAST = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)
_libraries: dict[str, torch.library.Library] = {}


def _autocast_rule(overload: torch._ops.OpOverload) -> Callable[..., Any]:
    arguments = [argument.name for argument in overload._schema.arguments]

    def cast(name: str, value: Any) -> Any:
        if not isinstance(value, Tensor) or not value.is_floating_point():
            return value
        if value.dtype == torch.float64:  # autocast leaves double alone
            return value
        if name in _LOW:
            return value.to(torch.get_autocast_dtype("cpu"))
        return value.to(torch.float32) if name in _WIDE else value

    def rule(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(_AUTOCAST):
            return overload(
                *(cast(name, value) for name, value in zip(arguments, args, strict=False)),
                **{name: cast(name, value) for name, value in kwargs.items()},
            )

    return rule


def _vmap_rule(name: str) -> Callable[..., Any]:
    def rule(*_: Any, **__: Any) -> Any:
        raise NotImplementedError(
            f"{name}: expected a call outside torch.func.vmap, got one inside; batches go into the "
            "first dim (BSND) or are packed (TND)"
        )

    return rule


def _on_one_device(fake: Callable[..., Any], schema: Any) -> Callable[..., Any]:
    names = [_OUR_NAMES.get(argument.name, argument.name) for argument in schema.arguments]

    def checked(*args: Any, **kwargs: Any) -> Any:
        shapes.check_devices({**dict(zip(names, args, strict=False)), **kwargs})
        return fake(*args, **kwargs)

    return checked


def _vendor_limits(name: str, kernel: Callable[..., Any]) -> Callable[..., Any]:
    """The vendor's own limits, which hold under its name only."""
    is_teacher = name.startswith("sparse_flash_mla")
    width = 512 if is_teacher else 128

    def limited(q: Tensor, k: Tensor, *args: Any, **kwargs: Any) -> Any:
        if q.dim() >= 2:
            if not 1 <= q.shape[-2] <= 128:
                raise ValueError(f"q: expected 1 to 128 heads, got {q.shape[-2]}")
            if q.shape[-1] != width:
                raise ValueError(f"q: expected a head width of {width}, got {q.shape[-1]}")
        if is_teacher and k.dim() >= 2 and k.shape[-2] != 1:
            raise ValueError(f"k: expected 1 key head, got {k.shape[-2]}")
        return kernel(q, k, *args, **kwargs)

    return limited


def _without_padded_sums(kernel: Callable[..., Any], schema: Any) -> Callable[..., Any]:
    """The vendor's operators ignore cu_seqlens of a BSND side, which the library refuses."""
    defaults = {argument.name: argument.default_value for argument in schema.arguments}

    def dropped(*args: Any, **kwargs: Any) -> Any:
        for side in ("q", "k"):
            layout = f"layout_{side}"
            if kwargs.get(layout, defaults[layout]) == "BSND":
                kwargs.pop(f"cu_seqlens_{side}", None)
        return kernel(*args, **kwargs)

    return dropped


def _register(namespace: str, name: str, operator: Operator) -> None:
    """Define what nobody has defined, and add the kernels that nobody has registered."""
    library = _libraries.get(namespace)
    if library is None:
        library = _libraries[namespace] = torch.library.Library(namespace, "FRAGMENT")
    qualified = f"{namespace}::{name}"
    is_ours = not torch._C._dispatch_has_kernel(qualified)
    if is_ours:
        library.define(name + operator.schema)

    def is_missing(key: str) -> bool:
        return not torch._C._dispatch_has_kernel_for_dispatch_key(qualified, key)

    takes_tensors = not name.endswith("_metadata")
    schema = getattr(getattr(torch.ops, namespace), name).default._schema
    kernel, fake = operator.kernel, operator.fake
    if namespace == VENDOR and takes_tensors:
        kernel = _without_padded_sums(_vendor_limits(name, kernel), schema)
        fake = _without_padded_sums(fake, schema)
    if is_missing("CompositeExplicitAutograd") and is_missing("CompositeImplicitAutograd"):
        if is_missing("CPU"):
            library.impl(name, kernel, "CPU")
        if not takes_tensors and is_missing("BackendSelect"):
            library.impl(name, kernel, "CompositeExplicitAutograd")
        if is_missing("Meta"):
            torch.library.register_fake(qualified, _on_one_device(fake, schema), lib=library)
    if takes_tensors:
        overload = getattr(getattr(torch.ops, namespace), name).default
        rules = {"AutocastCPU": _autocast_rule(overload)}
        if is_ours:  # these hold for other devices too
            rules["FuncTorchBatched"] = _vmap_rule(qualified)
        if name not in autograd.KERNELS:
            # Outputs that no gradient flows back from do not require any: they are new tensors.
            rules["Autograd" if is_ours else "AutogradCPU"] = torch.library.fallthrough_kernel
        for key, rule in rules.items():
            if is_missing(key):
                library.impl(name, rule, key)


def register_vendor_operators() -> None:
    """Register the six operators under ``torch.ops.cann_ops_transformer``, as far as they are not.

    Happens when ``kindling.torch`` is imported, except where the vendor's package is installed but
    not imported yet: its definitions come first, then call this.
    """
    for name, operator in VENDOR_OPERATORS.items():
        _register(VENDOR, name, operator)


def _register_all() -> None:
    for name, operator in (VENDOR_OPERATORS | _OUR_OPERATORS).items():
        _register("kindling", name, operator)
    for name, kernel in autograd.KERNELS.items():
        _libraries["kindling"].impl(name, kernel, "Autograd")
    if VENDOR in sys.modules or importlib.util.find_spec(VENDOR) is None:
        register_vendor_operators()


_register_all()
