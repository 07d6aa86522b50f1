"""The goals table of docs/performance.md, filled in for this machine in one run.

Runs the driver on tests/cases/goals.txt a few rounds. A round takes the median of its repetitions.
A share counts with the best of its rounds; a ratio of two times with their median, as noise may
make it too good; a goal with the worst of its problems. Where a share is of a peak, the driver
measures that peak around every repetition. Beside it stand PyTorch's times, where it is installed.
Results are kept as lines of JSON.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import pathlib
import platform
import re
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parent.parent
CASES = ROOT / "tests/cases/goals.txt"
PEERS = pathlib.Path(__file__).with_name("peers.py")
MIB = 2**20

# On AVX2 alone every share of bf16 or AVX-512 is one of the 256-bit FMA peak, and no gate or target
# is above these.
AVX2_GATE, AVX2_TARGET = 50.0, 70.0


class Goal(NamedTuple):
    """One row: what is measured, and which value it must hold (gate) or shows at its best."""

    name: str
    what: str
    kind: str  # "share", "slower", "rate" or "growth"
    gate: float
    target: float


GOALS = [
    Goal("grad_full", "grad, bf16, 1 thread, full, T=S=1024, N1 16 and 64", "share", 75, 90),
    Goal("grad_full_8", "same, N1 = 8", "share", 70, 87),
    Goal("grad_causal", "grad, bf16, 1 thread, causal, T=S=2048, N1 16", "share", 70, 88),
    Goal("grad_2t_full", "grad, bf16, 2 threads, full, T=S=2048, N1 64", "share", 68, 84),
    Goal("grad_2t_causal", "grad, bf16, 2 threads, causal, T=S=2048, N1 16", "share", 62, 80),
    Goal("grad_2t_causal_8", "same, N1 = 8", "share", 60, 74),
    Goal("few_rows_1", "few rows: T = 1, S=8192, N1 64, 1 thread", "share", 25, 40),
    Goal("few_rows_16", "few rows: T = 16", "share", 55, 75),
    Goal("few_rows_64", "few rows: T = 64", "share", 75, 88),
    Goal("lse_full", "lse, bf16, 1 thread, full, T=S=1024, N1 16 and 64", "share", 82, 95),
    Goal("lse_full_8", "same, N1 = 8", "share", 75, 90),
    Goal("grad_fp32", "grad, fp32, of the fp32 FMA peak", "share", 70, 85),
    Goal("lse_fp32", "lse, fp32", "share", 70, 85),
    Goal("grad_fp16", "grad, fp16", "share", 70, 85),
    Goal("lse_fp16", "lse, fp16", "share", 70, 85),
    Goal("grad_avx2", "AVX2: grad, every dtype, of the 256-bit FMA peak", "share", 50, 70),
    Goal("lse_avx2", "AVX2: lse", "share", 50, 70),
    Goal("teacher_128", "teacher, bf16, Dm 128 and 576, causal", "share", 70, 70),
    Goal("teacher_64", "teacher, bf16, Dm 64, causal, lse given", "share", 55, 55),
    Goal("loss_rows", "with loss rows: slower by at most", "slower", 6, 3),
    Goal("ragged", "64 ragged sequences over one dense of equal pairs", "rate", 0.8, 0.9),
    Goal("growth", "time(S=16384) / time(S=1024), T=1024, N1 8", "growth", 19, 17.3),
]

# Error norms against double: output, then gate by dtype.
ERRORS = {
    "lse": {"bf16": 1e-6, "fp16": 1e-6, "fp32": 1e-6},
    "softmax_out": {"bf16": 1e-6, "fp16": 1e-6, "fp32": 1e-6},
    "dw": {"bf16": 3e-6, "fp16": 3e-6, "fp32": 3e-6},
    "dq": {"bf16": 2.5e-3, "fp16": 6e-4, "fp32": 3e-6},
    "dk": {"bf16": 2.5e-3, "fp16": 6e-4, "fp32": 3e-6},
}


class Row(NamedTuple):
    what: str
    gate: str
    target: str
    measured: str
    verdict: str


def verdict(meets_gate: bool, meets_target: bool) -> str:
    return "target" if meets_target else "gate" if meets_gate else "MISS"


def word(line: str, key: str, default: str = "") -> str:
    """The value of `key=` in a problem line."""
    found = re.search(rf"(?:^| ){key}=(\S+)", line)
    return found.group(1) if found else default


def memory_bound(line: str, per_thread_mib: float) -> float:
    """Bytes beyond inputs and outputs that a call may take."""
    line = line.partition(" / ")[0]
    keys = sum((int(n) + 63) // 64 * 64 for n in word(line, "keys").split(","))
    width, heads = int(word(line, "dim")), int(word(line, "heads"))
    pack = 2 if word(line, "dtype") == "bf16" else 4
    per_thread = per_thread_mib * MIB * max(1, width / 128) * max(1, heads / 256)
    threads = int(word(line, "threads", "1"))
    return keys * width * (2 * pack + 4) + threads * per_thread + MIB


def value_of(goal: Goal, record: dict) -> float:
    """What one round of one problem says about a goal."""
    side = record["sides"][0]
    if goal.kind == "share":
        return 100 * side["share"]
    if goal.kind == "slower":
        return 100 * (record["ratio"] - 1)
    if goal.kind == "rate":
        return side["pairs"] / record["sides"][1]["pairs"] / record["ratio"]
    return record["ratio"]


def goal_row(goal: Goal, records: list[dict]) -> Row:
    rises = goal.kind in ("share", "rate")
    best = max if goal.kind == "share" else statistics.median
    worst = min if rises else max
    rounds = defaultdict(list)
    for record in records:
        rounds[record["line"]].append(value_of(goal, record))
    value = worst(best(values) for values in rounds.values())
    gate, target = goal.gate, goal.target
    isa = records[0]["sides"][0]["isa"]
    if goal.kind == "share" and isa == "avx2":
        gate, target = min(gate, AVX2_GATE), min(target, AVX2_TARGET)
    show = {"share": "{:.0f} %", "slower": "{:.1f} %", "rate": "{:.2f}x", "growth": "{:.1f}"}
    text = show[goal.kind].format
    low = worst(worst(values) for values in rounds.values())
    measured = text(value) if goal.kind != "share" else f"{value:.1f} % ({low:.1f})"
    if goal.kind == "share" and isa == "portable":
        return Row(goal.what, "-", "-", measured, "-")

    def meets(bound: float) -> bool:
        return value >= bound if rises else value <= bound

    return Row(goal.what, text(gate), text(target), measured, verdict(meets(gate), meets(target)))


def memory_row(records: list[dict]) -> Row:
    """Resident bytes of calls over what they may be, the worst of all problems."""
    calls = [
        (record["line"], record["sides"][0]["peak_bytes"], record["sides"][0]["workspace_bytes"])
        for record in records
        if record["sides"][0]["operator"] != "teacher"
    ]

    def worst(per_thread_mib: float) -> float:
        return max(max(used) / memory_bound(line, per_thread_mib) for line, *used in calls)

    gate, target = worst(2.0), worst(1.2)
    what = "extra memory of grad and lse over its bound"
    return Row(what, "1", "1", f"{gate:.2f} ({target:.2f})", verdict(gate <= 1, target <= 1))


def error_rows(records: list[dict]) -> list[Row]:
    rows = []
    for dtype in ("bf16", "fp16", "fp32"):
        parts, gates, ok = [], [], True
        for output, bounds in ERRORS.items():
            values = [
                side["errors"][output]
                for record in records
                if word(record["line"], "dtype") == dtype and record["errors_checked"]
                for side in record["sides"]
            ]
            if not any(values):  # no such output was measured
                continue
            parts.append(f"{output} {max(values):.1e}")
            gates.append(f"{bounds[dtype]:g}")
            ok = ok and max(values) <= bounds[dtype]
        if parts:
            gate = ", ".join(gates)
            rows.append(Row(f"errors, {dtype}", gate, "same", ", ".join(parts), verdict(ok, ok)))
    return rows


def peer_rows(results: list[dict]) -> list[Row]:
    rows = []
    for result in results:
        for name in ("eager", "compiled"):
            if f"{name}_ratio" in result:
                low, high = result[f"{name}_ratio_range"]
                rows.append(
                    Row(
                        f"PyTorch {result['torch']} {name}, {result['peers']}",
                        f"{result['dtype']}, chunk {result['chunk']}",
                        f"ours {result['kindling_ms']:.0f} ms",
                        f"{result[name + '_ratio']:.2f}x slower ({low:.2f}-{high:.2f})",
                        "-",
                    )
                )
    return rows


def table(rows: list[Row]) -> str:
    lines = []
    heads = Row("what", "gate", "target", "measured", "verdict")
    widths = [max(len(row[i]) for row in [heads, *rows]) for i in range(len(heads))]
    for index, row in enumerate([heads, *rows]):
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        lines.append("| " + " | ".join(cells) + " |")
        if index == 0:
            lines.append("|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


def run_peers(json_path: pathlib.Path, repetitions: int) -> list[dict]:
    """PyTorch's times; none where it is not installed."""
    probe = [sys.executable, "-c", "import torch, kindling"]
    if subprocess.run(probe, capture_output=True).returncode != 0:
        print("peers: skipped: expected torch and kindling in this Python, got none")
        return []
    command = [sys.executable, str(PEERS), "--repetitions", str(repetitions)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        print("peers: failed")
    results = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    with json_path.open("a") as out:
        out.writelines(json.dumps(result) + "\n" for result in results)
    return results


def conditions(records: list[dict], load: float) -> str:
    """What the results were measured with, as a list in Markdown."""
    first = records[0]
    lines = [
        f"{first['machine']}, {platform.system()} {platform.machine()}",
        f"commit {first['commit']}, {first['compiler']}, {first['date']}",
        f"load before the run: {load:.1f} (other programs make shares and times worse)",
    ]
    peaks = defaultdict(list)
    for record in records:
        for side in record["sides"]:
            peaks[side["peak"], side["threads"]].append(side["peak_flops"] / 1e9)
    for (name, threads), values in sorted(peaks.items()):
        text = f"{min(values):.0f} to {max(values):.0f} GFLOP/s"
        lines.append(f"peak, {name}, {threads} thread{'s' if threads > 1 else ''}: {text}")
    if not any(name.startswith("bf16") for name, _ in peaks):
        lines.append(
            "this processor multiplies no bf16: shares are of the fp32 peak above, and on AVX2 "
            f"gates are at most {AVX2_GATE:.0f} % and targets at most {AVX2_TARGET:.0f} %"
        )
    return "\n".join(f"- {line}" for line in lines)


def write_into(document: pathlib.Path, text: str) -> None:
    """Puts `text` between the two marks of a document."""
    before, begin, rest = document.read_text().partition("<!-- goals: begin -->\n")
    _, end, after = rest.partition("<!-- goals: end -->\n")
    if not end:
        raise SystemExit(f"--docs: expected the marks of a goals table in {document}, got none")
    document.write_text(f"{before}{begin}{text}\n{end}{after}")


def commit() -> str:
    git = ["git", "-C", str(ROOT)]
    head = subprocess.run([*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True)
    if head.returncode != 0:
        return "unknown"
    results = [":!bench/results", ":!docs"]  # what this run itself writes
    changed = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", ".", *results]).returncode != 0
    return head.stdout.strip() + ("+changes" if changed else "")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("driver", type=pathlib.Path, help="build/release/bench/kindling_bench")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.4, help="of one problem in one round")
    parser.add_argument("--quick", action="store_true", help="one short round, without peers")
    parser.add_argument("--filter", default="", help="only goals that contain this")
    parser.add_argument("--isa", help="instead of the best instruction set")
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--docs", type=pathlib.Path, help="a document to write the table into")
    parser.add_argument("--json", type=pathlib.Path, help="default: bench/results/<commit>.jsonl")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.rounds, arguments.seconds, arguments.no_peers = 1, 0.05, True
    begin = time.monotonic()
    now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%d-%H%M%S")
    results = pathlib.Path(__file__).with_name("results")
    json_path = arguments.json or results / f"{now}-{commit()}.jsonl"
    json_path.parent.mkdir(parents=True, exist_ok=True)
    load = os.getloadavg()[0]
    print(f"measuring {CASES.relative_to(ROOT)}", flush=True)
    command = [
        str(arguments.driver),
        f"--cases={CASES}",
        f"--goal={arguments.filter}",
        f"--seconds={arguments.seconds}",
        f"--json={json_path}",
        f"--commit={commit()}",
        "--benchmark_filter=-^plan/",
        f"--benchmark_repetitions={arguments.rounds}",
        "--benchmark_enable_random_interleaving=true",
        *([f"--isa={arguments.isa}"] if arguments.isa else []),
    ]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    failed = done.returncode != 0 or "ERROR OCCURRED" in done.stdout
    if failed:
        print(done.stdout)
    with json_path.open() as lines:
        records = [json.loads(line) for line in lines]
    by_goal = defaultdict(list)
    for record in records:
        by_goal[record["goal"]].append(record)
    if not records:
        sys.exit("bench: expected results, got none")
    rows = [goal_row(goal, by_goal[goal.name]) for goal in GOALS if goal.name in by_goal]
    rows += [memory_row(records), *error_rows(records)]
    if not arguments.no_peers:
        rows += peer_rows(run_peers(json_path, arguments.rounds))
    text = conditions(records, load) + "\n\n" + table(rows)
    print(text)
    if arguments.docs:
        write_into(arguments.docs, text)
    where = os.path.relpath(json_path)
    print(f"\n{time.monotonic() - begin:.0f} s; results are in {where}")
    if failed:
        sys.exit(1)


if __name__ == "__main__":
    main()
