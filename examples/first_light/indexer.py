"""The student: an indexer trained by Kindling's loss and gradients, and plain torch beside it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import kindling
import torch
from minilm import Pack
from torch import Tensor, nn

NUM_HEADS, HEAD_DIM = 8, 128
TOP_K = 32


class Indexer(nn.Module):
    """Three linear maps from a token's hidden state to the indexer's q, k and w.

    I(t, j) = sum_h w(t, h) max(q(t, h) . k(j), 0). The operator has no scale of its own, so w
    carries 1/sqrt(N1 D), which keeps a fresh indexer's logits small.
    """

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.q = nn.Linear(hidden_size, NUM_HEADS * HEAD_DIM)
        self.k = nn.Linear(hidden_size, HEAD_DIM)
        self.w = nn.Linear(hidden_size, NUM_HEADS)

    def forward(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Map hidden (T, hidden) to q (T, N1, D), k (T, 1, D) and w (T, N1)."""
        q = self.q(hidden).view(-1, NUM_HEADS, HEAD_DIM)
        k = self.k(hidden).view(-1, 1, HEAD_DIM)
        return q, k, self.w(hidden) * (NUM_HEADS * HEAD_DIM) ** -0.5


class Step(NamedTuple):
    """Loss (nats, summed over rows) and the gradients of q, k and w, none divided by the rows."""

    loss: float
    dq: Tensor
    dk: Tensor
    dw: Tensor


def kindling_step(q: Tensor, k: Tensor, w: Tensor, pack: Pack) -> Step:
    """Plan, student lse, loss and gradients by Kindling; nothing of size [T, H, S] exists."""
    lengths = pack.lengths
    metadata = kindling.make_metadata(NUM_HEADS, 1, HEAD_DIM, **lengths)
    lse = kindling.softmax_lse(q, k, w, metadata=metadata, **lengths)
    g = kindling.kl_loss_grad(
        q, k, w, pack.p, lse, metadata=metadata, return_softmax=False, return_loss=True, **lengths
    )
    return Step(g.loss, g.dq, g.dk, g.dw)


def torch_step(q: Tensor, k: Tensor, w: Tensor, pack: Pack) -> Step:
    """The same by torch autograd, document by document, with scores of shape [t, H, s]."""
    q, k, w = (tensor.detach().requires_grad_() for tensor in (q, k, w))
    total = 0.0
    for document in range(pack.num_documents):
        rows = pack.rows(document)
        scores = torch.einsum("thd,sd->ths", q[rows], k[rows, 0]).relu()
        logits = torch.einsum("ths,th->ts", scores, w[rows])
        p = pack.p[rows, 0, : logits.shape[1]]
        loss = (torch.xlogy(p, p) - p * logits.log_softmax(-1)).sum()
        loss.backward()
        total += loss.item()
    return Step(total, q.grad, k.grad, w.grad)


class Score(NamedTuple):
    """KL per token (nats) and share of teacher mass on the student's top-32 keys."""

    kl: float
    recall: float
    student: Tensor  # float32 (T, 1, max_seqlen_k)


@torch.no_grad()
def divergence(indexer: Indexer, pack: Pack) -> float:
    """KL per token in nats: the forward alone."""
    _, loss_rows = kindling.softmax_lse(*indexer(pack.hidden), p=pack.p, **pack.lengths)
    return float(loss_rows.double().sum()) / pack.num_rows


@torch.no_grad()
def evaluate(indexer: Indexer, pack: Pack) -> Score:
    """Judge the indexer on a pack."""
    q, k, w = indexer(pack.hidden)
    lse = kindling.softmax_lse(q, k, w, **pack.lengths)
    g = kindling.kl_loss_grad(q, k, w, pack.p, lse, return_loss=True, **pack.lengths)
    return Score(g.loss / pack.num_rows, recall(g.softmax_out, pack), g.softmax_out)


def recall(ranking: Tensor, pack: Pack) -> float:
    """Mean share of teacher mass on the top-32 keys of a ranking, (T, 1, max_seqlen_k)."""
    mass = 0.0
    for document in range(pack.num_documents):
        rows, n = pack.rows(document), int(pack.seqused[document])
        top = ranking[rows, 0, :n].topk(min(TOP_K, n), dim=-1).indices
        mass += float(pack.p[rows, 0, :n].gather(-1, top).double().sum())
    return mass / pack.num_rows


