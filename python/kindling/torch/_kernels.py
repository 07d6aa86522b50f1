"""CPU and fake kernels of the operators. Arguments are those of the schemas in :mod:`._ops`.

The dispatcher leaves out keyword arguments that have their default, so `options` holds the others.
Messages call tensors by the library's names: q, k, w, p, lse.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kindling import _core
from kindling._operators import make_metadata
from kindling._rows import DEFAULTS, RowArguments
from kindling._schema import lse_shape
from kindling.torch import _records as records
from kindling.torch import _shapes as shapes

_GRAD_DEFAULTS: RowArguments = {  # type: ignore[assignment]
    **DEFAULTS,
    "layout_q": "TND",
    "layout_k": "TND",
    "mask_mode": 3,
}
"""Those of the vendor's gradient operators."""


# Metadata.


def kl_metadata(num_heads_q: int, num_heads_k: int, head_dim: int, **options: Any) -> Tensor:
    given = {name: value for name, value in options.items() if value is not None}
    return make_metadata(num_heads_q, num_heads_k, head_dim, **given, out=shapes.metadata())


def lse_metadata(num_heads_q: int, num_heads_k: int, head_dim: int, **options: Any) -> Tensor:
    record = kl_metadata(num_heads_q, num_heads_k, head_dim, **options)
    return _rewrite(record, records.lse_words)


def teacher_metadata(num_heads_q: int, num_heads_k: int, head_dim: int, **options: Any) -> Tensor:
    _refuse_sparse(
        topk_length=options.pop("topk_length", None), topk=options.pop("topk", 0) or None
    )
    # The same checks in the same order, with another head width.
    if 1 <= num_heads_q <= 128 and num_heads_k == 1:
        if head_dim != 512:
            raise ValueError(f"head_dim: expected 512, got {head_dim}")
        head_dim = 128
    record = kl_metadata(num_heads_q, num_heads_k, head_dim, **options)
    return _rewrite(record, records.teacher_words)


def fake_metadata(*_: Any, **options: Any) -> Tensor:
    given = [value.device for value in options.values() if isinstance(value, Tensor)]
    return shapes.metadata(given[0] if given else "cpu")


def _rewrite(record: Tensor, words: Callable[[int, int], list[int]]) -> Tensor:
    num_rows = int(record[0])
    if num_rows == 0:
        return record.zero_()
    return records.write(record, words(num_rows, records.num_cores_of(record)))


def _refuse_sparse(**features: Any) -> None:
    for name, value in features.items():
        if value is not None and not (isinstance(value, Tensor) and value.numel() == 0):
            raise NotImplementedError(f"{name}: expected none, as keys are dense here, got one")


# The student. `options` are row arguments, which the library knows by name.


def softmax_lse(
    q: Tensor, k: Tensor, w: Tensor, *, metadata: Tensor | None = None, **options: Any
) -> Tensor:
    record = records.lse_record_as_kl(metadata)
    return _lse(q, k, w, {**DEFAULTS, **options, "metadata": record})


def fake_softmax_lse(q: Tensor, k: Tensor, w: Tensor, **options: Any) -> Tensor:
    rows = {**DEFAULTS, **options}
    shapes.describe("softmax_lse", rows, q=q, k=k, w=w)
    return shapes.lse(q, rows)


def _lse(
    q: Tensor,
    k: Tensor,
    w: Tensor,
    rows: RowArguments,
    p: Tensor | None = None,
    loss_rows: Tensor | None = None,
) -> Tensor:
    lse = shapes.lse(q, rows)
    own = {"q": q, "k": k, "w": w, "p": p, "lse": lse, "loss_rows": loss_rows}
    _core.softmax_lse(own, rows, None)
    return lse


def kl_loss_grad(
    q: Tensor, k: Tensor, w: Tensor, p: Tensor, lse: Tensor, **options: Any
) -> tuple[Tensor, ...]:
    softmax_out = shapes.dense_like(p)
    rows = {**_GRAD_DEFAULTS, **options}
    return *_grads(q, k, w, p, lse, rows, softmax_out=softmax_out), softmax_out


