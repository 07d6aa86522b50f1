"""Cases that the Python tests share: ragged batches and the arrays that fit them."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field, replace
from typing import Any

import definition
import ml_dtypes
import numpy as np

DTYPES = {
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float16": np.dtype(np.float16),
    "float32": np.dtype(np.float32),
}


LENGTHS = ("cu_seqlens_q", "cu_seqlens_k", "seqused_q", "seqused_k", "cmp_residual_k")


@dataclass(frozen=True)
class Case:
    """One ragged batch. `spare_q` and `spare_k` are allocated tokens beyond the used ones, per
    batch entry in "TND" and for the longest in "BSND"; where there are any, seqused is given."""

    num_rows: tuple[int, ...]
    num_keys: tuple[int, ...]
    layout_q: str = "TND"
    layout_k: str = "TND"
    mask_mode: int = 3
    cmp_ratio: int = 1
    residual: tuple[int, ...] | None = None
    spare_q: int = 0
    spare_k: int = 0
    spare_p: int = 0  # columns of a packed p beyond the longest used key length
    num_heads: int = 4
    head_dim: int = 32
    dtype: str = "float32"

    def __str__(self) -> str:
        return "{} {}/{} x{} r{} q{} k{} h{} d{} {}{}".format(
            self.dtype,
            self.layout_q,
            self.layout_k,
            self.mask_mode,
            self.cmp_ratio,
            ",".join(map(str, self.num_rows)),
            ",".join(map(str, self.num_keys)),
            self.num_heads,
            self.head_dim,
            "" if self.residual is None else f" res{','.join(map(str, self.residual))}",
            f" spare{self.spare_q},{self.spare_k},{self.spare_p}",
        ).replace(" spare0,0,0", "")

    @property
    def num_batches(self) -> int:
        return len(self.num_rows)

    def allocated_q(self) -> list[int]:
        return _allocated(self.num_rows, self.layout_q, self.spare_q)

    def allocated_k(self) -> list[int]:
        return _allocated(self.num_keys, self.layout_k, self.spare_k)

    def visible(self, batch: int) -> np.ndarray:
        """Keys that each used row of a batch entry sees."""
        uq, uk = self.num_rows[batch], self.num_keys[batch]
        if self.mask_mode == 0:
            return np.full(uq, uk)
        residual = 0 if self.residual is None else self.residual[batch]
        tokens = uk * self.cmp_ratio + residual - uq + np.arange(uq) + 1
        return np.clip(tokens // self.cmp_ratio, 0, uk)

    def lengths(self) -> dict[str, Any]:
        """The arguments that say where the rows and keys are."""
        arguments: dict[str, Any] = {
            "layout_q": self.layout_q,
            "layout_k": self.layout_k,
            "mask_mode": self.mask_mode,
            "cmp_ratio": self.cmp_ratio,
        }
        for side, used, allocated in (
            ("q", self.num_rows, self.allocated_q()),
            ("k", self.num_keys, self.allocated_k()),
        ):
            if arguments[f"layout_{side}"] == "TND":
                arguments[f"cu_seqlens_{side}"] = np.cumsum([0, *allocated], dtype=np.int32)
            if list(used) != allocated:
                arguments[f"seqused_{side}"] = np.array(used, np.int32)
        if self.residual is not None:
            arguments["cmp_residual_k"] = np.array(self.residual, np.int32)
        return arguments

    def metadata_arguments(self) -> dict[str, Any]:
        """What make_metadata takes besides: lengths and the attributes of a padded batch."""
        arguments = self.lengths()
        if "BSND" in (self.layout_q, self.layout_k):
            arguments["batch_size"] = self.num_batches
        if self.layout_q == "BSND":
            arguments["max_seqlen_q"] = self.allocated_q()[0]
        if self.layout_k == "BSND":
            arguments["max_seqlen_k"] = self.allocated_k()[0]
        return arguments

    def row_slot(self, batch: int) -> tuple[Any, ...]:
        """Index of a batch entry's used rows in q, w and p."""
        if self.layout_q == "BSND":
            return (batch, slice(0, self.num_rows[batch]))
        begin = sum(self.allocated_q()[:batch])
        return (slice(begin, begin + self.num_rows[batch]),)

    def lse_slot(self, batch: int) -> tuple[Any, ...]:
        """The same in lse and loss_rows."""
        if self.layout_q == "BSND":
            return (batch, 0, slice(0, self.num_rows[batch]))
        return (0, *self.row_slot(batch))

    def key_slot(self, batch: int) -> tuple[Any, ...]:
        """Index of a batch entry's used keys in k."""
        if self.layout_k == "BSND":
            return (batch, slice(0, self.num_keys[batch]))
        begin = sum(self.allocated_k()[:batch])
        return (slice(begin, begin + self.num_keys[batch]),)

    def row_shape(self) -> tuple[int, ...]:
        allocated = self.allocated_q()
        return (self.num_batches, allocated[0]) if self.layout_q == "BSND" else (sum(allocated),)

    def key_shape(self) -> tuple[int, ...]:
        allocated = self.allocated_k()
        return (self.num_batches, allocated[0]) if self.layout_k == "BSND" else (sum(allocated),)

    def lse_shape(self) -> tuple[int, ...]:
        rows = self.row_shape()
        return (rows[0], 1, rows[1]) if self.layout_q == "BSND" else (1, *rows)

    def teacher_stride(self) -> int:
        if self.layout_q == self.layout_k == "BSND":
            return self.allocated_k()[0]
        return max(self.num_keys, default=0) + self.spare_p

    def entry(self, batch: int) -> Case:
        """The case of one batch entry alone, packed, without spare tokens."""
        return replace(
            self,
            num_rows=(self.num_rows[batch],),
            num_keys=(self.num_keys[batch],),
            residual=None if self.residual is None else (self.residual[batch],),
            layout_q="TND",
            layout_k="TND",
            spare_q=0,
            spare_k=0,
            spare_p=0,
        )


