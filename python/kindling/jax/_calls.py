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
from kindling._rows import ATTRIBUTES, TENSORS, Rows
from kindling._schema import lse_shape

if not _core.jax_handlers:
    raise ImportError(
        "kindling.jax: expected a package that was built with KINDLING_JAX=1, got one without; "
        "build it again from its source: KINDLING_JAX=1 pip install ."
    )
for _name, _handler in _core.jax_handlers.items():
    jax.ffi.register_ffi_target(f"kindling_{_name}", _handler, platform="cpu")


def num_rows(rows: Rows, q: Any) -> jax.Array:
    """Used rows of arguments that the library accepts, but 1 where there are none."""
    if rows.seqused_q is not None and rows.seqused_q.size > 0:
        return jnp.maximum(jnp.sum(rows.seqused_q, dtype=jnp.int32), 1)
    count = q.shape[0] if rows.layout_q == "TND" else q.shape[0] * q.shape[1]
    return jnp.int32(min(max(count, 1), 2**31 - 1))


def softmax_lse(rows: Rows, q: Any, k: Any, w: Any, p: Any) -> dict[str, jax.Array]:
    """lse, and loss_rows where p is given."""
    per_row = jax.ShapeDtypeStruct(lse_shape(q.shape, rows.layout_q), jnp.float32)
    results = {"lse": per_row} if p is None else {"lse": per_row, "loss_rows": per_row}
    return _call("softmax_lse", results, rows, {"q": q, "k": k, "w": w, "p": p})


def kl_loss_grad(
    return_softmax: bool,
    return_loss: bool,
    grad_dtype: str,
    rows: Rows,
    q: Any,
    k: Any,
    w: Any,
    p: Any,
    lse: Any,
    row_scale: Any,
) -> dict[str, jax.Array]:
    """dq, dk, dw, and softmax_out and loss_rows as far as they are asked for."""
    results = {
        "dq": jax.ShapeDtypeStruct(q.shape, grad_dtype),
        "dk": jax.ShapeDtypeStruct(k.shape, grad_dtype),
        "dw": jax.ShapeDtypeStruct(w.shape, jnp.float32),
    }
    if return_softmax:
        results["softmax_out"] = jax.ShapeDtypeStruct(p.shape, jnp.float32)
    if return_loss:
        results["loss_rows"] = jax.ShapeDtypeStruct(lse.shape, jnp.float32)
    operands = {"q": q, "k": k, "w": w, "p": p, "lse": lse, "row_scale": row_scale}
    return _call("kl_loss_grad", results, rows, operands)


def attention_teacher(
    softmax_scale: float, width: int, rows: Rows, q: Any, k: Any, lse: Any
) -> jax.Array:
    """p, with a last dim of `width`."""
    results = {"p": jax.ShapeDtypeStruct((*q.shape[:-2], 1, width), jnp.float32)}
    attributes = {"softmax_scale": np.float64(softmax_scale), "max_seqlen_k": np.int64(width)}
    operands = {"q": q, "k": k, "lse": lse}
    return _call("attention_teacher", results, rows, operands, **attributes)["p"]


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
    name: str, results: dict[str, Any], rows: Rows, operands: dict[str, Any], **attributes: Any
) -> dict[str, jax.Array]:
    """The handler takes operands, results and attributes by name; None is absent."""
    tensors = {tensor: rows[tensor] for tensor in TENSORS} | operands
    given = {tensor: value for tensor, value in tensors.items() if value is not None}
    for attribute in ATTRIBUTES:
        value = rows[attribute]
        attributes[attribute] = np.int64(value) if isinstance(value, int) else value
    call = jax.ffi.ffi_call(
        f"kindling_{name}",
        list(results.values()),
        # One call after the other under vmap: each is exactly the call that it stands for.
        vmap_method="sequential",
    )
    names = {"operands": ",".join(given), "results": ",".join(results)}
    return dict(zip(results, call(*given.values(), **names, **attributes), strict=True))