def fake_kl_loss_grad(
    q: Tensor, k: Tensor, w: Tensor, p: Tensor, lse: Tensor, **options: Any
) -> tuple[Tensor, ...]:
    rows = {**_GRAD_DEFAULTS, **options}
    shapes.describe("kl_loss_grad", rows, q=q, k=k, w=w, p=p, lse=lse)
    return *shapes.grads(q, k, w), shapes.dense_like(p)


def kl_loss_grad_loss(
    q: Tensor,
    k: Tensor,
    w: Tensor,
    p: Tensor,
    lse: Tensor,
    *,
    row_scale: Tensor | None = None,
    **options: Any,
) -> tuple[Tensor, ...]:
    rows = {**_GRAD_DEFAULTS, **options}
    outputs = {"softmax_out": shapes.dense_like(p), "loss_rows": shapes.lse(q, rows)}
    grads = _grads(q, k, w, p, lse, rows, row_scale, **outputs)
    return *grads, *outputs.values()


def fake_kl_loss_grad_loss(
    q: Tensor,
    k: Tensor,
    w: Tensor,
    p: Tensor,
    lse: Tensor,
    *,
    row_scale: Tensor | None = None,
    **options: Any,
) -> tuple[Tensor, ...]:
    rows = {**_GRAD_DEFAULTS, **options}
    shapes.describe("kl_loss_grad", rows, q=q, k=k, w=w, p=p, lse=lse, row_scale=row_scale)
    return *shapes.grads(q, k, w), shapes.dense_like(p), shapes.lse(q, rows)