SMALL = Case((5, 3), (9, 4), num_heads=3, head_dim=8)


@dataclass
class Inputs:
    """Arrays of a case. lse is the true one, rounded to float32."""

    q: np.ndarray
    k: np.ndarray
    w: np.ndarray
    p: np.ndarray
    lse: np.ndarray
    lengths: dict[str, Any] = field(default_factory=dict)

    def tensors(self) -> tuple[np.ndarray, ...]:
        return self.q, self.k, self.w, self.p, self.lse


def make_inputs(case: Case, *, mass: float | None = None) -> Inputs:
    """Random arrays: logits of a few units, rows of the teacher that sum to `mass` over the visible
    keys, or each to something else about 1. What no operator may read holds finite values here;
    `poison` makes it NaN."""
    random = np.random.default_rng(zlib.crc32(str(case).encode()))
    rows, keys = case.row_shape(), case.key_shape()
    spread = (2.0 / np.sqrt(case.head_dim)) ** 0.5
    q = (spread * random.standard_normal((*rows, case.num_heads, case.head_dim))).astype(
        DTYPES[case.dtype]
    )
    k = (spread * random.standard_normal((*keys, 1, case.head_dim))).astype(DTYPES[case.dtype])
    w = (random.standard_normal((*rows, case.num_heads)) / np.sqrt(case.num_heads)).astype("f4")
    p = random.random((*rows, 1, case.teacher_stride()), dtype="f4") ** 3
    p[random.random(p.shape) < 0.1] = 0
    for batch in range(case.num_batches):
        visible = np.arange(p.shape[-1]) < case.visible(batch)[:, None]
        sums = (p[case.row_slot(batch)][:, 0] * visible).sum(-1, keepdims=True)
        wanted = random.uniform(0.3, 1.7, sums.shape) if mass is None else mass
        p[case.row_slot(batch)] *= (wanted / np.maximum(sums, 1e-6))[:, None]
    inputs = Inputs(q, k, w, p, np.zeros(case.lse_shape(), "f4"), case.lengths())
    lse = definition.softmax_lse(case, inputs).value
    inputs.lse[...] = np.where(np.isfinite(lse), lse, 0)
    return inputs


def poison(case: Case, inputs: Inputs) -> Inputs:
    """The same inputs with NaN in everything that an operator must not read."""
    q, k, w, p, lse = (np.full_like(array, np.nan) for array in inputs.tensors())
    for batch in range(case.num_batches):
        visible = case.visible(batch)
        rows, seen = case.row_slot(batch), visible > 0
        for target, source in ((q, inputs.q), (w, inputs.w)):
            target[rows][seen] = source[rows][seen]
        lse[case.lse_slot(batch)][seen] = inputs.lse[case.lse_slot(batch)][seen]
        for target, source, n in zip(p[rows], inputs.p[rows], visible, strict=True):
            target[:, :n] = source[:, :n]
        if len(visible):
            k[case.key_slot(batch)] = inputs.k[case.key_slot(batch)]
    return Inputs(q, k, w, p, lse, inputs.lengths)


def _allocated(used: tuple[int, ...], layout: str, spare: int) -> list[int]:
    if layout == "BSND":
        return [max(used) + spare] * len(used)
    return [length + spare for length in used]


def sweep(count: int, seed: str, **fixed: Any) -> list[Case]:
    """Cases drawn from everything that an operator distinguishes, the same on every run."""
    random = np.random.default_rng(zlib.crc32(seed.encode()))
    few_rows, more_keys = [0, 1, 2, 3, 4, 5, 9, 17, 33], [0, 1, 2, 7, 31, 63, 64, 65, 130, 257, 300]

    def pick(options: Any) -> Any:
        return options[random.integers(len(options))]

    cases = []
    for _ in range(count):
        num_batches = pick([1, 1, 2, 3, 5])
        cmp_ratio = pick([1, 1, 2, 4, 13, 128])
        layout_q, layout_k = pick(["BSND", "TND"]), pick(["BSND", "TND"])
        num_rows = tuple(int(pick(few_rows)) for _ in range(num_batches))
        num_keys = tuple(int(pick(more_keys)) for _ in range(num_batches))
        residual = tuple(int(random.integers(cmp_ratio)) for _ in range(num_batches))
        case = Case(
            num_rows=num_rows,
            num_keys=num_keys,
            layout_q=layout_q,
            layout_k=layout_k,
            mask_mode=pick([0, 3, 3]),
            cmp_ratio=cmp_ratio,
            residual=residual if cmp_ratio > 1 or pick([False, True]) else None,
            spare_q=pick([0, 0, 1, 6]),
            spare_k=pick([0, 0, 1, 70]),
            spare_p=pick([0, 0, 1, 40]),
            num_heads=pick([1, 2, 3, 4, 5, 8, 16, 64]),
            head_dim=pick([1, 3, 8, 16, 32, 64, 100, 128, 160]),
            dtype=pick(list(DTYPES)),
        )
        cases.append(replace(case, **fixed))
    return cases
