"""The operators written down once more, in NumPy and double, with bounds for their rounding errors.

A bound follows the standard model of rounding: a sum or dot product of m terms in float32, in any
order, is off by at most (m + 2) * U times the sum of the terms' magnitudes, and a result rounded to
a dtype by half a unit in its last place. Errors of intermediate values are carried on to first
order, and SLACK pays for the second. exp and ln are taken to be good to EXP units.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from cases import Case, Inputs

U = 2.0**-24  # half a unit in the last place of float32
EXP = 4.0
SLACK = 1.05
# Half a unit in the last place, and half the smallest positive number.
ROUNDING = {
    "bfloat16": (2.0**-8, 2.0**-134),
    "float16": (2.0**-11, 2.0**-25),
    "float32": (2.0**-24, 2.0**-150),
    "float64": (2.0**-53, 0.0),
}


@dataclass
class Bounded:
    """What an operator should return, and how far off float32 arithmetic may be, per element."""

    value: np.ndarray
    bound: np.ndarray


@dataclass
class Entry:
    """One batch entry in double: S, I and their error bounds, masked to what each row sees."""

    q: np.ndarray  # (rows, heads, width)
    k: np.ndarray  # (keys, width)
    w: np.ndarray  # (rows, heads)
    seen: np.ndarray  # (rows, keys)
    s: np.ndarray  # (rows, heads, keys)
    s_bound: np.ndarray
    i: np.ndarray  # (rows, keys)
    i_bound: np.ndarray


def _double(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float64)


def _entry(case: Case, inputs: Inputs, batch: int) -> Entry:
    q = _double(inputs.q[case.row_slot(batch)])
    k = _double(inputs.k[case.key_slot(batch)])[:, 0]
    w = _double(inputs.w[case.row_slot(batch)])
    seen = np.arange(len(k)) < case.visible(batch)[:, None]
    s = np.einsum("thd,jd->thj", q, k)
    s_bound = U * (case.head_dim + 2) * np.einsum("thd,jd->thj", abs(q), abs(k))
    relu = np.maximum(s, 0)
    i = np.einsum("th,thj->tj", w, relu)
    i_bound = np.einsum("th,thj->tj", abs(w), s_bound + U * (case.num_heads + 2) * relu)
    return Entry(q, k, w, seen, s, s_bound, i, i_bound)


def _log_sum_exp(x: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """Over the last axis; -inf where nothing is seen."""
    masked = np.where(seen, x, -np.inf)
    most = masked.max(-1, keepdims=True, initial=-np.inf)
    safe = np.where(np.isfinite(most), most, 0)
    with np.errstate(divide="ignore"):
        return (safe + np.log(np.exp(masked - safe).sum(-1, keepdims=True)))[..., 0]


def softmax_lse(case: Case, inputs: Inputs) -> Bounded:
    """ln of the sum of exp(I) over the visible keys."""
    value = np.full(case.lse_shape(), -np.inf)
    bound = np.zeros(case.lse_shape())
    for batch in range(case.num_batches):
        e = _entry(case, inputs, batch)
        n = e.seen.sum(-1)
        lse = _log_sum_exp(e.i, e.seen)
        value[case.lse_slot(batch)] = lse
        largest = np.where(e.seen, abs(e.i), 0).max(-1, initial=0)
        off = np.where(e.seen, e.i_bound, 0).max(-1, initial=0)
        off += U * (n + 3 * EXP + 3 * largest)
        off += U * np.where(n > 0, abs(lse), 0)
        bound[case.lse_slot(batch)] = np.where(n > 0, SLACK * off, 0)
    return Bounded(value, bound)


def kl_loss_grad(
    case: Case,
    inputs: Inputs,
    *,
    row_scale: np.ndarray | None = None,
    grad_dtype: str | None = None,
) -> dict[str, Bounded]:
    """All outputs of kl_loss_grad by name."""
    rows, keys = case.row_shape(), case.key_shape()
    shapes = {
        "dq": (*rows, case.num_heads, case.head_dim),
        "dk": (*keys, 1, case.head_dim),
        "dw": (*rows, case.num_heads),
        "softmax_out": inputs.p.shape,
        "loss_rows": case.lse_shape(),
    }
    out = {name: Bounded(np.zeros(shape), np.zeros(shape)) for name, shape in shapes.items()}
    for batch in range(case.num_batches):
        e = _entry(case, inputs, batch)
        row, key, lse_row = case.row_slot(batch), case.key_slot(batch), case.lse_slot(batch)
        n = e.seen.sum(-1, keepdims=True)
        lse = np.where(n > 0, _double(inputs.lse[lse_row])[:, None], 0)
        p = np.where(e.seen, _double(inputs.p[row])[:, 0, : len(e.k)], 0)
        scale = np.ones_like(lse) if row_scale is None else _double(row_scale[lse_row])[:, None]
        relu = np.maximum(e.s, 0)

        y = np.where(e.seen, np.exp(np.where(e.seen, e.i - lse, 0)), 0)
        y_bound = y * (e.i_bound + U * (abs(e.i) + abs(lse) + EXP))
        mass = p.sum(-1, keepdims=True)
        d_i = scale * (y * mass - p)
        d_i_bound = abs(scale) * (mass * y_bound + U * (n + 4) * y * mass + 3 * U * p)
        d_w = np.einsum("tj,thj->th", d_i, relu)
        d_w_bound = np.einsum("tj,thj->th", d_i_bound, relu)
        d_w_bound += np.einsum("tj,thj->th", abs(d_i), e.s_bound + U * (n[..., None] + 2) * relu)

        d_s = np.where(e.s > 0, e.w[:, :, None] * d_i[:, None], 0)
        relative, smallest = ROUNDING[case.dtype]
        full = abs(e.w[:, :, None] * d_i[:, None])
        d_s_bound = abs(e.w)[:, :, None] * d_i_bound[:, None] + (2 * U + relative) * abs(d_s)
        d_s_bound += smallest * (d_s != 0)
        # A product this near to zero may land on its other side.
        d_s_bound += np.where((abs(e.s) <= e.s_bound) & (full > 0), full, 0)
        d_q = np.einsum("thj,jd->thd", d_s, e.k)
        d_q_bound = np.einsum(
            "thj,jd->thd", d_s_bound + U * (n[..., None] + 2) * abs(d_s), abs(e.k)
        )
        d_k = np.einsum("thj,thd->jd", d_s, e.q)
        terms = len(e.q) * case.num_heads + 2
        d_k_bound = np.einsum("thj,thd->jd", d_s_bound + U * terms * abs(d_s), abs(e.q))

        with np.errstate(divide="ignore", invalid="ignore"):
            log_p = np.where(p > 0, np.log(np.where(p > 0, p, 1)), 0)
        loss = (p * (log_p - e.i + lse)).sum(-1)
        loss_bound = (p * e.i_bound).sum(-1)
        loss_bound += U * ((n + 8) * p * (abs(log_p) + abs(e.i) + abs(lse) + EXP)).sum(-1)

        out["softmax_out"].value[row][:, 0, : len(e.k)] = y
        out["softmax_out"].bound[row][:, 0, : len(e.k)] = y_bound
        for name, index, value, bound in (
            ("dq", row, d_q, d_q_bound),
            ("dk", key, d_k[:, None], d_k_bound[:, None]),
            ("dw", row, d_w, d_w_bound),
            ("loss_rows", lse_row, loss, loss_bound),
        ):
            out[name].value[index] = value
            out[name].bound[index] = bound
    for name, result in out.items():
        dtype = (grad_dtype or case.dtype) if name in ("dq", "dk") else "float32"
        _round(result, dtype)
    return out


def attention_l1_norm(
    case: Case,
    q: np.ndarray,
    k: np.ndarray,
    lse: np.ndarray | None,
    softmax_scale: float,
    stride: int,
) -> Bounded:
    """The teacher, for any number of key heads."""
    shape = (*case.row_shape(), 1, stride)
    out = Bounded(np.zeros(shape), np.zeros(shape))
    num_heads, width = q.shape[-2:]
    for batch in range(case.num_batches):
        rows = _double(q[case.row_slot(batch)])
        keys = _double(k[case.key_slot(batch)])
        keys = np.repeat(keys, num_heads // keys.shape[1], axis=1)  # head g reads g * Gk // G
        seen = np.arange(len(keys)) < case.visible(batch)[:, None]
        n = seen.sum(-1)[:, None, None]
        x = softmax_scale * np.einsum("tgd,jgd->tgj", rows, keys)
        x_bound = U * (width + 3) * abs(softmax_scale)
        x_bound = x_bound * np.einsum("tgd,jgd->tgj", abs(rows), abs(keys))
        if lse is None:
            row_lse = _log_sum_exp(x, seen[:, None])[..., None]
            largest = np.where(seen[:, None], abs(x), 0).max(-1, keepdims=True, initial=0)
            lse_bound = np.where(seen[:, None], x_bound, 0).max(-1, keepdims=True, initial=0)
            lse_bound = lse_bound + U * (n + 3 * EXP + 4 * largest + np.log(np.maximum(n, 1)))
        else:
            row_lse = _double(lse[case.lse_slot(batch)])[..., None]
            lse_bound = np.zeros_like(row_lse)
        row_lse = np.where(n > 0, row_lse, 0)
        e = np.where(seen[:, None], np.exp(np.where(seen[:, None], x - row_lse, 0)), 0)
        e_bound = e * (x_bound + lse_bound + U * (abs(x) + abs(row_lse) + EXP + num_heads + 2))
        out.value[case.row_slot(batch)][:, 0, : len(keys)] = e.mean(1)
        out.bound[case.row_slot(batch)][:, 0, : len(keys)] = e_bound.mean(1)
    _round(out, "float32")
    return out


def _round(result: Bounded, dtype: str) -> None:
    relative, smallest = ROUNDING[dtype]
    result.bound *= SLACK
    result.bound += relative * (abs(result.value) + result.bound)
    # Exact zeros have no error to round, so their bound stays zero.
    result.bound += smallest * ((result.value != 0) | (result.bound != 0))


def assert_within(actual: np.ndarray, expected: Bounded, what: str, case: object) -> None:
    """Compare with the definition; says where it is worst and how to make the case again."""
    value = actual.astype(np.float64)
    assert value.shape == expected.value.shape, f"{what}: {value.shape} {expected.value.shape}"
    if value.size == 0:
        return
    same = (value == expected.value) | (np.isnan(value) & np.isnan(expected.value))
    with np.errstate(invalid="ignore"):
        error = np.where(same, 0.0, abs(value - expected.value))
    error = np.where(np.isnan(error), np.inf, error)
    excess = error - expected.bound
    worst = np.unravel_index(np.argmax(excess), excess.shape)
    assert excess[worst] <= 0, (
        f"{what}{[int(i) for i in worst]}: expected {expected.value[worst]!r} "
        f"± {expected.bound[worst]:.3g}, got {value[worst]!r} (off by {error[worst]:.3g}, "
        f"{int((excess > 0).sum())} of {excess.size} are off)\n  {case!r}"
    )
