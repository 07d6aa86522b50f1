"""The goals table of docs/performance.md, filled in for this machine in one run.

Runs the driver on tests/cases/goals.txt a few rounds. A round takes the median of its repetitions.
A share counts with the best of its rounds; a ratio of two times with their median, as noise may
make it too good; a goal with the worst of its problems. Where a share is of a peak, the driver
measures that peak around every repetition. bench/peers.py measures tests/cases/peers.txt beside
PyTorch, and shares of torch.mm on a processor with AMX. What cannot be measured here is left out,
and a line says so. Results are kept as lines of JSON.
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
import tempfile
import time
from collections import defaultdict
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parent.parent
CASES = ROOT / "tests/cases/goals.txt"
PEER_CASES = ROOT / "tests/cases/peers.txt"
PEERS = pathlib.Path(__file__).with_name("peers.py")
MIB = 2**20

# On AVX2 alone every share of bf16 or AVX-512 is one of the 256-bit FMA peak, and no gate or target
# is above these.
AVX2_GATE, AVX2_TARGET = 50.0, 70.0

# Where tiles multiply bf16, no register probe is within reach: element-wise work and loads of tiles
# stand beside them. Shares are of torch.mm; by operator, no gate and target is above these.
AMX = "amx_bf16"
AMX_BOUNDS = {"grad": (60.0, 75.0), "lse": (70.0, 85.0), "step": (92.0, 100.0)}
# A step of PyTorch over ours.
TORCH_BOUNDS, AMX_TORCH_BOUNDS = (0.92, 1.0), (1.22, 1.3)


class Goal(NamedTuple):
    """One row: what is measured, and which value it must hold (gate) or shows at its best."""

    name: str
    what: str
    kind: str  # "share", "slower", "rate", "growth", "after" or "torch"
    gate: float
    target: float


GOALS = [
    Goal("grad_full", "grad, bf16, 1 thread, full, T=S=1024, N1 16 and 64", "share", 84, 92),
    Goal("grad_full_8", "same, N1 = 8", "share", 83, 91),
    Goal("grad_causal", "grad, bf16, 1 thread, causal, T=S=2048, N1 16", "share", 80, 88),
    Goal("grad_2t_full", "grad, bf16, 2 threads, full, T=S=2048, N1 64", "share", 81, 89),
    Goal("grad_2t_causal", "grad, bf16, 2 threads, causal, T=S=2048, N1 16", "share", 76, 84),
    Goal("grad_2t_causal_8", "same, N1 = 8", "share", 76, 84),
    Goal("few_rows_1", "few rows: T = 1, S=8192, N1 64, 1 thread", "share", 25, 40),
    Goal("few_rows_16", "few rows: T = 16", "share", 55, 75),
    Goal("few_rows_64", "few rows: T = 64", "share", 75, 88),
    Goal("lse_full", "lse, bf16, 1 thread, full, T=S=1024, N1 16 and 64", "share", 88, 96),
    Goal("lse_full_8", "same, N1 = 8", "share", 85, 93),
    Goal("step", "step, bf16, 1 thread, full, S 1024 and 4096, 8 N1 D a pair", "share", 97, 105),
    Goal("grad_fp32", "grad, fp32, of the fp32 FMA peak", "share", 70, 85),
    Goal("lse_fp32", "lse, fp32", "share", 70, 85),
    Goal("grad_fp16", "grad, fp16", "share", 70, 85),
    Goal("lse_fp16", "lse, fp16", "share", 70, 85),
    Goal("grad_avx512", "AVX-512 without bf16 products: grad, bf16, of FMA", "share", 77, 85),
    Goal("grad_avx2", "AVX2: grad, every dtype, of the 256-bit FMA peak", "share", 50, 70),
    Goal("lse_avx2", "AVX2: lse", "share", 50, 70),
    Goal("teacher_128", "teacher, bf16, Dm 128 and 576, causal, of its roofline", "share", 77, 85),
    Goal("teacher_64", "teacher, bf16, Dm 64, causal, lse given", "share", 77, 85),
    Goal("loss_rows", "with loss rows: slower by at most", "slower", 6, 3),
    Goal("ragged", "64 ragged sequences over one dense of equal pairs", "rate", 0.8, 0.9),
    Goal("growth", "time(S=16384) / time(S=1024), T=1024, N1 8", "growth", 19, 17.3),
    Goal("after_torch", "calls right after PyTorch over alone, 2 threads", "after", 1.13, 1.05),
    Goal("step_torch", "step beside PyTorch", "torch", *TORCH_BOUNDS),
    Goal("small_torch", "small step beside PyTorch", "torch", *TORCH_BOUNDS),
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


def is_of_mm(record: dict) -> bool:
    """Whether a share is of torch.mm."""
    return record["sides"][0].get("peak", "").startswith("torch.mm")


def lacks_mm(record: dict) -> bool:
    """Whether a share is of AMX tiles in registers, which says little."""
    return record["sides"][0].get("peak", "").endswith("AMX tile")


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
    if goal.kind == "share":
        return 100 * record["sides"][0]["share"]
    if goal.kind == "slower":
        return 100 * (record["ratio"] - 1)
    if goal.kind == "rate":
        one, other = record["sides"]
        return one["pairs"] / other["pairs"] / record["ratio"]
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
    isa = records[0]["sides"][0]["isa"] if goal.kind == "share" else ""
    if goal.kind == "share" and isa == "avx2":
        gate, target = min(gate, AVX2_GATE), min(target, AVX2_TARGET)
    if goal.kind == "share" and is_of_mm(records[0]):
        bounds = AMX_BOUNDS.get(records[0]["sides"][0]["operator"], (gate, target))
        gate, target = min(gate, bounds[0]), min(target, bounds[1])
    show = {
        "share": "{:.0f} %",
        "slower": "{:.1f} %",
        "rate": "{:.2f}x",
        "growth": "{:.1f}",
        "after": "{:.2f}x",
    }
    text = show[goal.kind].format
    low = worst(worst(values) for values in rounds.values())
    measured = text(value) if goal.kind != "share" else f"{value:.1f} % ({low:.1f})"
    if goal.kind == "share" and (isa == "portable" or lacks_mm(records[0])):
        return Row(goal.what, "-", "-", measured, "-")

    def meets(bound: float) -> bool:
        return value >= bound if rises else value <= bound

    return Row(goal.what, text(gate), text(target), measured, verdict(meets(gate), meets(target)))


def memory_rows(records: list[dict]) -> list[Row]:
    """Resident bytes of calls over what they may be, the worst of all problems."""
    calls = [
        (record["line"], record["sides"][0]["peak_bytes"], record["sides"][0]["workspace_bytes"])
        for record in records
        if record["sides"][0]["operator"] != "teacher"
    ]

    if not calls:
        return []

    def worst(per_thread_mib: float) -> float:
        return max(max(used) / memory_bound(line, per_thread_mib) for line, *used in calls)

    gate, target = worst(2.0), worst(1.2)
    what = "extra memory of grad and lse over its bound"
    return [Row(what, "1", "1", f"{gate:.2f} ({target:.2f})", verdict(gate <= 1, target <= 1))]


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


def torch_row(record: dict, is_amx: bool) -> Row:
    """One step beside PyTorch's: the fastest of its sides over ours, and memory of all."""
    line, medians = record["line"], {}
    shown, low, high = [], float("nan"), float("nan")
    for name, ratios in record["ratios"].items():
        medians[name] = statistics.median(ratios)
        shown.append(f"{name} {medians[name]:.2f}x")
        if medians[name] == min(medians.values()):
            low, high = min(ratios), max(ratios)
    gate, target = TORCH_BOUNDS
    if is_amx and record["goal"] == "step_torch":
        gate, target = AMX_TORCH_BOUNDS
    value = min(medians.values())
    mask = "causal" if word(line, "mask") == "3" else "full"
    shape = ", ".join(
        f"{letter}={word(line, key)}" for letter, key in (("T", "rows"), ("S", "keys"))
    )
    shape += f", N1 {word(line, 'heads')}, threads {word(line, 'threads', '1')}"
    sides = {"kindling": "ours"}
    memory = record["extra_mib"].items()
    mib = ", ".join(f"{sides.get(name, name)} {mib:.0f}" for name, mib in memory)
    return Row(
        f"PyTorch over us: step, bf16, {mask}, {shape}",
        f"{gate:.2f}x",
        f"{target:.2f}x",
        f"{value:.2f}x ({low:.2f}-{high:.2f}): {', '.join(shown)}; "
        f"ours {record['ms']:.3g} ms; MiB: {mib}",
        verdict(value >= gate, value >= target),
    )


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


