"""Checks that need no element of any array, by the library itself: while tracing there is none."""

from __future__ import annotations

import functools
import operator
from typing import Any, NamedTuple

import jax
import numpy as np

from kindling import _core

LENGTHS = ("cu_seqlens_q", "cu_seqlens_k", "seqused_q", "seqused_k", "cmp_residual_k")


class Rows(NamedTuple):
    """What says, besides the length tensors, where rows and keys are; static to ``jax.jit``."""

    layout_q: str
    layout_k: str
    mask_mode: int
    cmp_ratio: int


class _Description(NamedTuple):
    name: str
    shape: tuple[int, ...]
    dtype: Any


def integer(name: str, value: Any) -> int:
    """A Python integer, or what stands for one, but nothing that only a running program knows."""
    if isinstance(value, jax.core.Tracer):
        raise TypeError(f"{name}: expected an integer known while tracing, got a traced value")
    if isinstance(value, (bool, np.bool_)) or not hasattr(value, "__index__"):
        raise TypeError(f"{name}: expected an integer, got {type(value).__name__}")
    return operator.index(value)


def number(name: str, value: Any) -> float:
    """The same for a real number."""
    if isinstance(value, jax.core.Tracer):
        raise TypeError(f"{name}: expected a number known while tracing, got a traced value")
    if isinstance(value, (bool, np.bool_)) or not hasattr(value, "__float__"):
        raise TypeError(f"{name}: expected a real number, got {type(value).__name__}")
    return float(value)


def rows(layout_q: Any, layout_k: Any, mask_mode: Any, cmp_ratio: Any) -> Rows:
    for name, layout in (("layout_q", layout_q), ("layout_k", layout_k)):
        if not isinstance(layout, str):
            raise TypeError(f"{name}: expected a str, got {type(layout).__name__}")
    return Rows(
        layout_q, layout_k, integer("mask_mode", mask_mode), integer("cmp_ratio", cmp_ratio)
    )


def check(
    operator_name: str,
    arrays: dict[str, Any],
    lengths: tuple[Any, ...],
    rows: Rows,
    *attributes: Any,
    optional: tuple[str, ...] = (),
) -> None:
    """Refuse what the library would refuse whatever the lengths are.

    Raises
    ------
    ValueError, TypeError
        As the library does, before anything is traced or compiled.
    """
    described = []
    for name, value in (arrays | dict(zip(LENGTHS, lengths, strict=True))).items():
        if value is None and (name in optional or name in LENGTHS):
            described.append(None)
        elif isinstance(value, (jax.Array, np.ndarray)):
            described.append(_Description(name, value.shape, value.dtype))
        else:
            what = "None" if value is None else type(value).__name__
            raise TypeError(f"{name}: expected a JAX or NumPy array, got {what}")
    _check(operator_name, tuple(described), rows, *attributes)


@functools.lru_cache(maxsize=1024)
def _check(
    operator_name: str, described: tuple[_Description | None, ...], rows: Rows, *attributes: Any
) -> None:
    arrays = [None if array is None else _without_memory(array) for array in described]
    views = [
        None if array is None else _core.View(array, description.name)
        for array, description in zip(arrays, described[: -len(LENGTHS)], strict=False)
    ]
    shared = (*arrays[-len(LENGTHS) :], *rows)
    getattr(_core, f"describe_{operator_name}")(*views, shared, *attributes)


def _without_memory(description: _Description) -> np.ndarray:
    """An array of that shape and dtype all of whose elements are one."""
    name, shape, dtype = description
    if not all(isinstance(extent, int) for extent in shape):
        raise TypeError(f"{name}: expected a shape of numbers, got {shape}")
    try:
        element = np.empty((), dtype)
    except TypeError:  # JAX's own dtypes, such as those of random keys
        raise TypeError(f"{name}: expected an array of numbers, got dtype {dtype}") from None
    return np.broadcast_to(element, shape)
