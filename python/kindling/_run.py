"""One call of an operator, fast or reference: its outputs' shapes and dtypes, then the library."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from kindling import _core
from kindling._arrays import Output
from kindling._rows import RowArguments
from kindling._schema import lse_shape


class KLLossGrad(NamedTuple):
    """What :func:`kl_loss_grad` returns: gradients, and what else was asked for.

    Attributes
    ----------
    dq : array, shape of q, dtype of q or float32
        Gradient of the summed loss with respect to q.
    dk : array, shape of k, dtype of dq
        Gradient with respect to k.
    dw : array, shape of w, float32
        Gradient with respect to w.
    softmax_out : array or None, shape of p, float32
        The student's distribution, exp(I - lse); 0 where no key is visible.
    loss_rows : array or None, shape of lse, float32
        The loss of each row; 0 for rows that see no key or are unused.
    """

    dq: Any
    dk: Any
    dw: Any
    softmax_out: Any = None
    loss_rows: Any = None

    @property
    def loss(self) -> float | None:
        """Sum of ``loss_rows`` in ascending order of rows, in double; None without them."""
        if self.loss_rows is None:
            return None
        return _core.total_loss(_core.View(self.loss_rows, "loss_rows"))


def run_softmax_lse(
    call: Callable[..., None],
    q: Any,
    k: Any,
    w: Any,
    p: Any,
    rows: RowArguments,
    *,
    out: Any,
    num_threads: Any,
    wide: str = "float32",
) -> Any:
    """Run `call`, the fast or the reference operator; `wide` is the dtype of lse."""
    q_view = _core.View(q, "q")
    if p is not None:
        p = _core.View(p, "p")
        if _is_absent(p, q_view):
            p = None
    given_lse, given_loss_rows = out, None
    if p is not None and isinstance(out, (tuple, list)) and len(out) == 2:
        given_lse, given_loss_rows = out
    elif p is not None and out is not None:
        raise TypeError(f"out: expected (lse, loss_rows), as p is given, got {_type_name(out)}")

    lse = Output("lse", given_lse, q, q_view, lse_shape(q_view.shape, rows["layout_q"]), wide)
    own = {"q": q_view, "k": k, "w": w, "p": p, "lse": lse.array, "loss_rows": None}
    if p is None:
        call(own, rows, num_threads)
        return lse.result()
    loss_rows = Output("loss_rows", given_loss_rows, q, q_view, lse.shape, wide)
    own["loss_rows"] = loss_rows.array
    call(own, rows, num_threads)
    return lse.result(), loss_rows.result()


def run_kl_loss_grad(
    call: Callable[..., None],
    q: Any,
    k: Any,
    w: Any,
    p: Any,
    lse: Any,
    row_scale: Any,
    rows: RowArguments,
    *,
    return_softmax: bool,
    return_loss: bool,
    grad_dtype: Any,
    out: Any,
    num_threads: Any,
    wide: str = "float32",
) -> KLLossGrad:
    """Run `call`, the fast or the reference operator; `wide` is the dtype of dw."""
    q_view = _core.View(q, "q")
    k_view = _core.View(k, "k")
    w_view = _core.View(w, "w")
    p_view = _core.View(p, "p")
    lse_view = _core.View(lse, "lse")
    given = _grad_buffers(out)
    grad = _grad_dtype(grad_dtype, q_view.dtype, wide)

    dq = Output("dq", given.dq, q, q_view, q_view.shape, grad)
    dk = Output("dk", given.dk, q, q_view, k_view.shape, grad)
    if q_view.dtype in ("bfloat16", "float16", "float32"):  # else the library refuses q
        for name, output in (("dq", dq), ("dk", dk)):
            if output.dtype != grad:
                raise TypeError(f"{name}: expected dtype {grad}, got {output.dtype}")
    dw = Output("dw", given.dw, q, q_view, w_view.shape, wide)
    softmax_out = loss_rows = None
    if return_softmax:
        softmax_out = Output("softmax_out", given.softmax_out, q, q_view, p_view.shape, wide)
    elif given.softmax_out is not None:
        raise ValueError("softmax_out: expected no buffer, as return_softmax is false, got one")
    if return_loss:
        loss_rows = Output("loss_rows", given.loss_rows, q, q_view, lse_view.shape, wide)
    elif given.loss_rows is not None:
        raise ValueError("loss_rows: expected no buffer, as return_loss is false, got one")
    own = {
        "q": q_view,
        "k": k_view,
        "w": w_view,
        "p": p_view,
        "lse": lse_view,
        "row_scale": row_scale,
        "dq": dq.array,
        "dk": dk.array,
        "dw": dw.array,
        "softmax_out": None if softmax_out is None else softmax_out.array,
        "loss_rows": None if loss_rows is None else loss_rows.array,
    }
    call(own, rows, num_threads)
    return KLLossGrad(
        dq.result(), dk.result(), dw.result(), _result_of(softmax_out), _result_of(loss_rows)
    )


def run_attention_teacher(
    call: Callable[..., None],
    q: Any,
    k: Any,
    lse: Any,
    rows: RowArguments,
    *,
    softmax_scale: Any,
    max_seqlen_k: Any,
    out: Any,
    num_threads: Any,
    wide: str = "float32",
) -> Any:
    """Run `call`, the fast or the reference operator; `wide` is the dtype of p."""
    q_view = _core.View(q, "q")
    own = {"q": q_view, "k": _core.View(k, "k"), "lse": lse, "softmax_scale": softmax_scale}
    own["p"] = None
    stride = _core.teacher_stride(own, rows, max_seqlen_k)
    p = Output("p", out, q, q_view, (*q_view.shape[:-2], 1, stride), wide)
    own["p"] = p.array
    call(own, rows, num_threads)
    return p.result()


def _is_absent(p: _core.View, q: _core.View) -> bool:
    """An optional array without elements counts as absent. A teacher of p's rank does not: of a
    batch without rows or keys it has none, and what is returned must not hang on sizes."""
    return 0 in p.shape and len(p.shape) != len(q.shape)


def _grad_buffers(out: Any) -> KLLossGrad:
    if out is None:
        return KLLossGrad(None, None, None)
    if isinstance(out, Mapping):
        unknown = set(out) - set(KLLossGrad._fields)
        if unknown:
            raise ValueError(f"out: expected fields of KLLossGrad, got {sorted(map(str, unknown))}")
        return KLLossGrad(*(out.get(name) for name in KLLossGrad._fields))
    if isinstance(out, (tuple, list)) and len(out) == len(KLLossGrad._fields):
        return KLLossGrad(*out)
    raise TypeError(
        f"out: expected a KLLossGrad, five arrays or a mapping by field name, got {_type_name(out)}"
    )


def _grad_dtype(grad_dtype: Any, q_dtype: str, wide: str) -> str:
    """Name of the dtype of dq and dk."""
    if grad_dtype is None:
        name = q_dtype
    elif isinstance(grad_dtype, str):
        name = grad_dtype
    else:
        name = str(grad_dtype).removeprefix("torch.")  # a torch.dtype
        if name == str(grad_dtype):
            import numpy as np

            try:
                name = np.dtype(grad_dtype).name
            except TypeError:
                name = _type_name(grad_dtype)
    if grad_dtype is not None and name not in ("float32", q_dtype):
        raise TypeError(f"grad_dtype: expected None, float32 or q's {q_dtype}, got {name}")
    return "float64" if wide == "float64" else name


def _result_of(output: Output | None) -> Any:
    return None if output is None else output.result()


def _type_name(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return f"{type(value).__name__} of {len(value)}"
    return type(value).__name__
