"""The handlers that the extension brings, registered with XLA, and one traceable call for each.

Arguments have been checked as far as they can be while tracing; what the lengths' values show to be
wrong fails when the compiled program runs, with the library's message.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.ffi
import jax.numpy as jnp
import numpy as np

from kindling import _core
from kindling.jax._arguments import Rows

if not _core.jax_handlers:
    raise ImportError(
        "kindling.jax: expected a package that was built with KINDLING_JAX=1, got one without; "
        "build it again from its source: KINDLING_JAX=1 pip install ."
    )
for _name, _handler in _core.jax_handlers.items():
    jax.ffi.register_ffi_target(f"kindling_{_name}", _handler, platform="cpu")

# The five length tensors, or None.
Lengths = tuple[Any, Any, Any, Any, Any]


def rows_shape(rows: Rows, q: Any) -> tuple[int, ...]:
    """Shape of lse and of loss rows."""
    return (1, q.shape[0]) if rows.layout_q == "TND" else (q.shape[0], 1, q.shape[1])


def num_rows(rows: Rows, lengths: Lengths, q: Any) -> jax.Array:
    """Used rows of arguments that the library accepts, but 1 where there are none."""
    seqused_q = lengths[2]
    if seqused_q is not None and seqused_q.size > 0:
        return jnp.maximum(jnp.sum(seqused_q, dtype=jnp.int32), 1)
    count = q.shape[0] if rows.layout_q == "TND" else q.shape[0] * q.shape[1]
    return jnp.int32(min(max(count, 1), 2**31 - 1))


def softmax_lse(rows: Rows, lengths: Lengths, q: Any, k: Any, w: Any, p: Any) -> list[jax.Array]:
    """[lse], or [lse, loss_rows] where p is given."""
    per_row = jax.ShapeDtypeStruct(rows_shape(rows, q), jnp.float32)
    operands = [q, k, w] if p is None else [q, k, w, p]
    return _call("softmax_lse", [per_row] * (1 if p is None else 2), rows, lengths, operands)


def kl_loss_grad(
    rows: Rows,
    return_softmax: bool,
    return_loss: bool,
    grad_dtype: str,
    lengths: Lengths,
    q: Any,
    k: Any,
    w: Any,
    p: Any,
    lse: Any,
    row_scale: Any,
) -> list[jax.Array]:
    """[dq, dk, dw], then softmax_out and loss_rows as far as they are asked for."""
    results = [
        jax.ShapeDtypeStruct(q.shape, grad_dtype),
        jax.ShapeDtypeStruct(k.shape, grad_dtype),
        jax.ShapeDtypeStruct(w.shape, jnp.float32),
    ]
    if return_softmax:
        results.append(jax.ShapeDtypeStruct(p.shape, jnp.float32))
    if return_loss:
        results.append(jax.ShapeDtypeStruct(rows_shape(rows, q), jnp.float32))
    operands = [q, k, w, p, lse] if row_scale is None else [q, k, w, p, lse, row_scale]
    return _call("kl_loss_grad", results, rows, lengths, operands, return_softmax=return_softmax)


def teacher(
    rows: Rows, softmax_scale: float, width: int, lengths: Lengths, q: Any, k: Any, lse: Any
) -> jax.Array:
    """p, with a last dim of `width`."""
    p = jax.ShapeDtypeStruct((*q.shape[:-2], 1, width), jnp.float32)
    operands = [q, k] if lse is None else [q, k, lse]
    return _call(
        "teacher",
        p,
        rows,
        lengths,
        operands,
        softmax_scale=np.float64(softmax_scale),
        max_seqlen_k=np.int64(width),
    )


def total_loss(loss_rows: Any, divisor: Any) -> jax.Array:
    """Sum of loss rows in ascending order and in double, divided by an int32, then rounded."""
    total = jax.ShapeDtypeStruct((), jnp.float32)
    return jax.ffi.ffi_call("kindling_total_loss", total, vmap_method="sequential")(
        loss_rows, divisor
    )


def constant(call: Callable[..., Any], num_static: int, message: str) -> Callable[..., Any]:
    """`call`, compiled, its first arguments static. A derivative of its results is refused with
    `message`, but only where one is needed: they may pass through what is differentiated."""
    static = tuple(range(num_static))
    function = jax.custom_vjp(call, nondiff_argnums=static)

    def backward(*_: Any) -> Any:
        raise NotImplementedError(message)

    function.defvjp(lambda *arguments: (call(*arguments), None), backward)
    return jax.jit(function, static_argnums=static)


def _call(
    name: str, results: Any, rows: Rows, lengths: Lengths, operands: list[Any], **attributes: Any
) -> Any:
    absent = np.zeros(0, np.int32)
    lengths = [absent if length is None else length for length in lengths]
    # One call after the other under vmap: each is exactly the call that it stands for.
    return jax.ffi.ffi_call(f"kindling_{name}", results, vmap_method="sequential")(
        *lengths,
        *operands,
        layout_q=rows.layout_q,
        layout_k=rows.layout_k,
        mask_mode=np.int64(rows.mask_mode),
        cmp_ratio=np.int64(rows.cmp_ratio),
        **attributes,
    )
