"""One training step of an indexer: Kindling beside the best that plain torch does.

The step is log-sum-exp, loss and gradients of q, k and w under a causal mask, for a given teacher.

kindling      indexer_kl_loss and its backward pass
eager         scores of all heads at once, [H, S, S], by autograd
chunked       blocks of rows, and only the keys that a block sees; the backward pass of a block
              follows its forward pass, so that its scores live no longer, and its gradients are
              written where they belong
checkpointed  the same blocks in one graph, by torch.utils.checkpoint
compiled      torch.compile of the chunked block

Blocks have the number of rows that is fastest for the chunked side on this machine.

Answers are compared with a computation in double before anything is timed. All sides run in one
process, one after the other in every round; ratios are of one round, given as median and range.
Peak extra memory is what the first step of a fresh process needs beyond what was resident before.
Torch multiplies bf16 in fp32 where that is faster, as it is on processors without such products.

    python bench/torch_step.py --heads 8 64 --lengths 1024 4096 --dtypes float32 bfloat16
"""

from __future__ import annotations

import argparse
import ctypes
import json
import multiprocessing
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import kindling
import torch
from kindling.torch import indexer_kl_loss
from torch import Tensor
from torch.utils.checkpoint import checkpoint

HEAD_DIM = 128
BLOCK_SCORES = [1 << power for power in range(17, 24)]
"""Scores of a block, half a MiB to 32 MiB in fp32, of which the fastest is taken."""
SAMPLED_SCORES = 1 << 26
"""Of a whole [H, S, S], as many as are computed to find it."""
EAGER_BYTES_PER_SCORE = 20
"""Scores, their ReLU, the fp32 copy and the gradients of these."""
MAX_SECONDS = 120
"""After that no further round is begun."""
CHECKED_LENGTH = 256
"""Sequence length at which answers are compared; a double [H, S, S] of it is small."""
TOLERANCE = {"float32": 1e-4, "bfloat16": 3e-2}
"""Relative to the largest element of a gradient. In bf16 one rounding of dS alone is 2 ** -8."""

Step = Callable[..., tuple[Tensor, ...]]


class Case(NamedTuple):
    heads: int
    length: int
    dtype: str

    def __str__(self) -> str:
        return f"H={self.heads} S={self.length} {self.dtype}"


def make_inputs(case: Case) -> list[Tensor]:
    torch.manual_seed(0)
    dtype = getattr(torch, case.dtype)
    q = torch.randn(1, case.length, case.heads, HEAD_DIM) * HEAD_DIM**-0.5
    k = torch.randn(1, case.length, 1, HEAD_DIM)
    w = torch.randn(1, case.length, case.heads) * case.heads**-0.5
    seen = torch.ones(case.length, case.length, dtype=torch.bool).tril()
    logits = torch.randn(case.length, case.length).mul_(2).masked_fill_(~seen, -torch.inf)
    p = logits.softmax(-1)[None, :, None]
    return [q.to(dtype), k.to(dtype), w, p]


def _is_widening_faster() -> bool:
    """Whether a product of bf16 matrices takes longer than one of fp32."""
    elapsed = {}
    for dtype in (torch.float32, torch.bfloat16):
        a = torch.ones(512, 512, dtype=dtype)
        a @ a
        begin = time.perf_counter()
        a @ a
        elapsed[dtype] = time.perf_counter() - begin
    return elapsed[torch.bfloat16] > elapsed[torch.float32]


_WIDEN = _is_widening_faster()


def block_loss(q: Tensor, k: Tensor, w: Tensor, p: Tensor, first: int) -> Tensor:
    """Loss of rows [first, first + t): q (t, H, D), keys (n, D) that the last row sees."""
    if _WIDEN:
        q, k = q.to(w.dtype), k.to(w.dtype)
    scores = torch.matmul(q, k.T).relu()  # (t, H, n)
    logits = torch.matmul(w[:, None], scores.to(w.dtype))[:, 0]
    rows = torch.arange(first, first + q.shape[0])[:, None]
    logits = logits.masked_fill(torch.arange(k.shape[0]) > rows, -torch.inf)
    ln_y = logits.log_softmax(-1)
    # p is 0 where a key is not seen, and 0 * inf is none.
    return (torch.xlogy(p, p) - torch.where(p > 0, p * ln_y, 0)).sum()


