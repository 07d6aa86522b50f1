"""Checks that need no element of any array, by the library itself: while tracing there is none."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import numpy as np

from kindling import _core, _rows
from kindling import _schema as schema
from kindling._arrays import refuse_mask
from kindling._rows import ATTRIBUTES, DEFAULTS, TENSORS, RowArguments, Rows

jax.tree_util.register_pytree_node(Rows, Rows.tree_flatten, Rows.tree_unflatten)


class _Description(NamedTuple):
    """An array as far as it is known while tracing."""

    name: str
    shape: tuple[int, ...]
    dtype: Any


def integer(name: str, value: Any) -> int:
    """A Python integer, or what stands for one, but nothing that only a running program knows."""
    if isinstance(value, jax.core.Tracer):
        raise TypeError(f"{name}: expected an integer known while tracing, got a traced value")
    index = schema.index_of(value)
    if index is None:
        raise TypeError(f"{name}: expected an integer, got {type(value).__name__}")
    return index


def number(name: str, value: Any) -> float:
    """The same for a real number."""
    if isinstance(value, jax.core.Tracer):
        raise TypeError(f"{name}: expected a number known while tracing, got a traced value")
    if isinstance(value, (bool, np.bool_)) or not hasattr(value, "__float__"):
        value, given = schema.index_of(value), value
        if value is None:
            raise TypeError(f"{name}: expected a real number, got {type(given).__name__}")
    return float(value)


def gather(rows: Any, causal: Any, given: RowArguments) -> Rows:
    """The row arguments of a call; their attributes are static to ``jax.jit``."""
    named = _rows.gather(rows, causal, given)
    for name in ATTRIBUTES:
        value = named[name]
        if not isinstance(DEFAULTS[name], str):
            named[name] = value if type(value) is int else integer(name, value)
        elif not isinstance(value, str):
            raise TypeError(f"{name}: expected a str, got {type(value).__name__}")
    return Rows._of({**DEFAULTS, **named})


def require(**arrays: Any) -> None:
    """Refuse None."""
    for name, value in arrays.items():
        if value is None:
            raise TypeError(f"{name}: expected a JAX or NumPy array, got None")


def check(operator_name: str, rows: Rows, **own: Any) -> None:
    """Refuse what the library would refuse whatever the lengths are.

    Raises
    ------
    ValueError, TypeError
        As the library does, before anything is traced or compiled.
    """
    arguments = schema.OPERATORS[operator_name]
    described = []
    for name, value in own.items():
        argument = arguments[name]
        if argument.kind != "attribute":
            if value is None and argument.default == "required":
                require(**{name: value})
            value = _described(name, value)
        described.append((name, value))
    tensors, attributes = rows.tree_flatten()
    lengths = tuple(map(_described, TENSORS, tensors))
    _check(operator_name, tuple(described), lengths, attributes)


def _described(name: str, value: Any) -> Any:
    if value is None:
        return None
    if isinstance(value, (jax.Array, np.ndarray)):
        refuse_mask(value, name)
        return _Description(name, value.shape, value.dtype)
    raise TypeError(f"{name}: expected a JAX or NumPy array, got {type(value).__name__}")


@functools.lru_cache(maxsize=1024)
def _check(
    operator_name: str,
    described: tuple[tuple[str, Any], ...],
    lengths: tuple[Any, ...],
    attributes: tuple[Any, ...],
) -> None:
    own = schema.own(operator_name)
    for name, description in described:
        array = _without_memory(description)
        own[name] = _core.View(array, name) if isinstance(array, np.ndarray) else array
    rows = Rows.tree_unflatten(attributes, [_without_memory(length) for length in lengths])
    getattr(_core, f"describe_{operator_name}")(own, {name: rows[name] for name in DEFAULTS})


def _without_memory(description: Any) -> Any:
    """An array of that shape and dtype all of whose elements are one."""
    if not isinstance(description, _Description):
        return description
    name, shape, dtype = description.name, description.shape, description.dtype
    if not all(isinstance(extent, int) for extent in shape):
        raise TypeError(f"{name}: expected a shape of numbers, got {shape}")
    try:
        element = np.empty((), dtype)
    except TypeError:  # JAX's own dtypes, such as those of random keys
        raise TypeError(f"{name}: expected an array of numbers, got dtype {dtype}") from None
    return np.broadcast_to(element, shape)