def has_torch() -> bool:
    probe = [sys.executable, "-c", "import torch, kindling.torch"]
    return subprocess.run(probe, capture_output=True).returncode == 0


def peer_lines(records: list[dict], filter_: str, *, is_quick: bool) -> list[str]:
    """What bench/peers.py has to measure: its own lines, and those whose shares are of torch.mm."""
    own = [line for line in PEER_CASES.read_text().splitlines() if line and line[0] != "#"]
    processors = len(os.sched_getaffinity(0))
    lines = [line for line in own if filter_ in word(line, "goal")]
    lines = [line for line in lines if int(word(line, "threads", "1")) <= processors]
    if is_quick:  # the largest take most of the time
        lines = [
            line for line in lines if (word(line, "heads"), word(line, "rows")) != ("64", "1024")
        ]
    shares = {goal.name for goal in GOALS if goal.kind == "share"}
    of_mm = [r["line"] for r in records if lacks_mm(r) and r["goal"] in shares]
    return [*dict.fromkeys(of_mm), *lines]


def run_peers(
    lines: list[str], records: list[dict], json_path: pathlib.Path, arguments: argparse.Namespace
) -> tuple[list[dict], bool]:
    """Results of bench/peers.py, and whether it measured everything."""
    exps = [side["peak_exps"] for record in records for side in record["sides"]]
    exps = [rate for rate in exps if rate > 0]  # of one thread, as all lines of the teacher
    with tempfile.TemporaryDirectory(prefix="kindling-peers-") as folder:
        cases = pathlib.Path(folder) / "cases.txt"
        cases.write_text("\n".join(lines) + "\n")
        command = [sys.executable, str(PEERS), str(cases), f"--rounds={arguments.rounds}"]
        command += [f"--seconds={arguments.seconds}"]
        command += [f"--exp-rate={statistics.median(exps)}"] if exps else []
        command += ["--quick"] if arguments.quick else []
        environment = dict(os.environ)
        if arguments.isa:
            environment["KINDLING_ISA"] = arguments.isa
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment)
    results = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    with json_path.open("a") as out:
        out.writelines(json.dumps(result) + "\n" for result in results)
    return results, done.returncode == 0


