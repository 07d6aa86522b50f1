"""The definition in double precision, slow by design: what the fast operators are held against.

The calls have the names and arguments of those in :mod:`kindling`, so that one can stand in for the
other. Arrays may be anything that holds numbers (lists too); floats of every width are widened
exactly, and results are float64: torch tensors where q is one, else NumPy arrays. ``out`` buffers
are float64 too. ``num_threads`` and ``grad_dtype`` change nothing here.
"""

from __future__ import annotations

from typing import Any

from kindling import _core
from kindling._arrays import to_float64, to_int32
from kindling._rows import TENSORS, RowArguments, Rows, gather
from kindling._run import KLLossGrad, run_attention_teacher, run_kl_loss_grad, run_softmax_lse

__all__ = [
    "KLLossGrad",
    "attention_l1_norm",
    "attention_teacher",
    "kl_loss_grad",
    "make_metadata",
    "softmax_lse",
]

_WIDE = "float64"


def make_metadata(
    num_heads_q: int,
    num_heads_k: int,
    head_dim: int,
    *,
    cu_seqlens_q: Any = None,
    cu_seqlens_k: Any = None,
    seqused_q: Any = None,
    seqused_k: Any = None,
    cmp_residual_k: Any = None,
    batch_size: int = 0,
    max_seqlen_q: int = 0,
    max_seqlen_k: int = 0,
    layout_q: str = "BSND",
    layout_k: str = "BSND",
    mask_mode: int = 0,
    cmp_ratio: int = 1,
    causal: bool | None = None,
    rows: Rows | None = None,
    num_cores: int | None = None,
    policy: str = "rows",
    soc_version: str | None = None,
    out: Any = None,
) -> Any:
    """:func:`kindling.make_metadata`, for lengths in any integer dtype.

    Parameters
    ----------
    cu_seqlens_q, cu_seqlens_k : array_like or None, shape (B + 1,), integers
    seqused_q, seqused_k, cmp_residual_k : array_like or None, shape (B,), integers
    out : array or None, shape (64,), int32

    Returns
    -------
    array, shape (64,), int32
    """
    rows = _gather(
        rows,
        causal,
        {
            "cu_seqlens_q": cu_seqlens_q,
            "cu_seqlens_k": cu_seqlens_k,
            "seqused_q": seqused_q,
            "seqused_k": seqused_k,
            "cmp_residual_k": cmp_residual_k,
            "layout_q": layout_q,
            "layout_k": layout_k,
            "mask_mode": mask_mode,
            "cmp_ratio": cmp_ratio,
        },
    )
    return _core.make_metadata(
        num_heads_q,
        num_heads_k,
        head_dim,
        batch_size,
        max_seqlen_q,
        max_seqlen_k,
        num_cores,
        soc_version,
        policy,
        out,
        **rows,
    )


def softmax_lse(
    q: Any,
    k: Any,
    w: Any,
    *,
    cu_seqlens_q: Any = None,
    cu_seqlens_k: Any = None,
    seqused_q: Any = None,
    seqused_k: Any = None,
    cmp_residual_k: Any = None,
    metadata: Any = None,
    layout_q: str = "BSND",
    layout_k: str = "BSND",
    mask_mode: int = 0,
    cmp_ratio: int = 1,
    causal: bool | None = None,
    rows: Rows | None = None,
    p: Any = None,
    out: Any = None,
    num_threads: int | None = None,
) -> Any:
    """:func:`kindling.softmax_lse` in double.

    Parameters
    ----------
    q : array_like, shape (B, S1, N1, D) or (T1, N1, D)
    k : array_like, shape (B, S2, 1, D) or (T2, 1, D)
    w : array_like, shape (B, S1, N1) or (T1, N1)
    p : array_like or None, shape (B, S1, 1, S2) or (T1, 1, >= most visible keys)
    out : array or (array, array) or None, float64

    Returns
    -------
    lse : array, shape (B, 1, S1) or (1, T1), float64
    loss_rows : array, shape of lse, float64
        Only where p is given.
    """
    rows = _gather(
        rows,
        causal,
        {
            "cu_seqlens_q": cu_seqlens_q,
            "cu_seqlens_k": cu_seqlens_k,
            "seqused_q": seqused_q,
            "seqused_k": seqused_k,
            "cmp_residual_k": cmp_residual_k,
            "metadata": metadata,
            "layout_q": layout_q,
            "layout_k": layout_k,
            "mask_mode": mask_mode,
            "cmp_ratio": cmp_ratio,
        },
    )
    return run_softmax_lse(
        _core.reference_softmax_lse,
        to_float64(q, "q"),
        to_float64(k, "k"),
        to_float64(w, "w"),
        to_float64(p, "p"),
        rows,
        out=out,
        num_threads=num_threads,
        wide=_WIDE,
    )


