"""The vendor's three metadata records, of which the library itself knows one.

===============================  =================================================================
record                           words, for T rows and C cores
===============================  =================================================================
KL loss gradient                 docs/metadata.md
student's log-sum-exp            T < C: (T, 0, 1, 0); C divides T: (C, 0, T/C, 0); else
                                 (T mod C, C - T mod C, T/C + 1, T/C)
teacher, u = min(T, C, 36)       (T, ceil(T/u), floor(T/u), (T mod u ? u - T mod u : 0), u)
===============================  =================================================================

All zero where T is 0, and the words after these are zero. Records are not interchangeable: every
operator takes its own. The library checks the rows T and C that a record says against the lengths.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kindling.torch._shapes import word

_MAX_TEACHER_CORES = 36


def kl_words(num_rows: int, num_cores: int) -> list[int]:
    if num_rows == 0:
        return [0, 0, 0, 0, 0]
    former = -(-num_rows // num_cores)
    remaining = former * num_cores - num_rows
    return [num_rows, former, former - 1, remaining, min(num_rows, num_cores)]


def lse_words(num_rows: int, num_cores: int) -> list[int]:
    if num_rows == 0:
        return [0, 0, 0, 0]
    if num_rows < num_cores:
        return [num_rows, 0, 1, 0]
    each, more = divmod(num_rows, num_cores)
    return [more, num_cores - more, each + 1, each] if more else [num_cores, 0, each, 0]


def teacher_words(num_rows: int, num_cores: int) -> list[int]:
    if num_rows == 0:
        return [0, 0, 0, 0, 0]
    used = min(num_rows, num_cores, _MAX_TEACHER_CORES)
    each, more = divmod(num_rows, used)
    return [num_rows, each + (more > 0), each, used - more if more else 0, used]


def num_cores_of(record: Tensor) -> int:
    """Cores that a compatible KL record of at least one row was made for."""
    rows, former, _, remaining, _ = record[:5].tolist()
    return (rows + remaining) // former


def write(record: Tensor, words: list[int]) -> Tensor:
    record.zero_()
    record[: len(words)] = torch.tensor(words, dtype=torch.int32)
    return record


def lse_record_as_kl(record: Tensor | None) -> Tensor | None:
    """The KL record for the same rows and cores.

    Raises
    ------
    ValueError, TypeError
        For what is no record of ``dense_lightning_indexer_softmax_lse_metadata``.
    """
    words = _words(record)
    if words is None:
        return None
    first, second, more, each = words[:4]
    # Where there are fewer rows than cores, this takes as many cores as rows: the same words.
    num_rows, num_cores = first * more + second * each, max(first + second, 1)
    is_small = max(num_rows, num_cores) < 2**31
    if min(words) < 0 or not is_small or words != _padded(lse_words(num_rows, num_cores)):
        _refuse("dense_lightning_indexer_softmax_lse_metadata", words)
    return _kl_record(num_rows, num_cores)


def teacher_record_as_kl(record: Tensor | None) -> Tensor | None:
    """The same for ``sparse_flash_mla_softmax_l1_norm_metadata``."""
    words = _words(record)
    if words is None:
        return None
    num_rows, num_cores = words[0], max(words[4], 1)
    if min(words) < 0 or words != _padded(teacher_words(num_rows, num_cores)):
        _refuse("sparse_flash_mla_softmax_l1_norm_metadata", words)
    return _kl_record(num_rows, num_cores)


def _kl_record(num_rows: int, num_cores: int) -> Tensor:
    return write(torch.empty(64, dtype=torch.int32), kl_words(num_rows, num_cores))


def _words(record: Tensor | None) -> list[int] | None:
    """None where the record is absent."""
    if record is None or record.numel() == 0:
        return None
    if record.dim() != 1 or record.shape[0] != 64:
        raise ValueError(f"metadata: expected shape (64,), got {tuple(record.shape)}")
    if record.dtype != torch.int32:
        raise TypeError(f"metadata: expected dtype int32, got {word(record.dtype)}")
    return record.tolist()


def _padded(words: list[int]) -> list[int]:
    return words + [0] * (64 - len(words))


def _refuse(operator: str, words: list[int]) -> None:
    raise ValueError(f"metadata: expected a record of {operator}, got words {words[:6]} ...")
