"""The differentiable loss and the teacher."""

from __future__ import annotations

from numbers import Real
from typing import Any

import torch
from torch import Tensor

from kindling import _core
from kindling._rows import ATTRIBUTES, RowArguments, Rows, gather, without_defaults
from kindling._schema import index_of
from kindling.torch import _ops  # noqa: F401  (registers the operators)

_REDUCTIONS = ("sum", "mean", "none")


def check_tensors(required: dict[str, object], optional: dict[str, object]) -> None:
    for name, value in {**required, **optional}.items():
        if isinstance(value, Tensor):
            refuse_nested(name, value)
        elif value is not None or name in required:
            raise TypeError(f"{name}: expected a torch.Tensor, got {type(value).__name__}")


def refuse_nested(name: str, tensor: Tensor) -> None:
    """Say of nested tensors, which PyTorch's dispatcher refuses without a word, what to give."""
    if tensor.is_nested:
        raise TypeError(
            f"{name}: expected a strided tensor, got a nested one: pack it, .values() are the rows "
            "of layout TND and .offsets() their cu_seqlens"
        )


def check_rows(rows: RowArguments) -> dict[str, Any]:
    """Those that a call of PyTorch's dispatcher has to name, as it can take them: tensors, words,
    ints."""
    given = without_defaults(rows)
    for name, value in given.items():
        if name in ATTRIBUTES:
            given[name] = rows[name] = check_attribute(name, value)  # type: ignore[literal-required]
        elif value is not None and not isinstance(value, Tensor):
            raise TypeError(f"{name}: expected a torch.Tensor, got {type(value).__name__}")
    return given


def check_attribute(name: str, value: Any) -> Any:
    """A str; or an int, of whatever stands for one."""
    wanted = str if name.startswith("layout") else int
    if name == "max_seqlen_k" and isinstance(value, torch.SymInt):
        return value
    if wanted is int and not isinstance(value, int):
        index = index_of(value)
        value = value if index is None else index
    if not isinstance(value, wanted) or isinstance(value, bool):
        raise TypeError(
            f"{name}: expected {'a str' if wanted is str else 'an int'}, got {type(value).__name__}"
        )
    if wanted is int and not -(2**63) <= value < 2**63:
        raise ValueError(f"{name}: expected an integer of 64 bits, got {value}")
    return value


