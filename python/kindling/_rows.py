"""Which rows see which keys: what every operator is told besides its tensors, as one value.

Inside the package it is a dict by name, :class:`RowArguments`, which each door makes once from its
keyword arguments (:func:`gather`) and passes on to the library. To callers it is :class:`Rows`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from operator import itemgetter
from typing import Any, TypedDict

from kindling import _core


class RowArguments(TypedDict, total=False):
    """The arguments of :class:`Rows`. ``metadata`` is there where the operator takes a record."""

    cu_seqlens_q: Any
    cu_seqlens_k: Any
    seqused_q: Any
    seqused_k: Any
    cmp_residual_k: Any
    layout_q: str
    layout_k: str
    mask_mode: int
    cmp_ratio: int
    metadata: Any


def _default(argument: dict[str, str]) -> Any:
    text = argument["default"]
    if text == "none":
        return None
    return int(text) if argument["type"] == "int" else sys.intern(text)


DEFAULTS: RowArguments = {  # type: ignore[assignment]
    **{sys.intern(argument["name"]): _default(argument) for argument in _core.describe_rows()},
    "metadata": None,
}
"""Every argument and its default, in the library's order. To be copied, not to be changed.

Words are interned, as literals are, so that a default is found by identity.
"""

TENSORS = tuple(name for name, default in DEFAULTS.items() if default is None)
LENGTHS = tuple(name for name in TENSORS if name != "metadata")
ATTRIBUTES = tuple(name for name in DEFAULTS if name not in TENSORS)

_tensors_of = itemgetter(*TENSORS)
_attributes_of = itemgetter(*ATTRIBUTES)

CAUSAL = 3
"""The mask_mode of a right-down causal mask."""


class Rows(Mapping[str, Any]):
    """Which rows see which keys, in one value that every operator takes as ``rows``.

    It cannot be changed. As a mapping it holds the arguments that differ from their defaults, so
    that ``**rows`` stands for it in a call too. Once ``kindling.torch`` or ``kindling.jax`` is
    imported it is a pytree there, whose leaves are its arrays.

    Parameters
    ----------
    cu_seqlens_q, cu_seqlens_k : array or None, shape (B + 1,), int32
        Prefix sums of the allocated lengths; required in ``"TND"``, refused in ``"BSND"`` except
        by :func:`make_metadata`, which checks them.
    seqused_q, seqused_k : array or None, shape (B,), int32
        Used lengths; None: all that is allocated is used.
    cmp_residual_k : array or None, shape (B,), int32
        Tokens beyond the last whole compressed key, from 0 to ``cmp_ratio - 1``.
    metadata : array or None, shape (64,), int32
        A record of :func:`kindling.make_metadata` for these lengths.
    layout_q, layout_k : {"BSND", "TND"}
        Padded or packed.
    mask_mode : {0, 3}
        0: every key is visible; 3: causal, aligned at the last query and the last key.
    cmp_ratio : int
        Tokens per key, 1 to 128. In ``mask_mode`` 0 it only bounds ``cmp_residual_k``, and neither
        changes a result.
    causal : bool or None
        True: ``mask_mode`` 3; False: 0; None: as ``mask_mode`` says.

    Examples
    --------
    >>> import numpy as np, kindling
    >>> cu = np.array([0, 3, 4], np.int32)
    >>> rows = kindling.Rows(cu_seqlens_q=cu, cu_seqlens_k=cu, layout_q="TND", layout_k="TND",
    ...                      causal=True)
    >>> q = np.ones((4, 1, 1), np.float32)
    >>> kindling.softmax_lse(q, q, q[..., 0], rows=rows).shape, rows.mask_mode
    ((1, 4), 3)
    """

    __slots__ = ("_named",)
    _named: RowArguments

    def __init__(
        self,
        *,
        cu_seqlens_q: Any = None,
        cu_seqlens_k: Any = None,
        seqused_q: Any = None,
        seqused_k: Any = None,
        cmp_residual_k: Any = None,
        metadata: Any = None,
        layout_q: str = "BSND",
        layout_k: str = "BSND",
        mask_mode: int = 0,
        cmp_ratio: int = 1,
        causal: bool | None = None,
    ) -> None:
        named = RowArguments(
            cu_seqlens_q=cu_seqlens_q,
            cu_seqlens_k=cu_seqlens_k,
            seqused_q=seqused_q,
            seqused_k=seqused_k,
            cmp_residual_k=cmp_residual_k,
            layout_q=layout_q,
            layout_k=layout_k,
            mask_mode=mask_of(causal, mask_mode),
            cmp_ratio=cmp_ratio,
            metadata=metadata,
        )
        object.__setattr__(self, "_named", named)

    @classmethod
    def _of(cls, named: RowArguments) -> Rows:
        """That of complete arguments, unchecked: leaves of a pytree may be anything."""
        rows = object.__new__(cls)
        object.__setattr__(rows, "_named", named)
        return rows

    def __getattr__(self, name: str) -> Any:
        if name in DEFAULTS:
            return self._named[name]  # type: ignore[literal-required]
        raise AttributeError(f"Rows: expected one of {', '.join(DEFAULTS)}, got {name}")

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{name}: expected no change to Rows, got one")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{name}: expected no change to Rows, got one")

    def __getitem__(self, name: str) -> Any:
        return self._named[name]  # type: ignore[literal-required]

    def __iter__(self) -> Iterator[str]:
        return iter([name for name in DEFAULTS if _is_given(name, self._named)])

    def __len__(self) -> int:
        return sum(_is_given(name, self._named) for name in DEFAULTS)

    __eq__ = object.__eq__  # of arrays there is no answer yes or no
    __hash__ = object.__hash__  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Rows({', '.join(f'{name}={value!r}' for name, value in self.items())})"

    def __reduce__(self) -> Any:
        return Rows._of, (dict(self._named),)

    def tree_flatten(self) -> tuple[list[Any], tuple[Any, ...]]:
        """The arrays, in the order of ``TENSORS``, and the rest, which can be hashed."""
        return list(_tensors_of(self._named)), _attributes_of(self._named)

    @classmethod
    def tree_unflatten(cls, attributes: tuple[Any, ...], tensors: Any) -> Rows:
        """The inverse of :meth:`tree_flatten`."""
        named = dict(zip(TENSORS, tensors, strict=True))
        return cls._of({**named, **dict(zip(ATTRIBUTES, attributes, strict=True))})


def _is_given(name: str, named: Mapping[str, Any]) -> bool:
    default = DEFAULTS[name]  # type: ignore[literal-required]
    return named[name] is not None if default is None else named[name] != default


def mask_of(causal: bool | None, mask_mode: Any, default: int = 0) -> Any:
    """The mask_mode that both stand for; one that has its default says nothing beside causal."""
    if causal is None:
        return mask_mode
    if not isinstance(causal, bool):
        raise TypeError(f"causal: expected a bool, got {type(causal).__name__}")
    wanted = CAUSAL if causal else 0
    if mask_mode != default and mask_mode != wanted:
        raise ValueError(f"causal: expected what mask_mode = {mask_mode} says, got {causal}")
    return wanted


def gather(
    rows: Mapping[str, Any] | None, causal: bool | None, given: RowArguments
) -> RowArguments:
    """The row arguments of a call: `given`, its keyword arguments by name, or those of `rows`.

    Raises
    ------
    TypeError
        For `rows` that is no Rows and no mapping.
    ValueError
        For `rows` together with one of the arguments that it stands for, for a record where the
        call takes none, and for `causal` that contradicts the mask.
    """
    if rows is not None:
        given = _named_of(rows, given)
    if causal is not None:
        given["mask_mode"] = mask_of(causal, given["mask_mode"])
    return given


def without_defaults(rows: RowArguments) -> dict[str, Any]:
    """Those that a call by keyword has to name."""
    defaults: Mapping[str, Any] = DEFAULTS
    # By identity: an equal object that is another one is named, which does no harm.
    return {name: value for name, value in rows.items() if value is not defaults[name]}


def _named_of(rows: Mapping[str, Any], given: RowArguments) -> RowArguments:
    if not isinstance(rows, Rows):
        if not isinstance(rows, Mapping):
            raise TypeError(f"rows: expected a kindling.Rows, got {type(rows).__name__}")
        unknown = [name for name in rows if name not in DEFAULTS and name != "causal"]
        if unknown:
            raise ValueError(f"rows: expected arguments of kindling.Rows, got {unknown}")
        rows = Rows(**rows)
    for name in given:
        if _is_given(name, given):
            raise ValueError(f"{name}: expected none beside rows, which holds it, got one")
    if "metadata" not in given and rows.metadata is not None:
        raise ValueError("metadata: expected rows without a record, as none is taken, got one")
    return {name: rows[name] for name in given}  # type: ignore[return-value]
