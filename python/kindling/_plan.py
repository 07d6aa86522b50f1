"""Plans read back: which core takes which row, and what that costs."""

from __future__ import annotations

from typing import Any, NamedTuple

from kindling import _core
from kindling._rows import Rows, gather
from kindling._schema import ArgumentDescription, describe_operator


class RowCoordinates(NamedTuple):
    """Where one row lies and what it sees.

    Attributes
    ----------
    batch : int
        Its sequence.
    position : int
        Its place among the used rows of the sequence.
    storage_row : int
        Its row in q, w, p and lse: ``cu_seqlens_q[batch] + position`` or ``batch * S1 + position``.
    key_begin : int
        The storage row of the sequence's first key in k.
    num_visible_keys : int
        It sees keys ``key_begin`` to ``key_begin + num_visible_keys - 1``.
    """

    batch: int
    position: int
    storage_row: int
    key_begin: int
    num_visible_keys: int


class SocProfile(NamedTuple):
    """What a device name says about defaults; see docs/metadata.md."""

    family: str
    num_cores: int
    num_vector_cores: int
    base_block_size: int


class Plan:
    """A record of :func:`kindling.make_metadata`, or of somebody else, validated and ready to read.

    Parameters
    ----------
    metadata : array, shape (64,), int32
        The record.
    cu_seqlens_q, cu_seqlens_k : array or None, shape (B + 1,), int32
        Prefix sums of the allocated lengths; required in ``"TND"``, without effect in
        ``"BSND"``, where only their values are checked.
    seqused_q, seqused_k : array or None, shape (B,), int32
        Used lengths; None: all that is allocated is used.
    cmp_residual_k : array or None, shape (B,), int32
        Tokens beyond the last whole compressed key, from 0 to ``cmp_ratio - 1``.
    batch_size, max_seqlen_q, max_seqlen_k, layout_q, layout_k, mask_mode, cmp_ratio, causal, rows
        As the record was made with.

    Attributes
    ----------
    law : {"cyclic", "snake", "levelled"}
        How rows are dealt; see docs/metadata.md.
    num_rows : int
        Rows of the batch.
    num_cores : int
        Slots that the record was made for.
    num_used_cores : int
        Those that have rows, cores ``0 .. num_used_cores - 1``.
    pair_cost, row_overhead : int
        The cost of a row is ``pair_cost * visible keys + row_overhead``.

    Raises
    ------
    ValueError
        For lengths that do not fit together, and for a record that is none for them; the message
        names the first word that is wrong.
    TypeError
        For arrays that are not int32.
    """

    def __init__(
        self,
        metadata: Any,
        *,
        cu_seqlens_q: Any = None,
        cu_seqlens_k: Any = None,
        seqused_q: Any = None,
        seqused_k: Any = None,
        cmp_residual_k: Any = None,
        batch_size: int = 0,
        max_seqlen_q: int = 0,
        max_seqlen_k: int = 0,
        layout_q: str = "BSND",
        layout_k: str = "BSND",
        mask_mode: int = 0,
        cmp_ratio: int = 1,
        causal: bool | None = None,
        rows: Rows | None = None,
    ) -> None:
        rows = gather(
            rows,
            causal,
            {
                "cu_seqlens_q": cu_seqlens_q,
                "cu_seqlens_k": cu_seqlens_k,
                "seqused_q": seqused_q,
                "seqused_k": seqused_k,
                "cmp_residual_k": cmp_residual_k,
                "layout_q": layout_q,
                "layout_k": layout_k,
                "mask_mode": mask_mode,
                "cmp_ratio": cmp_ratio,
            },
        )
        self._plan = _core.make_plan(metadata, batch_size, max_seqlen_q, max_seqlen_k, rows)
        self.law: str = self._plan.law
        self.num_rows: int = self._plan.num_rows
        self.num_cores: int = self._plan.num_cores
        self.num_used_cores: int = self._plan.num_used_cores
        self.pair_cost: int = self._plan.pair_cost
        self.row_overhead: int = self._plan.row_overhead

    def rows_of_core(self, core: int) -> Any:
        """Rows of a core in the order in which it takes them, a NumPy array (rows,), int64."""
        return self._plan.rows_of_core(core)

    def core_of_row(self, row: int) -> int:
        """The core that takes a row."""
        return self._plan.core_of_row(row)

    def cost_of_row(self, row: int) -> int:
        """Modelled cost of a row, in units of one visible key where ``pair_cost`` is 1."""
        return self._plan.cost_of_row(row)

    def cost_of_cores(self) -> Any:
        """Modelled cost of all rows of each core, a NumPy array (num_used_cores,), int64."""
        return self._plan.cost_of_cores()

    def num_rows_of_cores(self) -> Any:
        """Number of rows of each core, a NumPy array (num_used_cores,), int64."""
        return self._plan.num_rows_of_cores()

    def locate(self, row: int) -> RowCoordinates:
        """Where a row lies and what it sees."""
        return RowCoordinates(**self._plan.locate(row))

    def __reduce__(self) -> Any:
        return _plan_of, (self._plan.arguments,)

    def __repr__(self) -> str:
        return (
            f"Plan(num_rows={self.num_rows}, num_cores={self.num_cores}, "
            f"num_used_cores={self.num_used_cores}, law={self.law!r})"
        )


def _plan_of(arguments: dict[str, Any]) -> Plan:
    return Plan(**arguments)


def validate_metadata(metadata: Any, **lengths: Any) -> None:
    """Check a record against the lengths that it is for; see :class:`kindling.Plan` for both.

    Raises
    ------
    ValueError, TypeError
        As :class:`kindling.Plan`.
    """
    Plan(metadata, **lengths)


def describe_metadata() -> list[ArgumentDescription]:
    """List the arguments of :func:`kindling.make_metadata`; see :func:`describe_operator`."""
    return describe_operator("make_metadata")


def soc_profile(soc_version: str) -> SocProfile:
    """Defaults of a device by its name.

    Parameters
    ----------
    soc_version : str
        Such as ``"Ascend950PR_9589"`` or ``"Ascend910B2"``.

    Raises
    ------
    ValueError
        For a name of no known family.
    """
    return SocProfile(**_core.soc_profile(soc_version))
