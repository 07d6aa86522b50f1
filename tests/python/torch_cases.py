"""Cases of the Python tests as torch tensors, and the same mathematics in plain torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from cases import Case, make_inputs
from exchange import to_torch
from torch import Tensor

RAGGED = Case((5, 3), (9, 4), num_heads=3, head_dim=8, spare_q=1, spare_k=2)
PADDED = Case((6, 6), (6, 6), "BSND", "BSND", num_heads=2, head_dim=16)
COMPRESSED = Case((9, 5), (3, 2), cmp_ratio=4, residual=(2, 1), num_heads=4, head_dim=8)
MIXED = Case((4, 4), (7, 5), "BSND", "TND", mask_mode=0, num_heads=2, head_dim=8, spare_p=3)


def tensors(case: Case, **options: Any) -> tuple[list[Tensor], dict[str, Any]]:
    """[q, k, w, p, lse] and the length arguments."""
    inputs = make_inputs(case, **options)
    lengths = {
        name: to_torch(value) if isinstance(value, np.ndarray) else value
        for name, value in inputs.lengths.items()
    }
    return [to_torch(array) for array in inputs.tensors()], lengths


def metadata_arguments(case: Case) -> dict[str, Any]:
    return {
        name: to_torch(value) if isinstance(value, np.ndarray) else value
        for name, value in case.metadata_arguments().items()
    }


def loss_rows(case: Case, q: Tensor, k: Tensor, w: Tensor, p: Tensor) -> Tensor:
    """The loss of each row by torch operations in the dtype of q, differentiable."""
    rows = torch.zeros(case.lse_shape(), dtype=torch.promote_types(q.dtype, w.dtype))
    for batch in range(case.num_batches):
        visible = torch.from_numpy(case.visible(batch))
        queries, keys = q[case.row_slot(batch)], k[case.key_slot(batch)][:, 0]
        scores = torch.einsum("thd,jd->thj", queries, keys).relu()
        logits = torch.einsum("thj,th->tj", scores.to(rows.dtype), w[case.row_slot(batch)])
        seen = torch.arange(len(keys)) < visible[:, None]
        lse = logits.masked_fill(~seen, -torch.inf)[visible > 0].logsumexp(-1, keepdim=True)
        target = p[case.row_slot(batch)][:, 0, : len(keys)].masked_fill(~seen, 0)[visible > 0]
        terms = torch.xlogy(target, target) - target * (logits[visible > 0] - lse)
        slot = torch.zeros(len(visible), dtype=rows.dtype)
        slot[visible > 0] = terms.sum(-1).to(rows.dtype)
        rows[case.lse_slot(batch)] = slot
    return rows


def leaves(*given: Tensor) -> list[Tensor]:
    return [tensor.detach().clone().requires_grad_() for tensor in given]


def assert_as_accurate(
    actual: Tensor, low: Tensor, exact: Tensor, what: str, factor: float = 2.0
) -> None:
    """No further from the exact result than `factor` times the same computation in low precision.

    A few units in the last place of the largest element are allowed in any case.
    """
    assert actual.shape == exact.shape and actual.dtype == low.dtype, what
    error = (actual.double() - exact).abs().max().item()
    plain = (low.double() - exact).abs().max().item()
    floor = 4 * torch.finfo(actual.dtype).eps * exact.abs().max().item()
    assert error <= factor * plain + floor, (
        f"{what}: off by {error:.3g}, plain torch by {plain:.3g}"
    )
