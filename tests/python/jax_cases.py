"""Cases of the Python tests as JAX arrays, and the same mathematics in plain jax.numpy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import DTYPES, Case, Inputs, make_inputs

jax.config.update("jax_platforms", "cpu")
kj = pytest.importorskip("kindling.jax", exc_type=ImportError)

RAGGED = Case((5, 3), (9, 4), num_heads=3, head_dim=8, spare_q=1, spare_k=2)
PADDED = Case((6, 6), (6, 6), "BSND", "BSND", num_heads=2, head_dim=16)
COMPRESSED = Case((9, 5), (3, 2), cmp_ratio=4, residual=(2, 1), num_heads=4, head_dim=8)
MIXED = Case((4, 4), (7, 5), "BSND", "TND", mask_mode=0, num_heads=2, head_dim=8, spare_p=3)
CASES = [RAGGED, PADDED, COMPRESSED, MIXED]
# Every dtype on one of them, every other with one dtype: compiling takes most of the time here.
OF_ALL_DTYPES = [replace(RAGGED, dtype=dtype) for dtype in DTYPES] + [
    replace(PADDED, dtype="bfloat16"),
    replace(COMPRESSED, dtype="float16"),
    MIXED,
]

STATIC = ("layout_q", "layout_k", "mask_mode", "cmp_ratio")


def arrays(case: Case, **options: Any) -> tuple[list[jax.Array], dict[str, Any]]:
    """[q, k, w, p, lse] and the length arguments."""
    return of_inputs(make_inputs(case, **options))


def of_inputs(inputs: Inputs) -> tuple[list[jax.Array], dict[str, Any]]:
    lengths = {
        name: jnp.asarray(value) if isinstance(value, np.ndarray) else value
        for name, value in inputs.lengths.items()
    }
    return [jnp.asarray(array) for array in inputs.tensors()], lengths


def split(lengths: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Length arguments: those that a compiled function is given, those that it is built with."""
    given = {name: value for name, value in lengths.items() if name not in STATIC}
    return given, {name: value for name, value in lengths.items() if name in STATIC}


def loss_rows(case: Case, q: Any, k: Any, w: Any, p: Any) -> jax.Array:
    """The loss of each row by jax.numpy in the dtypes of q and w, differentiable by JAX itself."""
    rows = jnp.zeros(case.lse_shape(), w.dtype)
    for batch in range(case.num_batches):
        visible = case.visible(batch)
        queries, keys = q[case.row_slot(batch)], k[case.key_slot(batch)][:, 0]
        if 0 in queries.shape or 0 in keys.shape:
            continue
        scores = jnp.maximum(jnp.einsum("thd,jd->thj", queries, keys), 0)
        logits = jnp.einsum("thj,th->tj", scores.astype(w.dtype), w[case.row_slot(batch)])
        seen = np.arange(keys.shape[0]) < visible[:, None]
        lse = jax.nn.logsumexp(jnp.where(seen, logits, -1e30), -1, keepdims=True)
        target = jnp.where(seen, p[case.row_slot(batch)][:, 0, : keys.shape[0]], 0)
        terms = jax.scipy.special.xlogy(target, target) - target * (logits - lse)
        rows = rows.at[case.lse_slot(batch)].set(jnp.where(visible > 0, terms.sum(-1), 0))
    return rows
