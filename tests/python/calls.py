"""Calls that several test files make, and their results bit by bit."""

from __future__ import annotations

from typing import Any

import cases
import kindling
import numpy as np
from cases import Case, Inputs

# Arguments of make_metadata for a packed batch.
METADATA = {
    "num_heads_q": 64,
    "num_heads_k": 1,
    "head_dim": 128,
    "layout_q": "TND",
    "layout_k": "TND",
    "cu_seqlens_q": np.array([0, 5, 8], np.int32),
    "cu_seqlens_k": np.array([0, 9, 13], np.int32),
    "num_cores": 2,
}


def grads(inputs: Inputs, **options: Any) -> kindling.KLLossGrad:
    options = {"return_loss": True, **inputs.lengths, **options}
    return kindling.kl_loss_grad(*inputs.tensors(), **options)


def bits(result: Any) -> Any:
    """The bytes of arrays, so that equality means every bit."""
    if isinstance(result, kindling.KLLossGrad):
        return {name: bits(array) for name, array in result._asdict().items()}
    if isinstance(result, tuple):
        return [bits(array) for array in result]
    return None if result is None else (result.dtype.name, result.shape, result.tobytes())


def main_attention(
    case: Case, num_heads: int, num_key_heads: int, width: int
) -> tuple[np.ndarray, ...]:
    """Queries, keys and the log-sum-exp of a main attention on the case's lengths."""
    random = np.random.default_rng([num_heads, num_key_heads, width])
    dtype = cases.DTYPES[case.dtype]
    spread = (2.0 / np.sqrt(width)) ** 0.5
    q = spread * random.standard_normal((*case.row_shape(), num_heads, width))
    k = spread * random.standard_normal((*case.key_shape(), num_key_heads, width))
    lse = random.standard_normal((*case.lse_shape(), num_heads)).astype("f4") + 3
    return q.astype(dtype), k.astype(dtype), lse
