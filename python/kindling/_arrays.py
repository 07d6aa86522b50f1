"""Arrays in and out: views of what the caller has, and new arrays of the same kind.

NumPy is imported where an array is made, not above: it takes longer than the whole package.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from kindling import _core

if TYPE_CHECKING:
    import numpy as np

_FLOATS = frozenset(_core.DTYPES) - {"int32"}
_np: Any = None  # numpy, once an array was made


class Output:
    """An output of a call: the caller's buffer, or a new one of the kind of the call's `q`.

    Parameters
    ----------
    name : str
        What messages call it.
    given : array or None
        The caller's buffer.
    q, q_view : array, View
        Decide the kind of a new buffer.
    shape : tuple of int
    dtype : str
        One of the library's names; of anything else float32 is made, so that the library can say
        what is wrong with the input that the dtype was taken from.

    Attributes
    ----------
    array : View or array
        What the library writes to.
    shape : tuple of int
    dtype : str
    """

    __slots__ = ("_bfloat16", "_buffer", "_given", "_q", "array", "dtype", "shape")

    def __init__(
        self,
        name: str,
        given: Any,
        q: Any,
        q_view: _core.View,
        shape: tuple[int, ...],
        dtype: str,
    ) -> None:
        self._given = given is not None
        kind = q_view.kind
        self._q = q if kind == "dlpack" else None
        self._bfloat16 = False
        if given is not None:
            self._buffer = given
            self.array = _core.View(given, name, True)
            self.shape, self.dtype = self.array.shape, self.array.dtype
            return
        if dtype not in _FLOATS:
            dtype = "float32"
        np = _np or _numpy()
        self._bfloat16 = dtype == "bfloat16" and kind == "dlpack"
        try:
            if kind == "torch":
                torch = sys.modules["torch"]
                self._buffer = torch.empty(shape, dtype=getattr(torch, dtype), device="cpu")
            elif self._bfloat16:
                self._buffer = np.empty(shape, np.uint16)
            else:
                # NumPy has bfloat16 only where q brings it along.
                self._buffer = np.empty(
                    shape, q.dtype if dtype == "bfloat16" else getattr(np, dtype)
                )
        except (MemoryError, RuntimeError, ValueError) as error:
            raise MemoryError(f"{name}: expected memory for shape {shape}, got none") from error
        self.shape, self.dtype = shape, dtype
        self.array = self._buffer
        if self._bfloat16:
            self.array = _core.View(self._buffer, name, True, True)

    def result(self) -> Any:
        """The caller's buffer, or the new one in the namespace of `q`."""
        if self._given:
            if self.array.kind == "torch":
                _count_write(self._buffer)
            return self._buffer
        if self._q is None:
            return self._buffer
        return _into_namespace_of(self._q, self._buffer, self._bfloat16)


def _numpy() -> Any:
    global _np
    if _np is None:
        import numpy

        _np = numpy
    return _np


def _count_write(tensor: Any) -> None:
    """Tell autograd that a tensor was written in place, so that it notices a stale saved one."""
    if not tensor.is_inference():
        sys.modules["torch"].autograd.graph.increment_version(tensor)


def _into_namespace_of(q: Any, buffer: np.ndarray, bfloat16: bool) -> Any:
    """Pass a NumPy array on by DLPack, to the library that `q` is from if that can take it."""
    exchanged = _core.bfloat16_array(buffer) if bfloat16 else buffer
    try:
        from_dlpack = q.__array_namespace__().from_dlpack
    except AttributeError:
        return exchanged
    return from_dlpack(exchanged)


def _is_real(dtype: np.dtype) -> bool:
    """Whether a NumPy dtype holds real numbers, ml_dtypes' narrow floats included."""
    return dtype.kind in "biuf" or dtype.name.startswith(("bfloat", "float"))


def to_float64(array: Any, name: str) -> Any:
    """Whatever holds real numbers, in double: torch for torch tensors, else NumPy.

    Raises
    ------
    TypeError
        For what holds no real numbers.
    """
    if array is None:
        return None
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(array, torch.Tensor):
        if array.is_complex():
            raise TypeError(f"{name}: expected real numbers, got dtype {array.dtype}")
        return array.detach().to("cpu", torch.float64)
    import numpy as np

    converted = _to_numpy(array, name)
    if not _is_real(converted.dtype):
        raise TypeError(f"{name}: expected real numbers, got {_described(array, converted)}")
    return converted.astype(np.float64, copy=False)


def to_int32(array: Any, name: str) -> Any:
    """Whatever holds integers, in int32; None where it has no elements.

    Raises
    ------
    TypeError
        For what holds no integers.
    ValueError
        For an integer that int32 cannot hold.
    """
    if array is None:
        return None
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(array, torch.Tensor):
        array = array.detach().cpu()
        if array.is_floating_point() or array.is_complex() or array.dtype == torch.bool:
            raise TypeError(f"{name}: expected integers, got dtype {array.dtype}")
        array = array.to(torch.int64)
        if array.numel() > 0:
            _check_int32(int(array.min()), int(array.max()), name)
        return array.to(torch.int32)
    import numpy as np

    converted = _to_numpy(array, name)
    if converted.size == 0:
        return None
    if converted.dtype.kind not in "iu":
        raise TypeError(f"{name}: expected integers, got {_described(array, converted)}")
    _check_int32(int(converted.min()), int(converted.max()), name)
    return converted.astype(np.int32, copy=False)


def _check_int32(low: int, high: int, name: str) -> None:
    if low < -(2**31) or high >= 2**31:
        value = low if low < -(2**31) else high
        raise ValueError(f"{name}: expected values that int32 holds, got {value}")


def refuse_mask(array: Any, name: str) -> None:
    """Refuse arrays of numpy.ma, as views of memory do: a conversion forgets the mask."""
    masked = sys.modules.get("numpy.ma")
    if masked is not None and isinstance(array, masked.MaskedArray):
        raise TypeError(
            f"{name}: expected an array without a mask (.filled() makes one), "
            f"got {type(array).__name__}"
        )


def _to_numpy(array: Any, name: str) -> np.ndarray:
    import numpy as np

    refuse_mask(array, name)
    try:
        if hasattr(array, "__array__") or not hasattr(array, "__dlpack__"):
            return np.asarray(array)
        return np.from_dlpack(array)
    except Exception as error:
        raise TypeError(f"{name}: expected an array, got {type(array).__name__}") from error


def _described(array: Any, converted: np.ndarray) -> str:
    if hasattr(array, "dtype"):
        return f"dtype {array.dtype}"
    return f"{type(array).__name__} of dtype {converted.dtype}"
