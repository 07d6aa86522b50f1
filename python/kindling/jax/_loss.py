"""The differentiable loss and the teacher."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from kindling._rows import Rows
from kindling._schema import lse_shape, teacher_width
from kindling.jax import _arguments as arguments
from kindling.jax import _calls as calls

_REDUCTIONS = ("sum", "mean", "none")


_SECOND = "indexer_kl_loss: expected to be differentiated once, got a second derivative"
_lse_and_loss = calls.constant(calls.softmax_lse, 0, _SECOND)
_grads = calls.constant(calls.kl_loss_grad, 3, _SECOND)
_total = calls.constant(calls.total_loss, 0, _SECOND)


@functools.partial(jax.jit, static_argnums=0)
@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _loss(reduction: str, q: Any, k: Any, w: Any, p: Any, lse: Any, rows: Rows) -> jax.Array:
    return _forward(reduction, q, k, w, p, lse, rows)[0]


def _forward(
    reduction: str, q: Any, k: Any, w: Any, p: Any, lse: Any, rows: Rows
) -> tuple[jax.Array, tuple[Any, ...]]:
    student = _lse_and_loss(rows, q, k, w, p)
    own_lse, loss_rows = student["lse"], student["loss_rows"]
    if lse is None:
        lse = own_lse
    else:
        static_grads = (False, True, str(q.dtype))
        loss_rows = jax.lax.cond(
            # Where a row sees no key own is -inf, and the other is not to be read.
            jnp.all((own_lse == -jnp.inf) | (own_lse == lse)),
            lambda: loss_rows,
            # Somebody else's lse: the loss that belongs to it comes with the gradients only.
            lambda: _grads(*static_grads, rows, q, k, w, p, lse, None)["loss_rows"],
        )
    residuals = (q, k, w, p, lse, rows)
    if reduction == "none":
        return loss_rows, residuals
    is_mean = reduction == "mean"
    divisor = calls.num_rows(rows, q) if is_mean else jnp.int32(1)
    return _total(loss_rows, divisor), residuals


def _backward(reduction: str, residuals: tuple[Any, ...], grad: Any) -> tuple[Any, ...]:
    q, k, w, p, lse, rows = residuals
    if reduction == "mean":
        grad = grad / calls.num_rows(rows, q).astype(jnp.float32)
    row_scale = jnp.broadcast_to(grad, lse_shape(q.shape, rows.layout_q))
    static_grads = (False, False, str(q.dtype))
    grads = _grads(*static_grads, rows, q, k, w, p, lse, row_scale)
    return grads["dq"], grads["dk"], grads["dw"], None, None, None


_loss.__wrapped__.defvjp(_forward, _backward)


def indexer_kl_loss(
    q: jax.Array,
    k: jax.Array,
    w: jax.Array,
    p: jax.Array,
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
    lse: jax.Array | None = None,
    reduction: str = "sum",
) -> jax.Array:
    """KL divergence of an indexer's distribution over keys from a teacher's, for ``jax.grad``.

    The loss of a row is ``sum_j p[j] * (ln p[j] - ln y[j])`` over its visible keys, where
    ``y = softmax(I)`` and ``I[j] = sum_h w[h] * max(q[h] . k[j], 0)``. It is differentiable once,
    in reverse mode, in q, k and w. The teacher p, lse and the lengths are constants.

    The forward pass computes log-sum-exp and loss only. The backward pass runs the gradient
    operator once and multiplies each row's logit gradient by the incoming one before anything is
    rounded, so that a scaled loss loses nothing.

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
    cu_seqlens_q, cu_seqlens_k : array or None, shape (B + 1,), int32
        Prefix sums of the allocated lengths; required in ``"TND"``, refused in ``"BSND"``.
    seqused_q, seqused_k : array or None, shape (B,), int32
        Used lengths; None: all that is allocated is used.
    cmp_residual_k : array or None, shape (B,), int32
        Tokens beyond the last whole compressed key; required where ``mask_mode`` is 3 and
        ``cmp_ratio`` is not 1.
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
    lse : array or None, shape (B, 1, S1) or (1, T1), float32
        The student's log-sum-exp of these very arguments, where it is there already. It saves
        nothing: the loss needs the pass that makes it.
    reduction : {"sum", "mean", "none"}
        Sum over rows, in ascending order and in double; that divided by the number of used rows
        (1 if there are none); or every row. Static.

    Returns
    -------
    array, shape () or, for ``"none"``, that of lse, float32
        The loss in nats.

    Raises
    ------
    ValueError, TypeError
        While tracing, for a shape, a dtype or an attribute that the contract does not allow.
    jax.errors.JaxRuntimeError
        When the result is waited for, for values of length tensors that it does not allow.
    NotImplementedError
        For a second derivative in reverse mode. JAX itself refuses forward mode with a TypeError.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, kindling.jax as kj
    >>> q, k, w = jnp.ones((1, 4, 2, 8)), jnp.ones((1, 4, 1, 8)), jnp.ones((1, 4, 2))
    >>> p = kj.attention_teacher(q, k, softmax_scale=8**-0.5, mask_mode=3)
    >>> loss, (dq, dk) = jax.value_and_grad(kj.indexer_kl_loss, (0, 1))(q, k, w, p, mask_mode=3)
    >>> loss.shape, dq.shape, dk.shape
    ((), (1, 4, 2, 8), (1, 4, 1, 8))
    """
    if reduction not in _REDUCTIONS:
        raise ValueError(f'reduction: expected "sum", "mean" or "none", got "{reduction}"')
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
    arguments.require(p=p)
    if lse is None:
        arguments.check("softmax_lse", rows, {"q": q, "k": k, "w": w, "p": p})
    else:
        arguments.check("kl_loss_grad", rows, {"q": q, "k": k, "w": w, "p": p, "lse": lse})
    return _loss(reduction, q, k, w, p, lse, rows)


_teacher = jax.jit(calls.attention_teacher, static_argnums=(0, 1))


def attention_teacher(
    q: jax.Array,
    k: jax.Array,
    lse: jax.Array | None = None,
    *,
    softmax_scale: float = 1.0,
    max_seqlen_k: int = 0,
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
) -> jax.Array:
    """The teacher p: the main attention's distribution over keys, averaged over its heads.

    ``softmax_scale`` is 1 unless it is given; attention mostly has ``Dm ** -0.5``.

    ``p[j] = (1 / G) * sum_g exp(softmax_scale * (q[g] . k[j, g * Gk // G]) - lse[g])`` for the
    visible keys j of a row, and exactly 0 elsewhere. Nothing flows back through it: to derivatives
    it is a constant.

    Parameters
    ----------
    q : array, shape (B, S1, G, Dm) or (T1, G, Dm), bfloat16, float16 or float32
        Queries of the main attention.
    k : array, shape (B, S2, Gk, Dm) or (T2, Gk, Dm), dtype of q
        Its keys; G must be a multiple of Gk.
    lse : array or None, shape (B, 1, S1, G) or (1, T1, G), float32
        Log-sum-exp of its scaled scores, as attention kernels return it; None: computed.
    softmax_scale : float
        Factor of the scores, that of the main attention. Static.
    max_seqlen_k : int
        Last dim of p, at least the most keys that a row sees; required unless both layouts are
        "BSND" (then it is S2, whatever this says), as shapes do not depend on data. Static.
    cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, cmp_residual_k
        As in :func:`indexer_kl_loss`.
    layout_q, layout_k, mask_mode, cmp_ratio, causal, rows
        As there.

    Returns
    -------
    array, shape (B, S1, 1, S2) or (T1, 1, max_seqlen_k), float32

    Raises
    ------
    ValueError, TypeError, jax.errors.JaxRuntimeError
        As :func:`indexer_kl_loss`.
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
    scale = arguments.number("softmax_scale", softmax_scale)
    width = arguments.integer("max_seqlen_k", max_seqlen_k)
    if width < 0:
        raise ValueError(f"max_seqlen_k: expected >= 0, got {width}")
    arguments.check("attention_teacher", rows, {"q": q, "k": k, "lse": lse}, softmax_scale=scale)
    width = teacher_width(k.shape, rows, width)
    constants = jax.lax.stop_gradient((q, k, lse))
    return _teacher(scale, width, rows, *constants)


attention_l1_norm = attention_teacher
"""The name of the C++ library."""
