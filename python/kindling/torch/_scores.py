"""An indexer's logits and best keys, tile by tile: for evaluation, not for training."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from kindling import Plan, make_metadata
from kindling._rows import RowArguments, Rows, gather
from kindling.torch import _shapes as shapes
from kindling.torch._loss import check_attribute, check_rows, check_tensors

# Scores of a tile, [rows][heads][keys] in fp32, take 4 MiB: they stay in a core's share of the
# cache, and a product of that size is efficient.
_TILE_SCORES = 1 << 20


class TopK(NamedTuple):
    """What :func:`index_topk` returns.

    Attributes
    ----------
    values : Tensor, shape (B, S1, topk) or (T1, topk), float32
        Logits in descending order; -inf where a row sees fewer keys.
    indices : Tensor, shape of values, int64
        Keys, counted within their sequence; -1 where a row sees fewer, and for logits of -inf.
    """

    values: Tensor
    indices: Tensor


class _Tile(NamedTuple):
    rows: slice  # storage rows of q, flattened over the batch
    logits: Tensor  # (rows, keys that its last row sees); -inf where a row sees fewer


def index_scores(
    q: Tensor,
    k: Tensor,
    w: Tensor,
    *,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    seqused_q: Tensor | None = None,
    seqused_k: Tensor | None = None,
    cmp_residual_k: Tensor | None = None,
    layout_q: str = "BSND",
    layout_k: str = "BSND",
    mask_mode: int = 0,
    cmp_ratio: int = 1,
    causal: bool | None = None,
    rows: Rows | None = None,
    max_seqlen_k: int = 0,
) -> Tensor:
    """Logits ``I[j] = sum_h w[h] * max(q[h] . k[j], 0)`` of every row and key.

    The scores of single heads exist for one tile of rows at a time. No gradient flows.

    Parameters
    ----------
    q, k, w, cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, cmp_residual_k
        As in :func:`kindling.torch.indexer_kl_loss`.
    layout_q, layout_k, mask_mode, cmp_ratio, causal, rows
        As there.
    max_seqlen_k : int
        Last dim of the result; 0: S2 (BSND) or the longest used key length (TND).

    Returns
    -------
    Tensor, shape (B, S1, keys) or (T1, keys), float32
        -inf where a row does not see a key, and for unused rows.
    """
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
    max_seqlen_k = check_attribute("max_seqlen_k", max_seqlen_k)
    plan, longest = _plan(q, k, w, rows)
    width = max_seqlen_k or (k.shape[1] if rows["layout_k"] == "BSND" else longest)
    if width < longest:
        raise ValueError(
            f"max_seqlen_k: expected >= the longest used key length = {longest}, got {width}"
        )
    scores = w.new_full((*w.shape[:-1], width), -torch.inf)
    for tile in _tiles(q, k, w, plan):
        scores.view(-1, width)[tile.rows, : tile.logits.shape[1]] = tile.logits
    return scores


def index_topk(
    q: Tensor,
    k: Tensor,
    w: Tensor,
    topk: int,
    *,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    seqused_q: Tensor | None = None,
    seqused_k: Tensor | None = None,
    cmp_residual_k: Tensor | None = None,
    layout_q: str = "BSND",
    layout_k: str = "BSND",
    mask_mode: int = 0,
    cmp_ratio: int = 1,
    causal: bool | None = None,
    rows: Rows | None = None,
) -> TopK:
    """The keys that an indexer would choose for each row: those of the largest logits.

    Nothing of size [rows, keys] exists beyond one tile of rows. No gradient flows.

    Parameters
    ----------
    q, k, w, cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, cmp_residual_k
        As in :func:`kindling.torch.indexer_kl_loss`.
    topk : int
        Keys per row, at least 1.
    layout_q, layout_k, mask_mode, cmp_ratio, causal, rows
        As there.

    Returns
    -------
    TopK
        ``(values, indices)``.
    """
    topk = check_attribute("topk", topk)
    if topk < 1:
        raise ValueError(f"topk: expected >= 1, got {topk}")
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
    plan, _ = _plan(q, k, w, rows)
    values = w.new_full((*w.shape[:-1], topk), -torch.inf)
    indices = w.new_full(values.shape, -1, dtype=torch.int64)
    for tile in _tiles(q, k, w, plan):
        best = tile.logits.topk(min(topk, tile.logits.shape[1]), dim=-1)
        found = best.values.shape[1]
        values.view(-1, topk)[tile.rows, :found] = best.values
        seen = best.indices.masked_fill(best.values == -torch.inf, -1)
        indices.view(-1, topk)[tile.rows, :found] = seen
    return TopK(values, indices)


def _plan(q: Tensor, k: Tensor, w: Tensor, rows: RowArguments) -> tuple[Plan | None, int]:
    """Checks the arguments; where their rows are, and the longest used key length.

    The plan is None where nothing is allocated: no metadata is made of that.
    """
    check_tensors({"q": q, "k": k, "w": w}, {})
    check_rows(rows)
    shapes.check_devices({"q": q, "k": k, "w": w, **rows})
    shapes.describe("softmax_lse", rows, q=q, k=k, w=w)
    if q.numel() == 0 or k.numel() == 0:
        return None, 0
    lengths = dict(rows)
    if rows["layout_q"] == "BSND":
        lengths.update(batch_size=q.shape[0], max_seqlen_q=q.shape[1])
    if rows["layout_k"] == "BSND":
        lengths["max_seqlen_k"] = k.shape[1]
        lengths.setdefault("batch_size", k.shape[0])
    for name, tensor, side in (("q", q, "q"), ("k", k, "k")):
        cu_seqlens = rows[f"cu_seqlens_{side}"]
        if rows[f"layout_{side}"] == "TND" and cu_seqlens is not None and cu_seqlens.numel() > 0:
            if int(cu_seqlens[-1]) != tensor.shape[0]:
                raise ValueError(
                    f"cu_seqlens_{side}[{cu_seqlens.numel() - 1}]: expected the number of tokens "
                    f"of {name} = {tensor.shape[0]}, got {int(cu_seqlens[-1])}"
                )
    record = make_metadata(1, 1, 128, **lengths, num_cores=1)
    return Plan(record, **lengths), int(record[5])


@torch.no_grad()
def _tiles(q: Tensor, k: Tensor, w: Tensor, plan: Plan | None) -> Iterator[_Tile]:
    """Logits of a few rows of one sequence at a time, in the order of rows."""
    if plan is None:
        return
    queries, weights = q.reshape(-1, *q.shape[-2:]), w.reshape(-1, w.shape[-1]).float()
    keys = k.reshape(-1, k.shape[-1])
    num_heads = q.shape[-2]
    row = 0
    while row < plan.num_rows:
        first = plan.locate(row)
        last_of_sequence = _last_row(plan, row)
        most = plan.locate(last_of_sequence).num_visible_keys
        count = min(max(1, _TILE_SCORES // max(num_heads * most, 1)), last_of_sequence - row + 1)
        width = plan.locate(row + count - 1).num_visible_keys
        if width > 0:
            at = slice(first.storage_row, first.storage_row + count)
            own = keys[first.key_begin : first.key_begin + width].float()
            with torch.autocast("cpu", enabled=False):
                scores = torch.matmul(queries[at].float(), own.T).relu_()
                logits = torch.bmm(weights[at, None], scores)[:, 0]
            seen = [plan.locate(row + i).num_visible_keys for i in range(count)]
            keys_seen = torch.tensor(seen, device=q.device)[:, None]
            unseen = torch.arange(width, device=q.device) >= keys_seen
            logits.masked_fill_(unseen, -torch.inf)
            yield _Tile(at, logits)
        row += count


def _last_row(plan: Plan, row: int) -> int:
    """The last row of a row's sequence, by bisection."""
    batch, low, high = plan.locate(row).batch, row, plan.num_rows - 1
    while low < high:
        middle = (low + high + 1) // 2
        if plan.locate(middle).batch == batch:
            low = middle
        else:
            high = middle - 1
    return low
