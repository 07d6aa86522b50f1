"""Kindling in one process with PyTorch, taking turns; bench/goals.py makes rows of it.

step_torch, small_torch   whole steps against those of bench/torch_step.py, each call right after an
                          operation of PyTorch
after_torch               calls right after an operation of PyTorch over the same calls alone
any other goal            calls between two torch.mm of bf16 matrices of 2048 x 2048, the yardstick
                          of processors with AMX

Steps are compared with PyTorch's in fp32 before anything is timed; the driver does that for the
other calls. Lines of JSON go to the standard output.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import multiprocessing
import os
import pathlib
import statistics
import sys
import time
import warnings
from collections.abc import Callable

# Settings for OpenBLAS that a machine may bring along can halve its speed; peers run without.
for variable in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"):
    os.environ.pop(variable, None)

import goals  # noqa: E402
import kindling  # noqa: E402
import torch  # noqa: E402
from kindling.torch import indexer_kl_loss  # noqa: E402
from torch_step import Problem, Results, TorchStep, make_problem, make_steps  # noqa: E402

LIMIT = 2e-2  # relative, of bf16 sums and weights; a wrong formula is off by far more
SHORTEST = 1e-2  # seconds of one measurement
QUIET = 0.03  # seconds until threads of PyTorch have stopped to spin
YARDSTICK = "torch.mm bf16 n=2048"
MEASURED_SIDE_BY_SIDE = ("step_torch", "small_torch")


class Line:
    """What a line of a case file says."""

    def __init__(self, text: str):
        self.text = text
        self.operator = text.split()[0]
        self.goal = goals.word(text, "goal")
        self.threads = int(goals.word(text, "threads", "1"))
        self.is_causal = goals.word(text, "mask", "0") == "3"
        names = ("rows", "keys", "heads", "dim", "key_heads")
        self.rows, self.keys, self.heads, self.dim, self.key_heads = (
            int(goals.word(text, name, "1")) for name in names
        )
        self.passes = 2 if goals.word(text, "lse") == "absent" else 1

    def pairs(self) -> int:
        unseen = self.rows * (self.rows - 1) // 2 if self.is_causal else 0
        return self.rows * self.keys - unseen

    def flops(self) -> int:
        products = {"lse": 1, "grad": 3, "step": 4, "teacher": self.passes}[self.operator]
        return 2 * products * self.pairs() * self.heads * self.dim

    def exps(self) -> int:
        return self.passes * self.pairs() * self.heads if self.operator == "teacher" else 0

    def problem(self) -> Problem:
        return make_problem(self.rows, self.keys, self.heads, self.is_causal)


def kindling_step(line: Line, problem: Problem) -> Callable[[], Results]:
    leaves = [problem.q[None], problem.k[None, :, None], problem.w[None]]
    q, k, w = (leaf.detach().requires_grad_() for leaf in leaves)
    p = problem.p[None, :, None]

    def step() -> Results:
        q.grad = k.grad = w.grad = None
        loss = indexer_kl_loss(q, k, w, p, mask_mode=3 if line.is_causal else 0)
        loss.backward()
        return Results(loss.detach(), q.grad[0], k.grad[0, :, 0], w.grad[0])

    return step


def kindling_call(line: Line) -> Callable[[], object]:
    """A call that fills outputs of its own again and again."""
    if line.operator == "step":
        return kindling_step(line, line.problem())
    options = {"mask_mode": 3 if line.is_causal else 0}
    out = {}
    if line.operator == "teacher":
        q = torch.randn(1, line.rows, line.heads, line.dim).bfloat16()
        k = torch.randn(1, line.keys, line.key_heads, line.dim).bfloat16()
        if line.passes == 1:
            options["lse"] = torch.full((1, 1, line.rows, line.heads), 7.0)

        def call() -> None:
            out["p"] = kindling.attention_l1_norm(
                q, k, softmax_scale=line.dim**-0.5, out=out.get("p"), **options
            )

        return call
    problem = line.problem()
    q, k, w = problem.q[None], problem.k[None, :, None], problem.w[None]
    if line.operator == "lse":

        def call() -> None:
            out["lse"] = kindling.softmax_lse(q, k, w, out=out.get("lse"), **options)

        return call
    p, lse = problem.p[None, :, None], kindling.softmax_lse(q, k, w, **options)

    def call() -> None:
        out["grad"] = kindling.kl_loss_grad(q, k, w, p, lse, out=out.get("grad"), **options)

    return call


def seconds_of(call: Callable[[], object], before: Callable[[], object] | None = None) -> float:
    """Of one call; the median of as many as a measurement takes. `before` runs before each."""
    times = []
    while not times or sum(times) < SHORTEST:
        if before:
            before()
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def make_torch_operation() -> Callable[[], object]:
    """Some work that all threads of PyTorch share."""
    matrix = torch.randn(256, 256)
    return lambda: torch.mm(matrix, matrix)


def relative_error(got: torch.Tensor, want: torch.Tensor) -> float:
    return float((got.double() - want.double()).norm() / want.double().norm())


def check(name: str, got: Results, exact: Results, line: Line) -> None:
    for output, value, want in zip(Results._fields, got, exact, strict=True):
        error = relative_error(value, want)
        if not error <= LIMIT:
            raise SystemExit(
                f"peers: {output} of {name}: expected that of fp32 within {LIMIT}, "
                f"got an error of {error:.1e}: {line.text}"
            )


def extra_mib(call: Callable[[], object]) -> float:
    """What a call makes resident; NaN where the system does not say."""

    def status_kib(field: str) -> int:
        text = pathlib.Path("/proc/self/status").read_text()
        return int(text.partition(f"\n{field}:")[2].split()[0])

    try:
        ctypes.CDLL(None).malloc_trim(0)
        before = status_kib("VmRSS")
        pathlib.Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
        call()
        return (status_kib("VmHWM") - before) / 1024
    except (OSError, AttributeError):
        return float("nan")


def set_threads(line: Line) -> None:
    torch.set_num_threads(line.threads)
    kindling.set_num_threads(line.threads)


def kindling_extra_mib(line: Line) -> float:
    """Of the first step of a process: later ones find a workspace in the cache."""
    set_threads(line)
    problem = line.problem()
    short = Problem(*(x[:8].contiguous() for x in problem[:3]), problem.p[:8, :8], None)
    kindling_step(Line("step"), short._replace(p=short.p.softmax(-1)))()
    return extra_mib(kindling_step(line, problem))


def measure_beside_torch(line: Line, rounds: int, is_quick: bool, mib: float) -> dict:
    problem = line.problem()
    exact = TorchStep(problem, torch.float32, max(1, min(line.rows, 1024 // line.heads)))()
    calls = {"kindling": kindling_step(line, problem), **make_steps(problem, is_quick=is_quick)}
    for name, call in calls.items():
        check(name, call(), exact, line)
    before = make_torch_operation()
    times = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            times[name].append(seconds_of(call, before))
    ours = times.pop("kindling")
    return {
        "torch": torch.__version__,
        "isa": kindling.cpu_info()["isa"],
        "ms": 1e3 * statistics.median(ours),
        "ratios": {
            name: [theirs / our for theirs, our in zip(values, ours, strict=True)]
            for name, values in times.items()
        },
        "chunks": {name: calls[name].chunk for name in times},
        "dtype": str(calls["chunked"].problem.q.dtype).removeprefix("torch."),
        "extra_mib": {"kindling": mib, **{name: extra_mib(calls[name]) for name in times}},
    }


def measure_after_torch(line: Line, rounds: int) -> dict:
    call, before = kindling_call(line), make_torch_operation()
    call()
    ratios = []
    for _ in range(2 * rounds + 1):
        time.sleep(QUIET)
        call()  # wakes its own threads
        alone = seconds_of(call)
        ratios.append(seconds_of(call, before) / alone)
    return {"ratio": statistics.median(ratios)}


def measure_against_mm(line: Line, rounds: int, seconds: float, exp_rate: float) -> list[dict]:
    """Rounds of a share, in the manner of the driver."""
    call = kindling_call(line)
    call()
    matrix = torch.randn(2048, 2048).bfloat16()

    def mm_rate() -> float:
        return 2 * 2048**3 / seconds_of(lambda: torch.mm(matrix, matrix))

    mm_rate()
    records = []
    for _ in range(rounds):
        shares, rates, spent = [], [], 0.0
        while len(shares) < 3 or spent < seconds:
            rate = mm_rate()
            if line.threads > 1:
                time.sleep(QUIET)
                call()
            elapsed = seconds_of(call)
            rate = (rate + mm_rate()) / 2
            least = line.flops() / rate + (line.exps() / exp_rate if line.exps() else 0)
            shares.append(least / elapsed)
            rates.append(rate)
            spent += max(elapsed, SHORTEST)
        side = {
            "operator": line.operator,
            "isa": kindling.cpu_info()["isa"],
            "threads": line.threads,
            "share": statistics.median(shares),
            "share_range": [min(shares), max(shares)],
            "peak": YARDSTICK,
            "peak_flops": statistics.median(rates),
        }
        records.append({"sides": [side]})
    return records


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cases", type=pathlib.Path, help="lines of tests/cases/*.txt")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.4, help="of one share in one round")
    parser.add_argument("--exp-rate", type=float, default=float("nan"), help="exps a second")
    parser.add_argument("--quick", action="store_true", help="without compiled PyTorch")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch._dynamo.config.cache_size_limit = 64
    lines = [Line(text) for text in arguments.cases.read_text().splitlines()]
    side_by_side = [line for line in lines if line.goal in MEASURED_SIDE_BY_SIDE]
    # Forked while no thread runs yet.
    with multiprocessing.get_context("fork").Pool(1, maxtasksperchild=1) as pool:
        mib = dict(zip(side_by_side, pool.map(kindling_extra_mib, side_by_side, 1), strict=True))
    for line in lines:
        set_threads(line)
        if line in mib:
            quick = arguments.quick
            found = [measure_beside_torch(line, arguments.rounds, quick, mib[line])]
        elif line.goal == "after_torch":
            found = [measure_after_torch(line, arguments.rounds)]
        else:
            found = measure_against_mm(
                line, arguments.rounds, arguments.seconds, arguments.exp_rate
            )
        for record in found:
            print(json.dumps({"line": line.text, "goal": line.goal, **record}), flush=True)


if __name__ == "__main__":
    sys.exit(main())