def recall_random(pack: Pack) -> float:
    """Expected teacher mass of 32 keys drawn blindly: min(32, n)/n, mean over rows."""
    n = pack.seqused.double()
    return float((n.clamp(max=TOP_K) / n * n).sum() / n.sum())


def recall_nearest(pack: Pack) -> float:
    """Teacher mass of the 32 keys nearest to the query: what a sliding window would catch."""
    position = torch.arange(pack.p.shape[-1])
    ranking = torch.zeros_like(pack.p)
    for document in range(pack.num_documents):
        own = torch.arange(int(pack.seqused[document]))
        ranking[pack.rows(document), 0] = -(own[:, None] - position).abs().float()
    return recall(ranking, pack)


def minibatches(pack: Pack, max_slots: int, generator: torch.Generator) -> Iterator[list[int]]:
    """Yield groups of documents for ever; each epoch is a new shuffle cut at ``max_slots``."""
    slots = pack.cu_seqlens.diff().tolist()
    while True:
        group: list[int] = []
        for document in torch.randperm(pack.num_documents, generator=generator).tolist():
            if group and sum(slots[d] for d in group) + slots[document] > max_slots:
                yield group
                group = []
            group.append(document)
        yield group


def train(
    indexer: Indexer,
    pack: Pack,
    *,
    steps: int,
    max_slots: int,
    seed: int,
    learning_rate: float,
    on_step: Callable[[int, float], None],
) -> int:
    """Train by Adam on Kindling's gradients and return the number of tokens seen.

    ``on_step(step, kl)`` gets the minibatch's KL per token, before that step's update.
    """
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(indexer.parameters(), lr=learning_rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=max(steps, 1))
    groups = minibatches(pack, max_slots, generator)
    num_tokens = 0
    for step in range(steps):
        batch = pack.select(next(groups))
        q, k, w = indexer(batch.hidden)
        result = kindling_step(q.detach(), k.detach(), w.detach(), batch)
        # The operator sums over rows; dividing here makes the step size independent of the batch.
        gradients = [g / batch.num_rows for g in (result.dq, result.dk, result.dw)]
        optimizer.zero_grad()
        torch.autograd.backward([q, k, w], gradients)
        optimizer.step()
        schedule.step()
        num_tokens += batch.num_rows
        on_step(step, result.loss / batch.num_rows)
    return num_tokens


class Comparison(NamedTuple):
    """Median milliseconds of both steps on one minibatch, and how far their gradients differ."""

    kindling_ms: float
    torch_ms: float
    max_abs_difference: float
    max_rel_difference: float
    rows: int


@torch.no_grad()
def compare(indexer: Indexer, batch: Pack, rounds: int = 7) -> Comparison:
    """Time Kindling's step and plain torch's alternately on the same q, k and w.

    The relative difference of a gradient is its largest absolute difference over its largest
    magnitude; both maxima are taken over dq, dk and dw.
    """
    tensors = indexer(batch.hidden)
    elapsed_ms: dict[str, list[float]] = {"kindling": [], "torch": []}
    results: dict[str, Step] = {}
    for round_ in range(rounds + 1):  # the first is warm-up
        for name, step in (("kindling", kindling_step), ("torch", torch_step)):
            begin = time.perf_counter()
            with torch.enable_grad():
                results[name] = step(*tensors, batch)
            if round_ > 0:
                elapsed_ms[name].append(1e3 * (time.perf_counter() - begin))
    pairs = list(zip(results["kindling"][1:], results["torch"][1:], strict=True))
    differences = [float((ours - theirs).abs().max()) for ours, theirs in pairs]
    magnitudes = [float(theirs.abs().max()) for _, theirs in pairs]
    return Comparison(
        kindling_ms=statistics.median(elapsed_ms["kindling"]),
        torch_ms=statistics.median(elapsed_ms["torch"]),
        max_abs_difference=max(differences),
        max_rel_difference=max(d / m for d, m in zip(differences, magnitudes, strict=True)),
        rows=batch.num_rows,
    )
