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
from kindling.torch import _records as records
from kindling.torch import _shapes as shapes

View = _core.View


def _view(tensor: Tensor | None, name: str) -> View | None:
    return None if tensor is None else View(tensor, name)


def _out(tensor: Tensor | None, name: str) -> View | None:
    return None if tensor is None else View(tensor, name, True)


def _shared(options: dict[str, Any], layout: str = "BSND", mask_mode: int = 0) -> _core.Shared:
    """What the library calls `shared`, from keyword arguments and these defaults."""
    get = options.get
    return (
        get("cu_seqlens_q"),
        get("cu_seqlens_k"),
        get("seqused_q"),
        get("seqused_k"),
        get("cmp_residual_k"),
        get("layout_q", layout),
        get("layout_k", layout),
        get("mask_mode", mask_mode),
        get("cmp_ratio", 1),
    )


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


# The student.


def softmax_lse(q: Tensor, k: Tensor, w: Tensor, **options: Any) -> Tensor:
    record = records.lse_record_as_kl(options.get("metadata"))
    return _lse(q, k, w, record, _shared(options))


def fake_softmax_lse(
    q: Tensor, k: Tensor, w: Tensor, *, layout_q: str = "BSND", layout_k: str = "BSND", **_: Any
) -> Tensor:
    shapes.check(q, k, layout_q, layout_k)
    shapes.check_float32(w=w)
    return shapes.lse(q, layout_q)


def _lse(
    q: Tensor,
    k: Tensor,
    w: Tensor,
    metadata: Tensor | None,
    shared: _core.Shared,
    p: Tensor | None = None,
    loss_rows: Tensor | None = None,
) -> Tensor:
    lse = shapes.lse(q, shared[5])
    _core.softmax_lse(
        View(q, "q"),
        View(k, "k"),
        View(w, "w"),
        _view(p, "p"),
        _view(metadata, "metadata"),
        shared,
        None,
        _out(lse, "lse"),
        _out(loss_rows, "loss_rows"),
    )
    return lse


def kl_loss_grad(
    q: Tensor, k: Tensor, w: Tensor, p: Tensor, lse: Tensor, **options: Any
) -> tuple[Tensor, ...]:
    shared = _shared(options, "TND", 3)
    softmax_out = shapes.dense_like(p)
    grads = _grads(q, k, w, p, lse, options.get("metadata"), shared, softmax_out=softmax_out)
    return *grads, softmax_out


def fake_kl_loss_grad(
    q: Tensor,
    k: Tensor,
    w: Tensor,
    p: Tensor,
    lse: Tensor,
    *,
    layout_q: str = "TND",
    layout_k: str = "TND",
    **_: Any,
) -> tuple[Tensor, ...]:
    shapes.check(q, k, layout_q, layout_k)
    shapes.check_float32(w=w, p=p, lse=lse)
    return *shapes.grads(q, k, w), shapes.dense_like(p)


def kl_loss_grad_loss(
    q: Tensor, k: Tensor, w: Tensor, p: Tensor, lse: Tensor, **options: Any
) -> tuple[Tensor, ...]:
    shared = _shared(options, "TND", 3)
    outputs = {"softmax_out": shapes.dense_like(p), "loss_rows": shapes.lse(q, shared[5])}
    row_scale = options.get("row_scale")
    grads = _grads(q, k, w, p, lse, options.get("metadata"), shared, row_scale, **outputs)
    return *grads, *outputs.values()


def fake_kl_loss_grad_loss(
    *inputs: Tensor, row_scale: Tensor | None = None, **options: Any
) -> tuple[Tensor, ...]:
    shapes.check_float32(row_scale=row_scale)
    grads = fake_kl_loss_grad(*inputs, **options)
    return *grads, shapes.lse(inputs[0], options.get("layout_q", "TND"))