def indexer_kl_loss(
    q: Tensor,
    k: Tensor,
    w: Tensor,
    p: Tensor,
    *,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    seqused_q: Tensor | None = None,
    seqused_k: Tensor | None = None,
    cmp_residual_k: Tensor | None = None,
    layout_q: str = "BSND",
    layout_k: str = "BSND",
    mask_mode: int = 0,
    cmp_ratio: int = 1,
    causal: bool | None = None,
    rows: Rows | None = None,
    metadata: Tensor | None = None,
    lse: Tensor | None = None,
    reduction: str = "sum",
    grads_in_forward: bool = False,
) -> Tensor:
    """KL divergence of an indexer's distribution over keys from a teacher's, for autograd.

    The loss of a row is ``sum_j p[j] * (ln p[j] - ln y[j])`` over its visible keys, where
    ``y = softmax(I)`` and ``I[j] = sum_h w[h] * max(q[h] . k[j], 0)``. It is differentiable once,
    in q, k and w. The teacher p is a constant, whether it requires grad or not.

    The forward pass computes log-sum-exp and loss only; nothing else happens under ``no_grad``. The
    backward pass runs the gradient operator once and multiplies each row's logit gradient by
    the incoming one before anything is rounded, so that a scaled loss loses nothing.

    Parameters
    ----------
    q : Tensor, shape (B, S1, N1, D) or (T1, N1, D), bfloat16, float16 or float32
        Indexer queries, padded ("BSND") or packed ("TND").
    k : Tensor, shape (B, S2, 1, D) or (T2, 1, D), dtype of q
        Indexer keys.
    w : Tensor, shape (B, S1, N1) or (T1, N1), float32
        Head weights.
    p : Tensor, shape (B, S1, 1, S2) or (T1, 1, >= most visible keys), float32
        Teacher, as :func:`attention_teacher` makes it.
    cu_seqlens_q, cu_seqlens_k : Tensor or None, shape (B + 1,), int32
        Prefix sums of the allocated lengths; required in ``"TND"``, refused in ``"BSND"``.
    seqused_q, seqused_k : Tensor or None, shape (B,), int32
        Used lengths; None: all that is allocated is used.
    cmp_residual_k : Tensor or None, shape (B,), int32
        Tokens beyond the last whole compressed key; required where ``mask_mode`` is 3 and
        ``cmp_ratio`` is not 1.
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
    metadata : Tensor or None, shape (64,), int32
        A record of :func:`kindling.make_metadata`. Results do not depend on it.
    lse : Tensor or None, shape (B, 1, S1) or (1, T1), float32
        The student's log-sum-exp of these very arguments, where it is there already; a constant.
        It saves a pass with `grads_in_forward`, and nothing without.
    reduction : {"sum", "mean", "none"}
        Sum over rows; that divided by the number of used rows (1 if there are none); or every row.
    grads_in_forward : bool
        Compute the gradients in the forward pass and keep them, in float32, in place of the inputs.
        Cheaper where lse is given: loss and gradients are then one pass. Not for ``"none"``;
        without effect where no gradient is asked for.

    Returns
    -------
    Tensor, shape () or, for ``"none"``, that of lse, float32
        The loss in nats.

    Raises
    ------
    ValueError
        For a value, a length or a shape that the operator's contract does not allow.
    TypeError
        For a tensor of the wrong dtype.
    NotImplementedError
        In the backward pass of a backward pass, and under ``torch.func.vmap``.

    Notes
    -----
    Under CPU autocast q and k are cast to its dtype, w, p and lse to float32. Loss and gradients
    are bitwise the same for any number of threads, so ``torch.use_deterministic_algorithms`` holds.
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
    check_tensors({"q": q, "k": k, "w": w, "p": p}, {"lse": lse})
    options = check_rows(rows)
    if not isinstance(grads_in_forward, bool):
        raise TypeError(f"grads_in_forward: expected a bool, got {type(grads_in_forward).__name__}")
    if reduction not in _REDUCTIONS:
        raise ValueError(f'reduction: expected "sum", "mean" or "none", got "{reduction}"')
    options["reduction"] = reduction
    p = p.detach()
    if lse is not None:
        lse = lse.detach()
    if grads_in_forward:
        if reduction == "none":
            raise ValueError(
                'grads_in_forward: expected False with reduction "none", whose incoming gradients '
                "differ from row to row, got True"
            )
        if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or w.requires_grad):
            return torch.ops.kindling.indexer_kl_loss_with_grads(q, k, w, p, lse, **options)[0]
    return torch.ops.kindling.indexer_kl_loss(q, k, w, p, lse, **options)[0]


def attention_teacher(
    q: Tensor,
    k: Tensor,
    lse: Tensor | None = None,
    *,
    softmax_scale: float = 1.0,
    max_seqlen_k: int = 0,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    seqused_q: Tensor | None = None,
    seqused_k: Tensor | None = None,
    cmp_residual_k: Tensor | None = None,
    layout_q: str = "BSND",
    layout_k: str = "BSND",
    mask_mode: int = 0,
    cmp_ratio: int = 1,
    causal: bool | None = None,
    rows: Rows | None = None,
    metadata: Tensor | None = None,
) -> Tensor:
    """The teacher p: the main attention's distribution over keys, averaged over its heads.

    ``softmax_scale`` is 1 unless it is given; attention mostly has ``Dm ** -0.5``.

    Nothing flows back through it: the result never requires grad.

    Parameters
    ----------
    q : Tensor, shape (B, S1, G, Dm) or (T1, G, Dm), bfloat16, float16 or float32
        Queries of the main attention.
    k : Tensor, shape (B, S2, Gk, Dm) or (T2, Gk, Dm), dtype of q
        Its keys. Gk = G: multi-head attention; G a multiple of Gk: grouped queries; Gk = 1: multi-
        query attention, or MLA with the key projection absorbed into q, where Dm is the width of
        the latent and of the rotary part together.
    lse : Tensor or None, shape (B, 1, S1, G) or (1, T1, G), float32
        Log-sum-exp of its scaled scores, as attention kernels return it; None: computed.
    softmax_scale : float
        Factor of the scores, such as ``Dm ** -0.5``.
    max_seqlen_k : int
        Last dim of p unless both layouts are "BSND" (then it is S2, whatever this says). 0: the
        longest allocated key length; under ``torch.compile`` or export it must be given, as a shape
        cannot depend on data there.
    cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, cmp_residual_k, metadata
        As in :func:`indexer_kl_loss`.
    layout_q, layout_k, mask_mode, cmp_ratio, causal, rows
        As in :func:`indexer_kl_loss`.

    Returns
    -------
    Tensor, shape (B, S1, 1, S2) or (T1, 1, max_seqlen_k), float32
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
    check_tensors({"q": q, "k": k}, {"lse": lse})
    options = check_rows(rows)
    max_seqlen_k = check_attribute("max_seqlen_k", max_seqlen_k)
    if not isinstance(softmax_scale, (int, float)) or isinstance(softmax_scale, bool):
        softmax_scale = _real("softmax_scale", softmax_scale)
    q, k, lse = q.detach(), k.detach(), None if lse is None else lse.detach()
    if max_seqlen_k == 0 and not rows["layout_q"] == rows["layout_k"] == "BSND":
        if not torch.compiler.is_compiling():
            max_seqlen_k = _teacher_stride(q, k, rows, softmax_scale)
    return torch.ops.kindling.attention_teacher(q, k, lse, softmax_scale, max_seqlen_k, **options)


attention_l1_norm = attention_teacher
"""The name of the C++ library."""


def _real(name: str, value: Any) -> float:
    """A number of another library, such as NumPy's."""
    number = value if isinstance(value, Real) else index_of(value)
    if number is None or isinstance(value, bool):
        raise TypeError(f"{name}: expected a real number, got {type(value).__name__}")
    return float(number)


def _teacher_stride(q: Tensor, k: Tensor, rows: RowArguments, softmax_scale: float) -> int:
    """The longest allocated key length; 0 for tensors that are only traced and cannot be read."""
    try:
        views = {"q": _core.View(q, "q"), "k": _core.View(k, "k")}
    except (TypeError, ValueError):
        return 0  # the operator says what it needs
    own = {**views, "lse": None, "softmax_scale": softmax_scale, "p": None}
    return max(_core.teacher_stride(own, {**rows, "metadata": None}, 0), 1)