def kl_loss_grad(
    q: Any,
    k: Any,
    w: Any,
    p: Any,
    lse: Any,
    *,
    cu_seqlens_q: Any = None,
    cu_seqlens_k: Any = None,
    seqused_q: Any = None,
    seqused_k: Any = None,
    cmp_residual_k: Any = None,
    metadata: Any = None,
    layout_q: str = "BSND",
    layout_k: str = "BSND",
    mask_mode: int = 0,
    cmp_ratio: int = 1,
    causal: bool | None = None,
    rows: Rows | None = None,
    row_scale: Any = None,
    return_softmax: bool = True,
    return_loss: bool = False,
    grad_dtype: Any = None,
    out: Any = None,
    num_threads: int | None = None,
) -> KLLossGrad:
    """:func:`kindling.kl_loss_grad` in double.

    Parameters
    ----------
    q : array_like, shape (B, S1, N1, D) or (T1, N1, D)
    k : array_like, shape (B, S2, 1, D) or (T2, 1, D)
    w : array_like, shape (B, S1, N1) or (T1, N1)
    p : array_like, shape (B, S1, 1, S2) or (T1, 1, >= most visible keys)
    lse : array_like, shape (B, 1, S1) or (1, T1)
    row_scale : array_like or None, shape of lse
    out : KLLossGrad, sequence of five arrays, mapping by field name, or None, float64

    Returns
    -------
    KLLossGrad
        All float64.
    """
    rows = _gather(
        rows,
        causal,
        {
            "cu_seqlens_q": cu_seqlens_q,
            "cu_seqlens_k": cu_seqlens_k,
            "seqused_q": seqused_q,
            "seqused_k": seqused_k,
            "cmp_residual_k": cmp_residual_k,
            "metadata": metadata,
            "layout_q": layout_q,
            "layout_k": layout_k,
            "mask_mode": mask_mode,
            "cmp_ratio": cmp_ratio,
        },
    )
    return run_kl_loss_grad(
        _core.reference_kl_loss_grad,
        to_float64(q, "q"),
        to_float64(k, "k"),
        to_float64(w, "w"),
        to_float64(p, "p"),
        to_float64(lse, "lse"),
        to_float64(row_scale, "row_scale"),
        rows,
        return_softmax=return_softmax,
        return_loss=return_loss,
        grad_dtype=None,
        out=out,
        num_threads=num_threads,
        wide=_WIDE,
    )


def attention_teacher(
    q: Any,
    k: Any,
    lse: Any = None,
    *,
    softmax_scale: float = 1.0,
    max_seqlen_k: int = 0,
    cu_seqlens_q: Any = None,
    cu_seqlens_k: Any = None,
    seqused_q: Any = None,
    seqused_k: Any = None,
    cmp_residual_k: Any = None,
    metadata: Any = None,
    layout_q: str = "BSND",
    layout_k: str = "BSND",
    mask_mode: int = 0,
    cmp_ratio: int = 1,
    causal: bool | None = None,
    rows: Rows | None = None,
    out: Any = None,
    num_threads: int | None = None,
) -> Any:
    """:func:`kindling.attention_teacher` in double; its ``softmax_scale`` is 1 unless given too.

    Parameters
    ----------
    q : array_like, shape (B, S1, G, Dm) or (T1, G, Dm)
    k : array_like, shape (B, S2, Gk, Dm) or (T2, Gk, Dm)
    lse : array_like or None, shape (B, 1, S1, G) or (1, T1, G)
    out : array or None, shape of p, float64

    Returns
    -------
    array, shape (B, S1, 1, S2) or (T1, 1, stride), float64
    """
    rows = _gather(
        rows,
        causal,
        {
            "cu_seqlens_q": cu_seqlens_q,
            "cu_seqlens_k": cu_seqlens_k,
            "seqused_q": seqused_q,
            "seqused_k": seqused_k,
            "cmp_residual_k": cmp_residual_k,
            "metadata": metadata,
            "layout_q": layout_q,
            "layout_k": layout_k,
            "mask_mode": mask_mode,
            "cmp_ratio": cmp_ratio,
        },
    )
    return run_attention_teacher(
        _core.reference_attention_teacher,
        to_float64(q, "q"),
        to_float64(k, "k"),
        to_float64(lse, "lse"),
        rows,
        softmax_scale=softmax_scale,
        max_seqlen_k=max_seqlen_k,
        out=out,
        num_threads=num_threads,
        wide=_WIDE,
    )


attention_l1_norm = attention_teacher


def _gather(rows: Rows | None, causal: bool | None, given: RowArguments) -> RowArguments:
    named = gather(rows, causal, given)
    return {  # type: ignore[return-value]
        name: to_int32(value, name) if name in TENSORS else value for name, value in named.items()
    }