def _grads(
    q: Tensor,
    k: Tensor,
    w: Tensor,
    p: Tensor,
    lse: Tensor,
    rows: RowArguments,
    row_scale: Tensor | None = None,
    *,
    softmax_out: Tensor | None = None,
    loss_rows: Tensor | None = None,
    wide: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    dq, dk, dw = shapes.grads(q, k, w, wide)
    own = {
        "q": q,
        "k": k,
        "w": w,
        "p": p,
        "lse": lse,
        "row_scale": row_scale,
        "dq": dq,
        "dk": dk,
        "dw": dw,
        "softmax_out": softmax_out,
        "loss_rows": loss_rows,
    }
    _core.kl_loss_grad(own, rows, None)
    return dq, dk, dw


# The teacher.


def vendor_teacher(
    q: Tensor,
    k: Tensor,
    lse: Tensor,
    *,
    sparse_indices: Tensor | None = None,
    topk_length: Tensor | None = None,
    metadata: Tensor | None = None,
    **options: Any,
) -> Tensor:
    _refuse_sparse(sparse_indices=sparse_indices, topk_length=topk_length)
    return teacher(q, k, lse, metadata=records.teacher_record_as_kl(metadata), **options)


def fake_vendor_teacher(
    q: Tensor,
    k: Tensor,
    lse: Tensor,
    *,
    sparse_indices: Tensor | None = None,
    topk_length: Tensor | None = None,
    **options: Any,
) -> Tensor:
    return fake_teacher(q, k, lse, **options)


def teacher(
    q: Tensor,
    k: Tensor,
    lse: Tensor | None,
    softmax_scale: float = 1.0,
    max_seqlen_k: int = 0,
    **options: Any,
) -> Tensor:
    rows = {**DEFAULTS, **options}
    own = {"q": q, "k": k, "lse": lse, "softmax_scale": softmax_scale, "p": None}
    try:
        if max_seqlen_k < 0:
            raise ValueError(f"max_seqlen_k: expected >= 0, got {max_seqlen_k}")
        p = shapes.teacher(q, k, rows, max_seqlen_k)
        _core.attention_teacher({**own, "p": p}, rows, None)
        return p
    except Exception as error:
        failure = error
    # What is wrong with an argument comes before what that makes of p.
    _core.teacher_stride(own, rows, max_seqlen_k)
    raise failure


def fake_teacher(
    q: Tensor,
    k: Tensor,
    lse: Tensor | None,
    softmax_scale: float = 1.0,
    max_seqlen_k: int = 0,
    **options: Any,
) -> Tensor:
    rows = {**DEFAULTS, **options}
    shapes.describe("attention_teacher", rows, q=q, k=k, lse=lse, softmax_scale=softmax_scale)
    return shapes.teacher(q, k, rows, max_seqlen_k)


# The differentiable loss.


def kl_loss(
    q: Tensor,
    k: Tensor,
    w: Tensor,
    p: Tensor,
    lse: Tensor | None,
    *,
    reduction: str = "sum",
    **options: Any,
) -> tuple[Tensor, Tensor]:
    rows = {**DEFAULTS, **options}
    loss_rows = shapes.lse(q, rows)
    own_lse = _lse(q, k, w, rows, p, loss_rows)
    if lse is not None and not _same_lse(lse, own_lse):
        # Somebody else's lse: the loss that belongs to it comes with the gradients only.
        _grads(q, k, w, p, lse, rows, loss_rows=loss_rows)
    return _reduce(loss_rows, q, rows, reduction), own_lse


def _same_lse(lse: Tensor, own: Tensor) -> bool:
    """Whether they agree where a row sees keys; elsewhere own is -inf and lse is not to be read."""
    if lse.shape != own.shape or lse.dtype != own.dtype:
        return False  # for the library to refuse
    seen = own != -torch.inf
    return torch.equal(lse[seen], own[seen])


def fake_kl_loss(
    q: Tensor,
    k: Tensor,
    w: Tensor,
    p: Tensor,
    lse: Tensor | None,
    *,
    reduction: str = "sum",
    **options: Any,
) -> tuple[Tensor, Tensor]:
    rows = {**DEFAULTS, **options}
    own_lse = shapes.lse(q, rows)
    given = own_lse if lse is None else lse
    shapes.describe("kl_loss_grad", rows, q=q, k=k, w=w, p=p, lse=given)
    return shapes.loss(q, rows, reduction), own_lse


def kl_loss_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    w: Tensor,
    p: Tensor,
    lse: Tensor,
    *,
    reduction: str = "sum",
    **options: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    rows = {**DEFAULTS, **options}
    if reduction == "mean":
        grad = grad / _num_rows(q, rows)
    row_scale = grad.expand(lse_shape(q.shape, rows["layout_q"]))
    return _grads(q, k, w, p, lse, rows, row_scale)


def fake_kl_loss_backward(
    grad: Tensor, q: Tensor, k: Tensor, w: Tensor, *_: Any, **__: Any
) -> tuple[Tensor, Tensor, Tensor]:
    return shapes.grads(q, k, w)


def kl_loss_with_grads(
    q: Tensor,
    k: Tensor,
    w: Tensor,
    p: Tensor,
    lse: Tensor | None,
    *,
    reduction: str = "sum",
    **options: Any,
) -> tuple[Tensor, ...]:
    rows = {**DEFAULTS, **options}
    if lse is None:
        lse = _lse(q, k, w, rows)
    loss_rows = shapes.lse(q, rows)
    grads = _grads(q, k, w, p, lse, rows, loss_rows=loss_rows, wide=True)
    if reduction == "mean":
        for grad in grads:
            grad.div_(_num_rows(q, rows))
    return _reduce(loss_rows, q, rows, reduction), *grads


def fake_kl_loss_with_grads(
    q: Tensor, k: Tensor, w: Tensor, p: Tensor, lse: Tensor | None, **options: Any
) -> tuple[Tensor, ...]:
    loss, _ = fake_kl_loss(q, k, w, p, lse, **options)
    return loss, *shapes.grads(q, k, w, True)


def _num_rows(q: Tensor, rows: RowArguments) -> int:
    """Used rows of arguments that the library has accepted, but 1 where there are none."""
    cu_seqlens_q, seqused_q = rows["cu_seqlens_q"], rows["seqused_q"]
    if seqused_q is not None and seqused_q.numel() > 0:
        num_rows = int(seqused_q.sum())
    elif rows["layout_q"] == "TND":
        num_rows = int(cu_seqlens_q[-1])
    else:
        num_rows = q.shape[0] * q.shape[1]
    return max(num_rows, 1)


def _reduce(loss_rows: Tensor, q: Tensor, rows: RowArguments, reduction: str) -> Tensor:
    if reduction == "none":
        return loss_rows
    total = _core.total_loss(_core.View(loss_rows, "loss_rows"))
    if reduction == "mean":
        total /= _num_rows(q, rows)
    return torch.tensor(total, dtype=torch.float32)
