"""A training step of the indexer as plain torch does it best, for bench/peers.py to measure.

Torch gets what suits it: loss and gradients by explicit formulas rather than autograd, so that
scores are computed once; preallocated results; a mask and copies in fp32 or bf16, whichever is
faster, made beforehand; the fastest number of rows in a block. Its bf16 products go through oneDNN.

eager     all rows at once, [T, H, S]
chunked   blocks of rows, and only the keys that a block sees
compiled  torch.compile of a block of fixed shape; under a causal mask its keys are rounded up to
          quarters of the sequence, so that four compilations serve
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

WIDTH = 128
EAGER_BYTES_PER_SCORE = 12
"""Scores, their ReLU and their gradients, and what is between."""
MOST_EAGER_BYTES = 4 << 30


class Problem(NamedTuple):
    """One sequence: q [T, H, D] and k [S, D] in bf16, w [T, H], p [T, S], hidden [T, S] or none."""

    q: Tensor
    k: Tensor
    w: Tensor
    p: Tensor
    hidden: Tensor | None


class Results(NamedTuple):
    loss: Tensor
    dq: Tensor
    dk: Tensor
    dw: Tensor


def make_problem(num_rows: int, num_keys: int, num_heads: int, is_causal: bool) -> Problem:
    generator = torch.Generator().manual_seed(7)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    q = normal(num_rows, num_heads, WIDTH).bfloat16()
    k = (normal(num_keys, WIDTH) / WIDTH**0.5).bfloat16()
    w = normal(num_rows, num_heads) / num_heads**0.5
    logits, hidden = normal(num_rows, num_keys), None
    if is_causal:
        hidden = ~torch.ones(num_rows, num_keys, dtype=torch.bool).tril(num_keys - num_rows)
        logits.masked_fill_(hidden, -torch.inf)
    return Problem(q, k, w, logits.softmax(-1), hidden)


def block_step(q: Tensor, k: Tensor, w: Tensor, p: Tensor, hidden: Tensor | None) -> Results:
    """Loss and gradients of some rows."""
    num_rows, num_heads, width = q.shape
    scores = (q.reshape(-1, width) @ k.t()).view(num_rows, num_heads, -1)
    weights = w.to(q.dtype)
    relu = scores.relu()
    logits = torch.bmm(weights.unsqueeze(1), relu).squeeze(1).float()
    if hidden is not None:
        logits = logits.masked_fill(hidden, -torch.inf)
    ln_y = logits - torch.logsumexp(logits, 1, keepdim=True)
    # p is 0 where a key is hidden, and 0 * inf is none.
    loss = (torch.xlogy(p, p) - torch.where(p > 0, p * ln_y, 0)).sum()
    logits_grad = (torch.exp(ln_y) * p.sum(1, keepdim=True) - p).to(q.dtype)
    dw = torch.bmm(relu, logits_grad.unsqueeze(2)).squeeze(2)
    scores_grad = (scores > 0) * logits_grad.unsqueeze(1) * weights.unsqueeze(2)
    scores_grad = scores_grad.view(num_rows * num_heads, -1)
    dq = (scores_grad @ k).view_as(q)
    return Results(loss, dq, scores_grad.t() @ q.reshape(-1, width), dw)


class TorchStep:
    """The whole step, `chunk` rows at a time; keys of a block are rounded up to `key_step`."""

    def __init__(
        self, problem: Problem, dtype: torch.dtype, chunk: int, key_step: int = 1, block=block_step
    ):
        self.problem = problem._replace(q=problem.q.to(dtype), k=problem.k.to(dtype))
        self.chunk, self.key_step, self.block = chunk, key_step, block
        q, k, w, _, _ = self.problem
        dq, dk, dw = torch.empty_like(q), torch.zeros(k.shape), torch.empty_like(w)
        self.out = Results(torch.zeros(()), dq, dk, dw)

    def __call__(self, first_row: int = 0) -> Results:
        q, k, w, p, hidden = self.problem
        out = self.out
        out.loss.zero_()
        out.dk.zero_()
        for begin in range(first_row, len(q), self.chunk):
            rows = slice(begin, begin + self.chunk)
            num_keys = len(k)
            if hidden is not None:
                num_seen = min(begin + self.chunk, len(q)) + len(k) - len(q)
                num_keys = min(-(-num_seen // self.key_step) * self.key_step, len(k))
            got = self.block(
                q[rows],
                k[:num_keys],
                w[rows],
                p[rows, :num_keys],
                None if hidden is None else hidden[rows, :num_keys],
            )
            out.dq[rows], out.dw[rows] = got.dq, got.dw
            out.dk[:num_keys] += got.dk
            out.loss.add_(got.loss)
        return out


def seconds_of(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def fastest(make: Callable[[int], TorchStep], chunk: int, num_rows: int) -> TorchStep:
    """Doubles or halves the number of rows in a block while the last half of all gets faster."""

    def measure(rows: int) -> tuple[float, int]:
        step = make(rows)
        first_row = num_rows // 2 // rows * rows
        step(num_rows - rows)  # warms up, and compiles
        seconds = min(seconds_of(lambda: step(first_row)) for _ in range(3))
        return seconds / (num_rows - first_row), rows

    best = measure(chunk)
    for factor in (2.0, 0.5):
        rows = int(best[1] * factor)
        improved = False
        while 1 <= rows <= num_rows and (other := measure(rows)) < best:
            best, rows, improved = other, int(rows * factor), True
        if improved:
            break
    return make(best[1])


def make_steps(problem: Problem, *, is_quick: bool) -> dict[str, TorchStep]:
    """Every side at its best, run once; a quick one compiles and tries nothing."""
    num_rows, num_heads, _ = problem.q.shape
    num_keys = len(problem.k)
    torch._dynamo.reset()  # compiled code is made for a number of threads
    block = torch.compile(block_step, dynamic=False)
    start = min(num_rows, 1 << max(0, (1024 // num_heads).bit_length() - 1))
    dtypes = {}
    for dtype in (torch.float32, torch.bfloat16):
        step = TorchStep(problem, dtype, start)
        step(num_rows - start)
        seconds = min(seconds_of(lambda step=step: step(num_rows - start)) for _ in range(3))
        dtypes[seconds] = dtype
    dtype = dtypes[min(dtypes)]
    steps = {}
    if EAGER_BYTES_PER_SCORE * num_rows * num_heads * num_keys <= MOST_EAGER_BYTES:
        steps["eager"] = TorchStep(problem, dtype, num_rows)
    if is_quick:
        steps["chunked"] = TorchStep(problem, dtype, start)
    else:
        steps["chunked"] = fastest(lambda rows: TorchStep(problem, dtype, rows), start, num_rows)

        def compiled(rows: int, key_step: int = num_keys) -> TorchStep:
            return TorchStep(problem, dtype, rows, key_step, block)

        best = fastest(compiled, steps["chunked"].chunk, num_rows)
        if problem.hidden is not None:
            best = compiled(best.chunk, -(-num_keys // 4))
        steps["compiled"] = best
    for step in steps.values():
        step()
    return steps