class Block(NamedTuple):
    """Rows of a sequence, the keys that they see, and the number of the first row."""

    q: Tensor
    k: Tensor
    w: Tensor
    p: Tensor
    first: int


def split(rows: int, q: Tensor, k: Tensor, w: Tensor, p: Tensor) -> Iterator[Block]:
    """Blocks of `rows` rows. For autograd, q and w are split by one operation each: the gradient
    of a slice would be a tensor as large as what it is cut from."""
    first = 0
    for some_q, some_w in zip(q.split(rows), w.split(rows), strict=True):
        last = first + some_q.shape[0]
        yield Block(some_q, k[:last, 0], some_w, p[0, first:last, 0, :last], first)
        first = last


def gradients(block: Callable[..., Tensor], part: Block) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Loss of a block, and its gradients of q, k and w."""
    leaves = [x.detach().requires_grad_() for x in part[:3]]
    loss = block(*leaves, *part[3:])
    return loss.detach(), torch.autograd.grad(loss, leaves)


def torch_step(block: Callable[..., Tensor], rows: int) -> Step:
    def step(q: Tensor, k: Tensor, w: Tensor, p: Tensor) -> tuple[Tensor, ...]:
        dq, dk, dw = torch.empty_like(q), torch.zeros_like(k, dtype=w.dtype), torch.empty_like(w)
        total = torch.zeros((), dtype=w.dtype)
        for part in split(rows, q[0], k[0], w[0], p):
            loss, grads = gradients(block, part)
            last = part.first + part.q.shape[0]
            dq[0, part.first : last], dw[0, part.first : last] = grads[0], grads[2]
            dk[0, :last, 0] += grads[1]
            total += loss
        return total, dq, dk.to(k.dtype), dw

    return step


def checkpointed_step(rows: int) -> Step:
    def step(q: Tensor, k: Tensor, w: Tensor, p: Tensor) -> tuple[Tensor, ...]:
        q, k, w = (x[0].detach().requires_grad_() for x in (q, k, w))
        losses = [
            checkpoint(block_loss, *part, use_reentrant=False) for part in split(rows, q, k, w, p)
        ]
        loss = torch.stack(losses).sum()
        loss.backward()
        return loss.detach(), q.grad[None], k.grad[None], w.grad[None]

    return step


def kindling_step(q: Tensor, k: Tensor, w: Tensor, p: Tensor) -> tuple[Tensor, ...]:
    q, k, w = (x.detach().requires_grad_() for x in (q, k, w))
    loss = indexer_kl_loss(q, k, w, p, mask_mode=3)
    loss.backward()
    return loss.detach(), q.grad, k.grad, w.grad


def fastest_rows(case: Case) -> int:
    """Rows of a block, by the time per score of blocks from all over the sequence."""
    q, k, w, p = make_inputs(case)
    seconds = {}
    for block_scores in BLOCK_SCORES:
        rows = min(max(1, block_scores // (case.heads * case.length)), case.length)
        parts = list(split(rows, q[0], k[0], w[0], p))
        parts = parts[:: max(1, case.heads * case.length**2 // SAMPLED_SCORES)] + parts[-1:]
        elapsed = []
        for _ in range(4):
            begin = time.perf_counter()
            for part in parts:
                gradients(block_loss, part)
            elapsed.append(time.perf_counter() - begin)
        seconds[rows] = min(elapsed) / sum(part.q.shape[0] * part.k.shape[0] for part in parts)
    return min(seconds, key=seconds.__getitem__)


def make_steps(case: Case, rows: int) -> dict[str, Step]:
    steps: dict[str, Step] = {"kindling": kindling_step}
    if EAGER_BYTES_PER_SCORE * case.heads * case.length**2 < available_bytes() // 2:
        steps["eager"] = torch_step(block_loss, case.length)
    steps["chunked"] = torch_step(block_loss, rows)
    steps["checkpointed"] = checkpointed_step(rows)
    steps["compiled"] = torch_step(torch.compile(block_loss, dynamic=True), rows)
    return steps


def available_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")


def check(case: Case, rows: int) -> dict[str, float]:
    """Largest error of each side's gradients, relative to the exact ones' largest element."""
    small = case._replace(length=min(case.length, CHECKED_LENGTH))
    inputs = make_inputs(small)
    exact = torch_step(block_loss, small.length)(*(x.double() for x in inputs))
    errors = {}
    for name, step in make_steps(small, rows).items():
        result = step(*inputs)
        pairs = list(zip(result, exact, strict=True))
        errors[name] = max(float((a - b).abs().max() / b.abs().max()) for a, b in pairs)
        if not errors[name] <= TOLERANCE[case.dtype]:
            raise RuntimeError(
                f"{name}, {small}: expected the exact gradients within {TOLERANCE[case.dtype]:g}, "
                f"got an error of {errors[name]:g}"
            )
    return errors


def status_kib(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1])
    raise RuntimeError(f"/proc/self/status: expected {field}, got none")


def peak_extra_mib(case: Case, rows: int, name: str) -> float:
    """Of a step in this process, which has run the same code on a short sequence only."""
    set_threads()
    inputs = make_inputs(case)
    short = [x[:, :64].contiguous() for x in inputs[:3]] + [inputs[3][:, :64, :, :64].contiguous()]
    step = make_steps(case, rows)[name]
    step(*(inputs if name == "compiled" else short))  # compiles for the real length
    ctypes.CDLL(None).malloc_trim(0)
    before = status_kib("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
    step(*inputs)
    return (status_kib("VmHWM") - before) / 1024


def set_threads() -> None:
    threads = len(os.sched_getaffinity(0))
    torch.set_num_threads(threads)
    kindling.set_num_threads(threads)


def measure(case: Case, rounds: int) -> list[dict]:
    rows = fastest_rows(case)
    errors = check(case, rows)
    inputs = make_inputs(case)
    steps = make_steps(case, rows)
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    begin_of_all = time.perf_counter()
    for round_ in range(rounds + 1):  # the first warms up
        if round_ > 1 and time.perf_counter() - begin_of_all > MAX_SECONDS:
            break
        for name, step in steps.items():
            begin = time.perf_counter()
            step(*inputs)
            if round_ > 0:
                seconds[name].append(time.perf_counter() - begin)
    results = []
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        for name, elapsed in seconds.items():
            ratios = [a / b for a, b in zip(elapsed, seconds["kindling"], strict=True)]
            results.append(
                {
                    "case": str(case),
                    "side": name,
                    "block_rows": rows if name not in ("kindling", "eager") else None,
                    "ms": 1e3 * statistics.median(elapsed),
                    "ratio": statistics.median(ratios),
                    "ratio_range": [min(ratios), max(ratios)],
                    "peak_extra_mib": pool.apply(peak_extra_mib, (case, rows, name)),
                    "error": errors[name],
                }
            )
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--heads", type=int, nargs="+", default=[8, 64])
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024, 4096])
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"], choices=TOLERANCE)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="Also write one line of JSON per result.")
    options = parser.parse_args()
    set_threads()
    torch._dynamo.config.cache_size_limit = 64
    info = kindling.cpu_info()
    print(
        f"{platform.machine()} {info['isa']}, {torch.get_num_threads()} threads, "
        f"kindling {kindling.__version__}, torch {torch.__version__}, D = {HEAD_DIM}, causal\n"
    )
    print("| case | side | ms | times kindling's (range) | peak extra MiB | error |")
    print("|---|---|---|---|---|---|")
    for heads in options.heads:
        for length in options.lengths:
            for dtype in options.dtypes:
                for result in measure(Case(heads, length, dtype), options.rounds):
                    low, high = result["ratio_range"]
                    print(
                        f"| {result['case']} | {result['side']} | {result['ms']:.1f} "
                        f"| {result['ratio']:.2f} ({low:.2f} to {high:.2f}) "
                        f"| {result['peak_extra_mib']:.0f} | {result['error']:.1e} |",
                        flush=True,
                    )
                    if options.json is not None:
                        with options.json.open("a") as file:
                            file.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