def _grads(
    q: Tensor,
    k: Tensor,
    w: Tensor,
    p: Tensor,
    lse: Tensor,
    metadata: Tensor | None,
    shared: _core.Shared,
    row_scale: Tensor | None = None,
    *,
    softmax_out: Tensor | None = None,
    loss_rows: Tensor | None = None,
    wide: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    dq, dk, dw = shapes.grads(q, k, w, wide)
    _core.kl_loss_grad(
        View(q, "q"),
        View(k, "k"),
        View(w, "w"),
        View(p, "p"),
        View(lse, "lse"),
        _view(row_scale, "row_scale"),
        _view(metadata, "metadata"),
        shared,
        None,
        _out(dq, "dq"),
        _out(dk, "dk"),
        _out(dw, "dw"),
        _out(softmax_out, "softmax_out"),
        _out(loss_rows, "loss_rows"),
    )
    return dq, dk, dw


# The teacher.


def vendor_teacher(q: Tensor, k: Tensor, lse: Tensor, **options: Any) -> Tensor:
    _refuse_sparse(
        sparse_indices=options.get("sparse_indices"), topk_length=options.get("topk_length")
    )
    record = records.teacher_record_as_kl(options.get("metadata"))
    scale, max_seqlen_k = options.get("softmax_scale", 1.0), options.get("max_seqlen_k", 0)
    return _teacher(q, k, lse, record, _shared(options), scale, max_seqlen_k)


def fake_vendor_teacher(q: Tensor, k: Tensor, lse: Tensor, **options: Any) -> Tensor:
    return _fake_teacher(q, k, lse, _shared(options), options.get("max_seqlen_k", 0))


def teacher(q: Tensor, k: Tensor, lse: Tensor | None, *rest: Any) -> Tensor:
    *rows, softmax_scale, max_seqlen_k = rest
    return _teacher(q, k, lse, rows[5], _without_metadata(rows), softmax_scale, max_seqlen_k)


def fake_teacher(q: Tensor, k: Tensor, lse: Tensor | None, *rest: Any) -> Tensor:
    *rows, _, max_seqlen_k = rest
    return _fake_teacher(q, k, lse, _without_metadata(rows), max_seqlen_k)


def _teacher(
    q: Tensor,
    k: Tensor,
    lse: Tensor | None,
    metadata: Tensor | None,
    shared: _core.Shared,
    softmax_scale: float,
    max_seqlen_k: int,
) -> Tensor:
    views = View(q, "q"), View(k, "k"), _view(lse, "lse"), _view(metadata, "metadata")
    inputs = (*views, shared, softmax_scale)
    _core.teacher_stride(*inputs, max_seqlen_k)  # checks the arguments
    p = shapes.teacher(q, k, shared[5], shared[6], max_seqlen_k)
    _core.attention_l1_norm(*inputs, None, _out(p, "p"))
    return p


def _fake_teacher(
    q: Tensor, k: Tensor, lse: Tensor | None, shared: _core.Shared, max_seqlen_k: int
) -> Tensor:
    shapes.check(q, k, shared[5], shared[6])
    shapes.check_float32(lse=lse)
    return shapes.teacher(q, k, shared[5], shared[6], max_seqlen_k)


# The differentiable loss. `rest` is the schema's tail: lengths, metadata, layouts, mask, ratio,
# reduction.


def kl_loss(
    q: Tensor, k: Tensor, w: Tensor, p: Tensor, lse: Tensor | None, *rest: Any
) -> tuple[Tensor, Tensor]:
    *rows, reduction = rest
    shared = _without_metadata(rows)
    loss_rows = shapes.lse(q, shared[5])
    own_lse = _lse(q, k, w, rows[5], shared, p, loss_rows)
    if lse is not None and not _same_lse(lse, own_lse):
        # Somebody else's lse: the loss that belongs to it comes with the gradients only.
        _grads(q, k, w, p, lse, rows[5], shared, loss_rows=loss_rows)
    return _reduce(loss_rows, q, shared, reduction), own_lse


def _same_lse(lse: Tensor, own: Tensor) -> bool:
    """Whether they agree where a row sees keys; elsewhere own is -inf and lse is not to be read."""
    if lse.shape != own.shape or lse.dtype != own.dtype:
        return False  # for the library to refuse
    seen = own != -torch.inf
    return torch.equal(lse[seen], own[seen])


def fake_kl_loss(
    q: Tensor, k: Tensor, w: Tensor, p: Tensor, lse: Tensor | None, *rest: Any
) -> tuple[Tensor, Tensor]:
    shared = _without_metadata(rest[:-1])
    shapes.check(q, k, shared[5], shared[6])
    shapes.check_float32(w=w, p=p, lse=lse)
    return shapes.loss(q, shared[5], rest[-1]), shapes.lse(q, shared[5])


def kl_loss_backward(
    grad: Tensor, q: Tensor, k: Tensor, w: Tensor, p: Tensor, lse: Tensor, *rest: Any
) -> tuple[Tensor, Tensor, Tensor]:
    *rows, reduction = rest
    shared = _without_metadata(rows)
    if reduction == "mean":
        grad = grad / _num_rows(q, shared)
    row_scale = grad.expand(shapes.rows_shape(q, shared[5]))
    return _grads(q, k, w, p, lse, rows[5], shared, row_scale)


def fake_kl_loss_backward(
    grad: Tensor, q: Tensor, k: Tensor, w: Tensor, *_: Any
) -> tuple[Tensor, Tensor, Tensor]:
    return shapes.grads(q, k, w)


def kl_loss_with_grads(
    q: Tensor, k: Tensor, w: Tensor, p: Tensor, lse: Tensor | None, *rest: Any
) -> tuple[Tensor, ...]:
    *rows, reduction = rest
    shared = _without_metadata(rows)
    if lse is None:
        lse = _lse(q, k, w, rows[5], shared)
    loss_rows = shapes.lse(q, shared[5])
    grads = _grads(q, k, w, p, lse, rows[5], shared, loss_rows=loss_rows, wide=True)
    if reduction == "mean":
        for grad in grads:
            grad.div_(_num_rows(q, shared))
    return _reduce(loss_rows, q, shared, reduction), *grads


def fake_kl_loss_with_grads(
    q: Tensor, k: Tensor, w: Tensor, p: Tensor, lse: Tensor | None, *rest: Any
) -> tuple[Tensor, ...]:
    loss, _ = fake_kl_loss(q, k, w, p, lse, *rest)
    return loss, *shapes.grads(q, k, w, True)


def _without_metadata(rows: Any) -> _core.Shared:
    return (*rows[:5], *rows[6:])


def _num_rows(q: Tensor, shared: _core.Shared) -> int:
    """Used rows of arguments that the library has accepted, but 1 where there are none."""
    cu_seqlens_q, seqused_q = shared[0], shared[2]
    if seqused_q is not None and seqused_q.numel() > 0:
        num_rows = int(seqused_q.sum())
    else:
        num_rows = int(cu_seqlens_q[-1]) if shared[5] == "TND" else q.shape[0] * q.shape[1]
    return max(num_rows, 1)


def _reduce(loss_rows: Tensor, q: Tensor, shared: _core.Shared, reduction: str) -> Tensor:
    if reduction == "none":
        return loss_rows
    total = _core.total_loss(View(loss_rows, "loss_rows"))
    if reduction == "mean":
        total /= _num_rows(q, shared)
    return torch.tensor(total, dtype=torch.float32)
