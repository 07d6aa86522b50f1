"""Arrays of other libraries: torch, and stand-ins for those that are known by DLPack only."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np


class Exchanged:
    """An array of a library that is known by DLPack only. Its memory is a torch tensor's."""

    def __init__(self, tensor: Any, device: tuple[int, int] = (1, 0)) -> None:
        self._tensor, self._device = tensor, device

    def __dlpack__(self, **options: Any) -> Any:
        return self._tensor.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device

    def __array_namespace__(self) -> Any:
        return Exchanged

    @classmethod
    def from_dlpack(cls, other: Any) -> Exchanged:
        import torch

        return cls(torch.from_dlpack(other))

    def numpy(self) -> np.ndarray:
        return to_numpy(self._tensor)


class Bare:
    """The same without a namespace, or DLPack 1.0."""

    def __init__(self, tensor: Any) -> None:
        self._tensor = tensor

    def __dlpack__(self, stream: None = None) -> Any:
        return self._tensor.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


def to_torch(array: np.ndarray) -> Any:
    import torch

    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.uint16).copy()).view(torch.bfloat16)
    return torch.from_numpy(array.copy())


def to_numpy(array: Any) -> np.ndarray:
    if isinstance(array, np.ndarray):
        return array
    if isinstance(array, Exchanged):
        return array.numpy()
    import torch

    array = array.detach()
    if array.dtype == torch.bfloat16:
        return array.contiguous().view(torch.uint16).numpy().view(ml_dtypes.bfloat16)
    return array.numpy()
