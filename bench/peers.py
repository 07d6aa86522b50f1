"""Kindling beside PyTorch: loss gradients of the indexer, both in one process, taking turns.

PyTorch gets what suits it: explicit formulas rather than autograd, a preallocated result, the best
of several row chunks, fp32 or bf16 copies made beforehand, as many threads as Kindling. Its bf16
products go through oneDNN. One line of JSON for each problem goes to the standard output.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
import warnings

# Settings for OpenBLAS that a machine may bring along can halve its speed; peers run without.
for variable in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"):
    os.environ.pop(variable, None)

import kindling  # noqa: E402
import torch  # noqa: E402

WIDTH = 128
CHUNKS = (8, 2, 4, 16, 32, 128)


def make_problem(num_tokens: int, num_heads: int) -> dict[str, torch.Tensor]:
    """One full-attention sequence in bf16, teacher and log-sum-exp included."""
    generator = torch.Generator().manual_seed(7)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    q = normal(1, num_tokens, num_heads, WIDTH).bfloat16()
    k = (normal(1, num_tokens, 1, WIDTH) / WIDTH**0.5).bfloat16()
    w = normal(1, num_tokens, num_heads) / num_heads**0.5
    p = torch.softmax(normal(1, num_tokens, 1, num_tokens), -1)
    lse = torch.from_dlpack(kindling.softmax_lse(q, k, w))
    return {"q": q, "k": k, "w": w, "p": p, "lse": lse}


def gradient_chunk(q, k, kt, w, p, lse):
    """dq, dw, dk and the student's softmax of some rows: q [R, H, D], w [R, H], p [R, S]."""
    num_rows, num_heads, width = q.shape
    scores = (q.reshape(-1, width) @ kt).view(num_rows, num_heads, -1)
    weights = w.to(q.dtype)
    relu = scores.relu()
    logits = torch.bmm(weights.unsqueeze(1), relu).squeeze(1).float()
    softmax = torch.exp(logits - lse.unsqueeze(1))
    logits_grad = softmax * p.sum(1, keepdim=True) - p
    narrow = logits_grad.to(q.dtype)
    dw = torch.bmm(relu, narrow.unsqueeze(2)).squeeze(2)
    scores_grad = (scores > 0) * narrow.unsqueeze(1) * weights.unsqueeze(2)
    scores_grad = scores_grad.view(num_rows * num_heads, -1)
    dq = scores_grad @ k
    dk = scores_grad.t() @ q.reshape(-1, width)
    return dq.view_as(q), dw, dk, softmax


class TorchGradient:
    """The whole gradient, `chunk` rows at a time, in `dtype`."""

    def __init__(self, problem, dtype: torch.dtype, chunk: int, function=gradient_chunk):
        self.q, self.k = (problem[name][0].to(dtype) for name in ("q", "k"))
        self.k = self.k[:, 0].contiguous()
        self.kt = self.k.t()
        self.w, self.p, self.lse = problem["w"][0], problem["p"][0, :, 0], problem["lse"][0, 0]
        self.chunk = chunk
        self.function = function
        self.dq = torch.empty_like(self.q)
        self.dw = torch.empty_like(self.w)
        self.softmax = torch.empty_like(self.p)
        self.dk = torch.zeros(self.k.shape)

    def __call__(self, num_rows: int | None = None) -> None:
        self.dk.zero_()
        for begin in range(0, num_rows or len(self.q), self.chunk):
            rows = slice(begin, begin + self.chunk)
            dq, dw, dk, softmax = self.function(
                self.q[rows], self.k, self.kt, self.w[rows], self.p[rows], self.lse[rows]
            )
            self.dq[rows] = dq
            self.dw[rows] = dw
            self.softmax[rows] = softmax
            self.dk += dk


def seconds_of(call) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def relative_error(got: torch.Tensor, want: torch.Tensor) -> float:
    return float((got.double() - want.double()).norm() / want.double().norm())


def fastest(problem, num_rows: int) -> TorchGradient:
    """The fastest of all chunks and dtypes on the first rows."""
    best, best_seconds = None, float("inf")
    for dtype in (torch.float32, torch.bfloat16):
        for chunk in CHUNKS:
            gradient = TorchGradient(problem, dtype, chunk)
            gradient(chunk)
            seconds = seconds_of(lambda g=gradient: g(num_rows))
            if seconds > 2 * best_seconds and chunk == CHUNKS[0]:
                break  # a dtype that this processor does not multiply
            if seconds < best_seconds:
                best, best_seconds = gradient, seconds
    return best


def compiled(problem, best: TorchGradient) -> TorchGradient | None:
    """The same through torch.compile; none where that does not work."""
    torch._dynamo.reset()
    gradient = TorchGradient(
        problem, best.q.dtype, best.chunk, torch.compile(gradient_chunk, dynamic=False)
    )
    try:
        gradient(best.chunk)
    except Exception as error:  # a compiler that is missing shows as any of many types
        print(f"peers: torch.compile: {error}", file=sys.stderr)
        return None
    return gradient


def compare(num_tokens: int, num_heads: int, num_threads: int, repetitions: int) -> dict:
    torch.set_num_threads(num_threads)
    kindling.set_num_threads(num_threads)
    problem = make_problem(num_tokens, num_heads)
    ours = {}

    def run_kindling() -> None:
        inputs = (problem[name] for name in ("q", "k", "w", "p", "lse"))
        ours["grad"] = kindling.kl_loss_grad(*inputs, out=ours.get("grad"))

    best = fastest(problem, min(num_tokens, 256))
    contenders = {"kindling": run_kindling, "eager": best, "compiled": compiled(problem, best)}
    contenders = {name: call for name, call in contenders.items() if call is not None}
    for call in contenders.values():
        call()
    got = {name: torch.from_dlpack(getattr(ours["grad"], name)) for name in ("dq", "dk", "dw")}
    limit = 2e-2  # bf16 sums of PyTorch; a wrong formula is off by far more
    for name, want in (("dq", best.dq), ("dk", best.dk), ("dw", best.dw)):
        error = relative_error(got[name].reshape(want.shape), want)
        if not error <= limit:
            raise SystemExit(f"peers: {name}: expected PyTorch's result, got an error of {error}")
    times = {name: [] for name in contenders}
    for _ in range(repetitions):
        for name, call in contenders.items():
            times[name].append(seconds_of(call))
    result = {
        "peers": f"grad bf16 full T=S={num_tokens} heads={num_heads} threads={num_threads}",
        "torch": torch.__version__,
        "chunk": best.chunk,
        "dtype": str(best.q.dtype).removeprefix("torch."),
        "kindling_ms": statistics.median(times["kindling"]) * 1e3,
    }
    for name in contenders:
        ratios = [t / k for t, k in zip(times[name], times["kindling"], strict=True)]
        if name != "kindling":
            result[f"{name}_ratio"] = statistics.median(ratios)
            result[f"{name}_ratio_range"] = [min(ratios), max(ratios)]
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--repetitions", type=int, default=3)
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    most_threads = len(os.sched_getaffinity(0))
    for num_threads in sorted({1, most_threads}):
        for num_heads in (8, 64):
            result = compare(arguments.tokens, num_heads, num_threads, arguments.repetitions)
            print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
