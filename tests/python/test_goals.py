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
    lines = goals.CASES.read_text().splitlines()
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
