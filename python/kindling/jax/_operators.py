"""The operators of :mod:`kindling` that are no derivative's business, for traced arrays."""

from __future__ import annotations

from typing import Any

import jax

from kindling._rows import Rows
from kindling._run import KLLossGrad, _grad_dtype
from kindling.jax import _arguments as arguments
from kindling.jax import _calls as calls

_softmax_lse = calls.constant(
    calls.softmax_lse,
    0,
    "softmax_lse: expected no derivative of its results, which are constants, got one; "
    "indexer_kl_loss is differentiable",
)
_kl_loss_grad = calls.constant(
    calls.kl_loss_grad,
    3,
    "kl_loss_grad: expected no derivative of its results, which are constants, got one",
)


def softmax_lse(
    q: jax.Array,
    k: jax.Array,
    w: jax.Array,
    *,
    cu_seqlens_q: jax.Array | None = None,
    cu_seqlens_k: jax.Array | None = None,
    seqused_q: jax.Array | None = None,
    seqused_k: jax.Array | None = None,
    cmp_residual_k: jax.Array | None = None,
    layout_q: str = "BSND",
    layout_k: str = "BSND",
    mask_mode: int = 0,
    cmp_ratio: int = 1,
    causal: bool | None = None,
    rows: Rows | None = None,
    p: jax.Array | None = None,
) -> jax.Array | tuple[jax.Array, jax.Array]:
    """Log-sum-exp of the student's logits, for each row over its visible keys.

    For a row of queries q and weights w, ``I[j] = sum_h w[h] * max(q[h] . k[j], 0)`` and
    ``lse = ln sum_j exp(I[j])``. Given a teacher p, the loss of the rows comes from the same pass.

    Parameters
    ----------
    q : array, shape (B, S1, N1, D) or (T1, N1, D), bfloat16, float16 or float32
        Indexer queries, padded ("BSND") or packed ("TND").
    k : array, shape (B, S2, 1, D) or (T2, 1, D), dtype of q
        Indexer keys.
    w : array, shape (B, S1, N1) or (T1, N1), float32
        Head weights.
    cu_seqlens_q, cu_seqlens_k : array or None, shape (B + 1,), int32
        Prefix sums of the allocated lengths; required in ``"TND"``, refused in ``"BSND"``.
    seqused_q, seqused_k : array or None, shape (B,), int32
        Used lengths; None: all that is allocated is used.
    cmp_residual_k : array or None, shape (B,), int32
        Tokens beyond the last whole compressed key, from 0 to ``cmp_ratio - 1``; required where
        ``mask_mode`` is 3 and ``cmp_ratio`` is not 1.
    layout_q, layout_k : {"BSND", "TND"}
        Padded or packed; ``layout_q`` is that of q, w, p and lse, ``layout_k`` that of k. Static.
    mask_mode : {0, 3}
        0: every key is visible; 3: causal, aligned at the last query and the last key. Static.
    cmp_ratio : int
        Tokens per key, 1 to 128. In ``mask_mode`` 0 it only bounds ``cmp_residual_k``, and neither
        changes a result. Static.
    causal : bool or None
        True: ``mask_mode`` 3; False: 0; None: as ``mask_mode`` says. Static.
    rows : Rows or None
        A :class:`kindling.Rows`, in place of all that it holds; without a record.
    p : array or None, shape (B, S1, 1, S2) or (T1, 1, >= most visible keys), float32
        Teacher, as :func:`attention_teacher` makes it.

    Returns
    -------
    lse : array, shape (B, 1, S1) or (1, T1), float32
        -inf for rows that see no key or are unused.
    loss_rows : array, shape of lse, float32
        Only where p is given: ``sum_j p[j] * (ln p[j] - I[j] + lse)`` over p[j] > 0; 0 for rows
        that see no key or are unused.

    Raises
    ------
    ValueError, TypeError
        While tracing, for a shape, a dtype or an attribute that the contract does not allow.
    jax.errors.JaxRuntimeError
        When the result is waited for, for values of length tensors that it does not allow.
    NotImplementedError
        Where a derivative of the results is needed.
    """
    rows = arguments.gather(
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
    arguments.check("softmax_lse", rows, {"q": q, "k": k, "w": w, "p": p})
    results = _softmax_lse(rows, q, k, w, p)
    return results["lse"] if p is None else (results["lse"], results["loss_rows"])


def kl_loss_grad(
    q: jax.Array,
    k: jax.Array,
    w: jax.Array,
    p: jax.Array,
    lse: jax.Array,
    *,
    cu_seqlens_q: jax.Array | None = None,
    cu_seqlens_k: jax.Array | None = None,
    seqused_q: jax.Array | None = None,
    seqused_k: jax.Array | None = None,
    cmp_residual_k: jax.Array | None = None,
    layout_q: str = "BSND",
    layout_k: str = "BSND",
    mask_mode: int = 0,
    cmp_ratio: int = 1,
    causal: bool | None = None,
    rows: Rows | None = None,
    row_scale: jax.Array | None = None,
    return_softmax: bool = True,
    return_loss: bool = False,
    grad_dtype: Any = None,
) -> KLLossGrad:
    """Gradients of the indexer's KL loss against a teacher, and the loss itself.

    For a row with visible keys j and ``y[j] = exp(I[j] - lse)``, ``P = sum_j p[j]``, the loss is
    ``sum_j p[j] * (ln p[j] - ln y[j])``, whose derivative is ``dI[j] = y[j] * P - p[j]``. Nothing
    is averaged or scaled: do that to p, w or the gradients. For autodiff, see
    :func:`indexer_kl_loss`.

    Parameters
    ----------
    q, k, w, cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, cmp_residual_k
        As in :func:`softmax_lse`.
    layout_q, layout_k, mask_mode, cmp_ratio, causal, rows
        As there.
    p : array, shape (B, S1, 1, S2) or (T1, 1, >= most visible keys), float32
        Teacher, as :func:`attention_teacher` makes it.
    lse : array, shape (B, 1, S1) or (1, T1), float32
        The student's log-sum-exp, as :func:`softmax_lse` makes it.
    row_scale : array or None, shape of lse, float32
        Factor of each row's ``dI``, such as an incoming gradient; None: 1. The loss and
        ``softmax_out`` stay unscaled. A row with 0 has no gradients: nothing of it is read for
        one, NaN or not, and it takes no time.
    return_softmax : bool
        Whether to return ``softmax_out``. Static.
    return_loss : bool
        Whether to return ``loss_rows``. Static.
    grad_dtype : dtype or str or None
        dtype of dq and dk: None for that of q, or float32, unrounded. Static.

    Returns
    -------
    KLLossGrad
        ``(dq, dk, dw, softmax_out, loss_rows)``, None where not asked for. Its ``.loss`` needs
        values: inside ``jax.jit`` take ``loss_rows.sum()``.

    Raises
    ------
    ValueError, TypeError, jax.errors.JaxRuntimeError, NotImplementedError
        As :func:`softmax_lse`.
    """
    rows = arguments.gather(
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
    arguments.check(
        "kl_loss_grad", rows, {"q": q, "k": k, "w": w, "p": p, "lse": lse, "row_scale": row_scale}
    )
    static = (
        bool(return_softmax),
        bool(return_loss),
        _grad_dtype(grad_dtype, str(q.dtype), "float32"),
    )
    return KLLossGrad(**_kl_loss_grad(*static, rows, q, k, w, p, lse, row_scale))
