"""The operators as data, for the doors of the package and for the tests that hold them to it.

The description itself is the library's (``kindling/schema.h``); here stands what Python adds to it.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any, NamedTuple

from kindling import _core
from kindling._rows import DEFAULTS


class ArgumentDescription(NamedTuple):
    """One argument of an operator, as data; shapes in the symbols of docs/glossary.md.

    Attributes
    ----------
    name : str
    kind : {"input", "output", "attribute", "environment"}
    type : str
        "int", "float", "str", or the dtypes of a tensor such as "fp32 tensor".
    shape : str
        Of a tensor: one for both layouts, or "BSND; TND"; may be "as" another's.
    default : str
        "required", "none", or the value.
    doc : str
    """

    name: str
    kind: str
    type: str
    shape: str
    default: str
    doc: str


OPERATORS = {
    name: {argument["name"]: ArgumentDescription(**argument) for argument in arguments}
    for name, arguments in _core.describe_operators().items()
}
"""Arguments by name, of each operator by name."""


def describe_operator(name: str) -> list[ArgumentDescription]:
    """List the arguments of an operator with types, shapes, defaults and docs.

    Parameters
    ----------
    name : {"make_metadata", "softmax_lse", "kl_loss_grad", "attention_teacher"}
    """
    if name not in OPERATORS:
        raise ValueError(f"name: expected one of {', '.join(OPERATORS)}, got {name!r}")
    return list(OPERATORS[name].values())


def index_of(value: Any) -> int | None:
    """Whatever stands for an integer, as one; None for bools and for what has no ``__index__``."""
    if isinstance(value, bool) or str(getattr(value, "dtype", "")).endswith("bool"):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def own(operator_name: str) -> dict[str, Any]:
    """What the library is told besides rows, all of it absent: for calls that describe."""
    arguments = OPERATORS[operator_name]
    return {
        name: float(argument.default) if argument.type == "float" else None
        for name, argument in arguments.items()
        if name not in DEFAULTS
    }


def lse_shape(q_shape: tuple[Any, ...], layout_q: Any) -> tuple[Any, ...]:
    """Shape of lse and of loss rows. What is wrong with q or its layout is for the library to
    say."""
    if isinstance(layout_q, str):
        if layout_q == "TND" and len(q_shape) >= 1:
            return (1, q_shape[0])
        if layout_q == "BSND" and len(q_shape) >= 2:
            return (q_shape[0], 1, q_shape[1])
    return (0,)


def teacher_width(k_shape: tuple[Any, ...], rows: Mapping[str, Any], max_seqlen_k: Any) -> Any:
    """Last dim of p where it must not depend on the values of lengths.

    Raises
    ------
    ValueError
        Where a layout is packed and `max_seqlen_k` does not say.
    """
    if rows["layout_q"] == rows["layout_k"] == "BSND":
        return k_shape[1]
    if max_seqlen_k > 0:
        return max_seqlen_k
    raise ValueError(
        "max_seqlen_k: expected > 0 where a layout is TND, as the shape of p must not depend on "
        f"data, got {max_seqlen_k}"
    )
