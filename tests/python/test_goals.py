"""The script behind `make bench`: what it makes of results, not the results."""

from __future__ import annotations

import importlib.util
import pathlib

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
spec = importlib.util.spec_from_file_location("goals", ROOT / "bench/goals.py")
goals = importlib.util.module_from_spec(spec)
spec.loader.exec_module(goals)


def record(line: str, *, share: float = 0.8, ratio: float = 1.0, isa: str = "avx512_bf16") -> dict:
    side = {"share": share, "isa": isa, "pairs": 100, "operator": "grad"}
    return {"line": line, "ratio": ratio, "sides": [side, {**side, "pairs": 50}]}


def goal(kind: str, gate: float, target: float):
    return goals.Goal("name", "what", kind, gate, target)


def test_goals_and_problems_belong_together():
    lines = goals.CASES.read_text().splitlines() + goals.PEER_CASES.read_text().splitlines()
    named = {goals.word(line, "goal") for line in lines if line and not line.startswith("#")}
    assert named == {goal.name for goal in goals.GOALS}


def test_a_share_is_the_best_round_of_the_worst_problem():
    rounds = [record("a", share=share) for share in (0.7, 0.9, 0.8)]
    rounds += [record("b", share=share) for share in (0.6, 0.85, 0.85)]
    row = goals.goal_row(goal("share", 75, 90), rounds)
    assert row.measured == "85.0 % (60.0)"
    assert row.verdict == "gate"


@pytest.mark.parametrize(
    ("share", "verdict"), [(0.74, "MISS"), (0.76, "gate"), (0.91, "target"), (float("nan"), "MISS")]
)
def test_verdicts(share, verdict):
    assert goals.goal_row(goal("share", 75, 90), [record("a", share=share)]).verdict == verdict


def test_avx2_is_held_to_its_own_peak():
    row = goals.goal_row(goal("share", 75, 90), [record("a", share=0.6, isa="avx2")])
    assert (row.gate, row.target, row.verdict) == ("50 %", "70 %", "gate")
    row = goals.goal_row(goal("share", 25, 40), [record("a", share=0.3, isa="avx2")])
    assert (row.gate, row.target, row.verdict) == ("25 %", "40 %", "gate")


@pytest.mark.parametrize(
    ("kind", "gate", "measured", "verdict"),
    [
        ("slower", 6, "5.0 %", "gate"),
        ("slower", 4, "5.0 %", "MISS"),
        ("growth", 1.06, "1.1", "gate"),
        ("growth", 1.04, "1.1", "MISS"),
        ("rate", 1.9, "1.90x", "gate"),  # twice the pairs in 1.05 times the time
        ("rate", 2.0, "1.90x", "MISS"),
    ],
)
def test_a_ratio_is_the_median_of_rounds(kind, gate, measured, verdict):
    rounds = [record("a", ratio=ratio) for ratio in (0.5, 1.05, 3.0)]
    target = 99 if kind == "rate" else 0
    row = goals.goal_row(goal(kind, gate, target), rounds)
    assert (row.measured, row.verdict) == (measured, verdict)


def of_mm(operator: str, share: float) -> dict:
    side = {"operator": operator, "isa": goals.AMX, "share": share, "peak": "torch.mm bf16 n=2048"}
    return {"line": "a", "goal": "name", "sides": [side]}


@pytest.mark.parametrize(
    ("operator", "share", "shown"),
    [
        ("grad", 0.61, ("60 %", "75 %", "gate")),
        ("grad", 0.59, ("60 %", "75 %", "MISS")),
        ("lse", 0.86, ("70 %", "85 %", "target")),
        ("step", 0.93, ("84 %", "92 %", "target")),  # its own bounds are lower
        ("teacher", 0.85, ("84 %", "92 %", "gate")),
    ],
)
def test_shares_of_tiles_are_of_torch_mm(operator, share, shown):
    row = goals.goal_row(goal("share", 84, 92), [of_mm(operator, share)])
    assert (row.gate, row.target, row.verdict) == shown


