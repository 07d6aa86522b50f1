"""The public operators: their arguments, what these mean, and what comes back."""

from __future__ import annotations

from typing import Any

from kindling import _core
from kindling._rows import Rows, gather
from kindling._run import KLLossGrad, run_attention_teacher, run_kl_loss_grad, run_softmax_lse


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
    """Split the rows of a ragged batch over cores, as a record of 64 integers.

    Words 0 to 5 are the number of rows, the rows of each of the first cores, the rows of each
    remaining core, how many cores remain, how many cores have rows at all, and the longest used
    key length; the others are 0 in the compatible plan. Core ``c`` takes rows ``c``, ``c + used``,
    ``c + 2 * used``, ...

    Parameters
    ----------
    num_heads_q : int
        Query heads of the indexer, 1 to 128.
    num_heads_k : int
        Key heads, 1.
    head_dim : int
        Head width, 128.
    cu_seqlens_q, cu_seqlens_k : array or None, shape (B + 1,), int32
        Prefix sums of the allocated lengths; required in ``"TND"``, without effect in
        ``"BSND"``, where only their values are checked.
    seqused_q, seqused_k : array or None, shape (B,), int32
        Used lengths; None: all that is allocated is used.
    cmp_residual_k : array or None, shape (B,), int32
        Tokens beyond the last whole compressed key, from 0 to ``cmp_ratio - 1``.
    batch_size : int
        Batches; 0: taken from the arrays.
    max_seqlen_q, max_seqlen_k : int
        Allocated lengths of a ``"BSND"`` batch; ignored in ``"TND"``.
    layout_q, layout_k : {"BSND", "TND"}
        Padded or packed.
    mask_mode : {0, 3}
        0: every key is visible; 3: causal, aligned at the last query and the last key.
    cmp_ratio : int
        Tokens per key, 1 to 128. In ``mask_mode`` 0 it only bounds ``cmp_residual_k``, and neither
        changes a result.
    causal : bool or None
        True: ``mask_mode`` 3; False: 0; None: as ``mask_mode`` says.
    rows : Rows or None
        A :class:`kindling.Rows`, in place of all that it holds.
    num_cores : int or None
        Slots of the plan; None: those of ``soc_version``, else :func:`kindling.get_num_threads`.
    policy : {"rows", "balanced"}
        How rows are dealt: by number, the compatible plan; or so that no core has much more to do
        than the others, which words 6 to 10 then note. See :class:`kindling.Plan`.
    soc_version : str or None
        A device name, ``"Ascend950..."`` or ``"Ascend910..."``, that only chooses ``num_cores``
        where that is None; checked in any case.
    out : array or None, shape (64,), int32
        Written and returned instead of a new array; left as it is on failure.

    Returns
    -------
    array, shape (64,), int32
        ``out``, else a torch tensor if any of the arrays is one, else a NumPy array.

    Raises
    ------
    ValueError
        For a value, a length or a shape that the operator's contract does not allow.
    TypeError
        For an array that is not int32, and for arguments of another type altogether.

    Notes
    -----
    A record of policy ``"rows"`` depends on lengths and cores alone; the heads, the width, the mask
    and what belongs to it are then checked only.

    Examples
    --------
    >>> import numpy as np, kindling
    >>> lengths = np.array([0, 123, 230], np.int32)
    >>> record = kindling.make_metadata(
    ...     64, 1, 128, cu_seqlens_q=lengths, cu_seqlens_k=lengths,
    ...     layout_q="TND", layout_k="TND", mask_mode=3, num_cores=24)
    >>> record[:6].tolist()
    [230, 10, 9, 10, 24, 123]
    """
    if rows is not None or causal is not None:
        rows = gather(
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
    # The common case, without the dict: that would be a third of the whole call.
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
        cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k=cu_seqlens_k,
        seqused_q=seqused_q,
        seqused_k=seqused_k,
        cmp_residual_k=cmp_residual_k,
        layout_q=layout_q,
        layout_k=layout_k,
        mask_mode=mask_mode,
        cmp_ratio=cmp_ratio,
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
    metadata : array or None, shape (64,), int32
        A record of :func:`make_metadata` for these lengths, a hint who computes which row; None:
        the operator plans for itself. Results do not depend on it.
    layout_q, layout_k : {"BSND", "TND"}
        Padded or packed; ``layout_q`` is that of q, w, p and lse, ``layout_k`` that of k.
    mask_mode : {0, 3}
        0: every key is visible; 3: causal, aligned at the last query and the last key.
    cmp_ratio : int
        Tokens per key, 1 to 128. In ``mask_mode`` 0 it only bounds ``cmp_residual_k``, and neither
        changes a result.
    causal : bool or None
        True: ``mask_mode`` 3; False: 0; None: as ``mask_mode`` says.
    rows : Rows or None
        A :class:`kindling.Rows`, in place of all that it holds.
    p : array or None, shape (B, S1, 1, S2) or (T1, 1, >= most visible keys), float32
        Teacher, as :func:`attention_teacher` makes it. An array of another rank that has no
        elements counts as None.
    out : array or (array, array) or None
        Buffers for the results, dense: lse, or (lse, loss_rows) where p is given. None, also
        within the pair: a new array.
    num_threads : int or None
        Threads of this call, the caller's included; None: :func:`kindling.get_num_threads`.

    Returns
    -------
    lse : array, shape (B, 1, S1) or (1, T1), float32
        -inf for rows that see no key or are unused.
    loss_rows : array, shape of lse, float32
        Only where p is given: ``sum_j p[j] * (ln p[j] - I[j] + lse)`` over p[j] > 0; 0 for rows
        that see no key or are unused.

    Raises
    ------
    ValueError
        For a value, a length or a shape that the operator's contract does not allow.
    TypeError
        For an array of the wrong dtype, and for arguments of another type altogether.

    Notes
    -----
    Results are of the kind of q: NumPy, torch, or what its namespace makes of a DLPack array.
    They are bitwise the same for any number of threads, on one instruction set.
    """
    rows = gather(
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
            "metadata": metadata,
        },
    )
    return run_softmax_lse(_core.softmax_lse, q, k, w, p, rows, out=out, num_threads=num_threads)


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
    """Gradients of the indexer's KL loss against a teacher, and the loss itself.

    For a row with visible keys j and ``y[j] = exp(I[j] - lse)``, ``P = sum_j p[j]``, the loss is
    ``sum_j p[j] * (ln p[j] - ln y[j])``, whose derivative is ``dI[j] = y[j] * P - p[j]``. Nothing
    is averaged or scaled: do that to p, w or the gradients.

    Parameters
    ----------
    q : array, shape (B, S1, N1, D) or (T1, N1, D), bfloat16, float16 or float32
        Indexer queries, padded ("BSND") or packed ("TND").
    k : array, shape (B, S2, 1, D) or (T2, 1, D), dtype of q
        Indexer keys.
    w : array, shape (B, S1, N1) or (T1, N1), float32
        Head weights.
    p : array, shape (B, S1, 1, S2) or (T1, 1, >= most visible keys), float32
        Teacher, as :func:`attention_teacher` makes it.
    lse : array, shape (B, 1, S1) or (1, T1), float32
        The student's log-sum-exp, as :func:`softmax_lse` makes it.
    cu_seqlens_q, cu_seqlens_k : array or None, shape (B + 1,), int32
        Prefix sums of the allocated lengths; required in ``"TND"``, refused in ``"BSND"``.
    seqused_q, seqused_k : array or None, shape (B,), int32
        Used lengths; None: all that is allocated is used.
    cmp_residual_k : array or None, shape (B,), int32
        Tokens beyond the last whole compressed key, from 0 to ``cmp_ratio - 1``; required where
        ``mask_mode`` is 3 and ``cmp_ratio`` is not 1.
    metadata : array or None, shape (64,), int32
        A record of :func:`make_metadata` for these lengths, a hint who computes which row; None:
        the operator plans for itself. Results do not depend on it.
    layout_q, layout_k : {"BSND", "TND"}
        Padded or packed; ``layout_q`` is that of q, w, p and lse, ``layout_k`` that of k.
    mask_mode : {0, 3}
        0: every key is visible; 3: causal, aligned at the last query and the last key.
    cmp_ratio : int
        Tokens per key, 1 to 128. In ``mask_mode`` 0 it only bounds ``cmp_residual_k``, and neither
        changes a result.
    causal : bool or None
        True: ``mask_mode`` 3; False: 0; None: as ``mask_mode`` says.
    rows : Rows or None
        A :class:`kindling.Rows`, in place of all that it holds.
    row_scale : array or None, shape of lse, float32
        Factor of each row's ``dI``, such as an incoming gradient; None: 1. The loss and
        ``softmax_out`` stay unscaled. A row with 0 has no gradients: nothing of it is read for
        one, NaN or not, and it takes no time.
    return_softmax : bool
        Whether to return ``softmax_out``.
    return_loss : bool
        Whether to return ``loss_rows``, and with them ``.loss``.
    grad_dtype : dtype or str or None
        dtype of dq and dk: None for that of q, or float32, unrounded.
    out : KLLossGrad, sequence of five arrays, mapping by field name, or None
        Buffers for the results, dense. Fields that are None or missing are made anew; a buffer for
        what was not asked for is an error.
    num_threads : int or None
        Threads of this call, the caller's included; None: :func:`kindling.get_num_threads`.

    Returns
    -------
    KLLossGrad
        ``(dq, dk, dw, softmax_out, loss_rows)``, None where not asked for, and ``.loss``.

    Raises
    ------
    ValueError
        For a value, a length or a shape that the operator's contract does not allow.
    TypeError
        For an array of the wrong dtype, and for arguments of another type altogether.

    Notes
    -----
    Results are of the kind of q: NumPy, torch, or what its namespace makes of a DLPack array.
    They are bitwise the same for any number of threads, on one instruction set. Elements that no
    row or key stands behind are exactly 0.
    """
    rows = gather(
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
            "metadata": metadata,
        },
    )
    return run_kl_loss_grad(
        _core.kl_loss_grad,
        q,
        k,
        w,
        p,
        lse,
        row_scale,
        rows,
        return_softmax=return_softmax,
        return_loss=return_loss,
        grad_dtype=grad_dtype,
        out=out,
        num_threads=num_threads,
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
    """The teacher: the main attention's distribution over keys, averaged over its heads.

    ``softmax_scale`` is 1 unless it is given; attention mostly has ``Dm ** -0.5``.

    ``p[j] = (1 / G) * sum_g exp(softmax_scale * (q[g] . k[j, g * Gk // G]) - lse[g])`` for the
    visible keys j of a row, and exactly 0 elsewhere.

    Parameters
    ----------
    q : array, shape (B, S1, G, Dm) or (T1, G, Dm), bfloat16, float16 or float32
        Queries of the main attention, padded ("BSND") or packed ("TND").
    k : array, shape (B, S2, Gk, Dm) or (T2, Gk, Dm), dtype of q
        Its keys; G must be a multiple of Gk.
    lse : array or None, shape (B, 1, S1, G) or (1, T1, G), float32
        Log-sum-exp of its scaled scores; None: computed over the visible keys, so that every row
        of p sums to 1.
    softmax_scale : float
        Factor of the scores before the exponential, that of the main attention.
    max_seqlen_k : int
        Last dim of p unless both layouts are "BSND" (then it is S2, whatever this says); 0: the
        longest allocated key length.
    cu_seqlens_q, cu_seqlens_k : array or None, shape (B + 1,), int32
        Prefix sums of the allocated lengths; required in ``"TND"``, refused in ``"BSND"``.
    seqused_q, seqused_k : array or None, shape (B,), int32
        Used lengths; None: all that is allocated is used.
    cmp_residual_k : array or None, shape (B,), int32
        Tokens beyond the last whole compressed key, from 0 to ``cmp_ratio - 1``; required where
        ``mask_mode`` is 3 and ``cmp_ratio`` is not 1.
    metadata : array or None, shape (64,), int32
        A record of :func:`make_metadata` for these lengths, a hint who computes which row; None:
        the operator plans for itself. Results do not depend on it.
    layout_q, layout_k : {"BSND", "TND"}
        Padded or packed; ``layout_q`` is that of q, lse and p, ``layout_k`` that of k.
    mask_mode : {0, 3}
        0: every key is visible; 3: causal, aligned at the last query and the last key.
    cmp_ratio : int
        Tokens per key, 1 to 128. In ``mask_mode`` 0 it only bounds ``cmp_residual_k``, and neither
        changes a result.
    causal : bool or None
        True: ``mask_mode`` 3; False: 0; None: as ``mask_mode`` says.
    rows : Rows or None
        A :class:`kindling.Rows`, in place of all that it holds.
    out : array or None, shape of p, float32
        Written and returned instead of a new array; dense. Its last dim may be any that holds the
        visible keys, whatever ``max_seqlen_k`` says.
    num_threads : int or None
        Threads of this call, the caller's included; None: :func:`kindling.get_num_threads`.

    Returns
    -------
    array, shape (B, S1, 1, S2) or (T1, 1, stride), float32
        p, of the kind of q.

    Raises
    ------
    ValueError
        For a value, a length or a shape that the operator's contract does not allow.
    TypeError
        For an array of the wrong dtype, and for arguments of another type altogether.
    """
    rows = gather(
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
            "metadata": metadata,
        },
    )
    return run_attention_teacher(
        _core.attention_teacher,
        q,
        k,
        lse,
        rows,
        softmax_scale=softmax_scale,
        max_seqlen_k=max_seqlen_k,
        out=out,
        num_threads=num_threads,
    )


attention_l1_norm = attention_teacher
"""The name of the C++ library, and the older one here."""