def conditions(records: list[dict], peers: list[dict], load: float) -> list[str]:
    """What the results were measured with."""
    lines = [f"load before the run: {load:.1f} (other programs make shares and times worse)"]
    if records:
        first = records[0]
        lines.insert(0, f"{first['machine']}, {platform.system()} {platform.machine()}")
        lines.insert(1, f"commit {first['commit']}, {first['compiler']}, {first['date']}")
    lines += sorted({f"PyTorch {peer['torch']}" for peer in peers if "torch" in peer})
    peaks = defaultdict(list)
    for record in records + [peer for peer in peers if "sides" in peer]:
        for side in record["sides"]:
            peaks[side["peak"], side["threads"]].append(side["peak_flops"] / 1e9)
    for (name, threads), values in sorted(peaks.items()):
        text = f"{min(values):.0f} to {max(values):.0f} GFLOP/s"
        lines.append(f"peak, {name}, {threads} thread{'s' if threads > 1 else ''}: {text}")
    plain = [
        r for r in records if word(r["line"], "dtype") == "bf16" and not word(r["line"], "isa")
    ]
    if plain and all(record["sides"][0]["peak"].startswith("fp32") for record in plain):
        lines.append(
            "no product of bf16 is faster than FMA here: shares are of the fp32 peak above, and on "
            f"AVX2 gates are at most {AVX2_GATE:.0f} % and targets at most {AVX2_TARGET:.0f} %"
        )
    if any(is_of_mm(peer) for peer in peers if "sides" in peer):
        lines.append("shares of bf16 are of torch.mm, as tiles multiply it here")
    return lines


