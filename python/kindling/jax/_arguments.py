"""Checks that need no element of any array, by the library itself: while tracing there is none."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import jax
import numpy as np

from kindling import _core, _rows
from kindling import _schema as schema
from kindling._arrays import refuse_mask
from kindling._rows import ATTRIBUTES, DEFAULTS, TENSORS, RowArguments, Rows

jax.tree_util.register_pytree_node(Rows, Rows.tree_flatten, Rows.tree_unflatten)


_ARRAYS = (jax.Array, np.ndarray)
_PLAIN = tuple((name, type(DEFAULTS[name])) for name in ATTRIBUTES)


# An array as far as it is known while tracing: its name, shape and dtype. None is absent.
_Description = tuple[str, tuple[int, ...], Any] | None


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
    named["metadata"] = None
    for name, plain in _PLAIN:
        value = named[name]
        if type(value) is plain:
            continue
        if plain is int:
            named[name] = integer(name, value)
        elif not isinstance(value, str):
            raise TypeError(f"{name}: expected a str, got {type(value).__name__}")
    return Rows._of(named)


def require(**arrays: Any) -> None:
    """Refuse None."""
    for name, value in arrays.items():
        if value is None:
            raise TypeError(f"{name}: expected a JAX or NumPy array, got None")


def check(operator_name: str, rows: Rows, arrays: dict[str, Any], **attributes: float) -> None:
    """Refuse what the library would refuse whatever the lengths are.

    Raises
    ------
    ValueError, TypeError
        As the library does, before anything is traced or compiled.
    """
    tensors, row_attributes = rows.tree_flatten()
    _check(
        operator_name,
        tuple(arrays),
        _described(arrays.items()),
        _described(zip(TENSORS, tensors, strict=True)),
        row_attributes,
        **attributes,
    )


def _described(arrays: Iterable[tuple[str, Any]]) -> tuple[_Description, ...]:
    described: list[_Description] = []
    for name, value in arrays:
        if value is None:
            described.append(None)
        elif isinstance(value, _ARRAYS):
            refuse_mask(value, name)
            described.append((name, value.shape, value.dtype))
        else:
            raise TypeError(f"{name}: expected a JAX or NumPy array, got {type(value).__name__}")
    return tuple(described)


@functools.lru_cache(maxsize=1024)
def _check(
    operator_name: str,
    names: tuple[str, ...],
    described: tuple[_Description, ...],
    lengths: tuple[_Description, ...],
    row_attributes: tuple[Any, ...],
    **attributes: float,
) -> None:
    own = {**schema.own(operator_name), **attributes}
    for name, description in zip(names, described, strict=True):
        if description is not None:
            own[name] = _core.View(_without_memory(description), name)
        elif schema.OPERATORS[operator_name][name].default == "required":
            require(**{name: None})
    rows = Rows.tree_unflatten(row_attributes, [_without_memory(length) for length in lengths])
    getattr(_core, f"describe_{operator_name}")(own, {name: rows[name] for name in DEFAULTS})


def _without_memory(description: _Description) -> np.ndarray | None:
    """An array of that shape and dtype all of whose elements are one."""
    if description is None:
        return None
    name, shape, dtype = description
    if not all(isinstance(extent, int) for extent in shape):
        raise TypeError(f"{name}: expected a shape of numbers, got {shape}")
    try:
        element = np.empty((), dtype)
    except TypeError:  # JAX's own dtypes, such as those of random keys
        raise TypeError(f"{name}: expected an array of numbers, got dtype {dtype}") from None
    return np.broadcast_to(element, shape)