def test_shares_of_tiles_in_registers_are_not_judged():
    in_registers = record("a", share=0.99, isa=goals.AMX)
    in_registers["sides"][0]["peak"] = "bf16 AMX tile"
    assert goals.goal_row(goal("share", 75, 90), [in_registers]).verdict == "-"
    in_registers |= {"goal": "grad_full", "line": "grad goal=grad_full threads=1"}
    of_registers = {**in_registers, "goal": "loss_rows", "line": "grad goal=loss_rows threads=1"}
    lines = goals.peer_lines([in_registers, of_registers], "after_torch", is_quick=False)
    assert lines[0] == in_registers["line"] and of_registers["line"] not in lines
    assert all(goals.word(line, "goal") == "after_torch" for line in lines[1:])


@pytest.mark.parametrize(
    ("goal_name", "is_amx", "ratio", "shown"),
    [
        ("step_torch", False, 1.01, ("0.92x", "1.00x", "target")),
        ("step_torch", True, 1.25, ("1.22x", "1.30x", "gate")),
        ("small_torch", True, 1.01, ("0.92x", "1.00x", "target")),
        ("small_torch", True, 0.9, ("0.92x", "1.00x", "MISS")),
    ],
)
def test_a_step_is_held_to_the_fastest_of_torch(goal_name, is_amx, ratio, shown):
    result = {
        "line": "step threads=2 mask=3 heads=8 rows=64 keys=128",
        "goal": goal_name,
        "ms": 12.345,
        "ratios": {"eager": [7, 9, 8], "compiled": [0.5, ratio, 3.0]},
        "extra_mib": {"kindling": 1, "eager": 300, "compiled": 20},
    }
    row = goals.torch_row(result, is_amx)
    assert (row.gate, row.target, row.verdict) == shown
    assert row.what == "PyTorch over us: step, bf16, causal, T=64, S=128, N1 8, threads 2"
    assert row.measured == (
        f"{ratio:.2f}x (0.50-3.00): eager 8.00x, compiled {ratio:.2f}x; ours 12.3 ms; "
        "MiB: ours 1, eager 300, compiled 20"
    )


def test_what_is_left_out_is_said():
    every = {goal.name for goal in goals.GOALS}
    assert goals.left_out(every, "") == []
    (line,) = goals.left_out(every - {"after_torch", "grad_avx2"}, "")
    assert line.endswith(": grad_avx2, after_torch")
    assert goals.left_out(every - {"after_torch"}, "avx2") == []


def test_memory_bound():
    line = "grad threads=2 dtype=bf16 heads=512 dim=256 rows=1,1 keys=65,64"
    assert goals.memory_bound(line, 2.0) == 192 * 256 * 8 + 2 * 2 * 2**20 * 2 * 2 + 2**20
    line = "grad dtype=fp16 heads=8 dim=64 rows=1 keys=64 / grad dtype=bf16 rows=9 keys=9"
    assert goals.memory_bound(line, 1.2) == 64 * 64 * 12 + 1.2 * 2**20 + 2**20


def test_the_table_is_written_between_its_marks(tmp_path):
    document = tmp_path / "page.md"
    document.write_text("a\n<!-- goals: begin -->\nold\n<!-- goals: end -->\nb\n")
    goals.write_into(document, "new")
    assert document.read_text() == "a\n<!-- goals: begin -->\nnew\n<!-- goals: end -->\nb\n"
    document.write_text("no marks\n")
    with pytest.raises(SystemExit, match="expected the marks"):
        goals.write_into(document, "new")
    assert document.read_text() == "no marks\n"


def test_tables_are_markdown():
    row = goals.Row("w", "g", "t", "m", "v")
    lines = goals.table([row]).splitlines()
    assert lines[1].count("-") > 5 and all(line.count("|") == 6 for line in lines)