def left_out(measured: set[str], filter_: str) -> list[str]:
    """Goals that have no row, as a line."""
    names = [goal.name for goal in GOALS if filter_ in goal.name and goal.name not in measured]
    return ["left out, as this machine or run cannot measure them: " + ", ".join(names)] * bool(
        names
    )


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


def group(records: list[dict]) -> dict[str, list[dict]]:
    groups = defaultdict(list)
    for record in records:
        groups[record["goal"]].append(record)
    return groups


def run_driver(arguments: argparse.Namespace, json_path: pathlib.Path) -> tuple[list[dict], bool]:
    """Results of the driver, and whether it failed."""
    print(f"measuring {CASES.relative_to(ROOT)}", flush=True)
    command = [
        arguments.driver,
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
    # A filter may leave it nothing to do, which it calls a failure.
    if not json_path.exists():
        return [], failed and "Failed to match any benchmarks" not in done.stdout
    if failed:
        print(done.stdout)
    with json_path.open() as lines:
        return [json.loads(line) for line in lines], failed


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("driver", nargs="?", help="build/release/bench/kindling_bench; none: peers")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.4, help="of one problem in one round")
    parser.add_argument("--quick", action="store_true", help="one short round, compiles nothing")
    parser.add_argument("--filter", default="", help="only goals that contain this")
    parser.add_argument("--isa", help="instead of the best instruction set")
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--docs", type=pathlib.Path, help="a document to write the table into")
    parser.add_argument("--json", type=pathlib.Path, help="default: bench/results/<commit>.jsonl")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.rounds, arguments.seconds = 1, 0.05
    begin = time.monotonic()
    now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%d-%H%M%S")
    results = pathlib.Path(__file__).with_name("results")
    json_path = arguments.json or results / f"{now}-{commit()}.jsonl"
    json_path.parent.mkdir(parents=True, exist_ok=True)
    load = os.getloadavg()[0]
    records, failed = run_driver(arguments, json_path) if arguments.driver else ([], False)
    missing = []
    lines = (
        []
        if arguments.no_peers
        else peer_lines(records, arguments.filter, is_quick=arguments.quick)
    )
    if lines and not has_torch():
        missing.append("peers left out: expected torch and kindling in this Python, got none")
        lines = []
    peers, failed_peers = [], False
    if lines:
        print(f"measuring {len(lines)} problems beside PyTorch", flush=True)
        peers, ok = run_peers(lines, records, json_path, arguments)
        failed_peers = not ok
    by_goal = group(records) | group(
        peers
    )  # shares of torch.mm stand in place of those of tiles in registers
    if not by_goal:
        sys.exit("bench: expected results, got none")
    is_amx = any(peer.get("isa") == AMX for peer in peers)
    rows = []
    for goal in GOALS:
        if goal.kind == "torch":
            rows += [torch_row(record, is_amx) for record in by_goal.get(goal.name, [])]
        elif goal.name in by_goal:
            rows.append(goal_row(goal, by_goal[goal.name]))
    rows += [*memory_rows(records), *error_rows(records)]
    missing += left_out(set(by_goal), arguments.filter)
    notes = [f"- {line}" for line in [*conditions(records, peers, load), *missing]]
    text = "\n".join(notes) + "\n\n" + table(rows)
    print(text)
    if arguments.docs:
        write_into(arguments.docs, text)
    where = os.path.relpath(json_path)
    print(f"\n{time.monotonic() - begin:.0f} s; results are in {where}")
    if failed or failed_peers:
        sys.exit(1)


if __name__ == "__main__":
    main()
