"""`kindling plan`, through the command line."""

import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import kindling
import numpy as np
import pytest
from cases import LENGTHS
from kindling import _plan_command, _plan_pictures, cli
from kindling._plan_pictures import binned_loads, cost_map
from typer.testing import CliRunner

RUNNER = CliRunner()
REPO = Path(__file__).resolve().parents[2]
TND = ["--layout-q", "TND", "--layout-k", "TND"]
PACKED = ["--cu-seqlens-q", "0,16", "--cu-seqlens-k", "0,4", *TND]


def run(*arguments, code=0):
    result = RUNNER.invoke(cli.app, ["plan", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return result


def plan_json(*arguments):
    return json.loads(run(*arguments, "--json").stdout)


@pytest.mark.parametrize(
    ("cores", "words"),
    [(8, [2, 1, 0, 8]), (20, [1, 0, 4, 16]), (24, [1, 0, 8, 16]), (36, [1, 0, 20, 16])],
)
def test_words_of_the_packed_example(cores, words):
    out = plan_json(*PACKED, "--heads", 8, "--cmp-ratio", 4, "--cores", cores)
    assert out["words"] == [16, *words, 4, *[0] * 58]
    assert out["num_cores"] == cores == len(out["per_core"])
    assert sum(core["rows"] for core in out["per_core"]) == 16
    assert out["per_core"][0] == {"rows": words[0], "cost": 20 * words[0]}
    assert out["imbalance"] == pytest.approx(words[0] * cores / 16)
    assert out["law"] == "cyclic"


# The spec's section 6: words 1 to 4 for T rows on so many cores.
CORES = (8, 20, 24, 25, 32, 36)
WORDS = {
    0: "0,0,0,0 0,0,0,0 0,0,0,0 0,0,0,0 0,0,0,0 0,0,0,0",
    1: "1,0,7,1 1,0,19,1 1,0,23,1 1,0,24,1 1,0,31,1 1,0,35,1",
    16: "2,1,0,8 1,0,4,16 1,0,8,16 1,0,9,16 1,0,16,16 1,0,20,16",
    24: "3,2,0,8 2,1,16,20 1,0,0,24 1,0,1,24 1,0,8,24 1,0,12,24",
    25: "4,3,7,8 2,1,15,20 2,1,23,24 1,0,0,25 1,0,7,25 1,0,11,25",
    511: "64,63,1,8 26,25,9,20 22,21,17,24 21,20,14,25 16,15,1,32 15,14,29,36",
    2048: "256,255,0,8 103,102,12,20 86,85,16,24 82,81,2,25 64,63,0,32 57,56,4,36",
}


@pytest.mark.parametrize("rows", WORDS)
def test_words_of_the_spec(rows):
    lengths = ["--cu-seqlens-q", f"0,{rows}", "--cu-seqlens-k", f"0,{rows}", *TND]
    for cores, words in zip(CORES, WORDS[rows].split(), strict=True):
        out = plan_json(*lengths, "--cores", cores)
        assert out["words"] == [rows, *map(int, words.split(",")), rows, *[0] * 58]


# The spec's section 2: uq, uk, ratio, residual, and visible keys of some rows.
@pytest.mark.parametrize(
    ("lengths", "visible"),
    [
        ((16, 4, 1, 0), {0: 0, 11: 0, 12: 1, 13: 2, 14: 3, 15: 4}),
        ((32, 8, 4, 0), {2: 0, 3: 1, 6: 1, 7: 2, 30: 7, 31: 8}),
        ((18, 4, 4, 2), {2: 0, 3: 1, 6: 1, 7: 2, 17: 4}),
        ((10, 3, 4, 1), {0: 1, 3: 1, 4: 2, 7: 2, 8: 3, 9: 3}),
        ((13, 4, 4, 2), {0: 1, 1: 1, 2: 2, 5: 2, 6: 3, 12: 4}),
        ((8, 3, 4, 3), {0: 2, 3: 2, 4: 3, 7: 3}),
        ((511, 3048, 13, 0), {0: 3008, 2: 3008, 3: 3009, 509: 3047, 510: 3048}),
    ],
)
def test_visible_keys_of_the_spec(lengths, visible):
    uq, uk, ratio, residual = lengths
    batch = ["--batch-size", 1, "--max-seqlen-q", uq, "--max-seqlen-k", uk, "--mask", 3]
    batch += ["--cmp-ratio", ratio, "--cmp-residual-k", residual]
    for row, keys in visible.items():
        assert plan_json(*batch, "--explain-row", row)["row"]["num_visible_keys"] == keys


def test_json_is_what_the_help_says():
    keys = {"words", "names", "law", "num_cores", "per_core", "imbalance"}
    batch = ["--batch-size", 1, "--max-seqlen-q", 3, "--max-seqlen-k", 4]
    out = plan_json(*batch, "--cores", 4)
    assert set(out) == keys
    assert set(plan_json(*batch, "--explain-row", 0)) == keys | {"row"}
    assert out["per_core"] == [*[{"rows": 1, "cost": 20}] * 3, {"rows": 0, "cost": 0}]
    assert out["imbalance"] == pytest.approx(4 / 3)
    assert out["names"][:6] == "totalSize formerCoreSize remainCoreSize remainCoreNum".split() + [
        "usedCoreNum",
        "maxSeqK",
    ]
    many = plan_json(*batch, "--cores", 5000)
    assert many["num_cores"] == 5000 and many["per_core"] == out["per_core"][:3]
    assert many["imbalance"] == pytest.approx(5000 / 3)
    none = plan_json(*TND, "--cu-seqlens-q", 0, "--cu-seqlens-k", 0)
    assert none["per_core"] == [{"rows": 0, "cost": 0}] and none["imbalance"] == 1


def test_plans_on_very_many_cores(tmp_path):
    batch = ["--batch-size", 1, "--max-seqlen-q", 2**31 - 1, "--max-seqlen-k", 1]
    batch += ["--cores", 2**31 - 1]
    out = plan_json(*batch)
    assert out["words"][4] == 2**31 - 1
    assert out["per_core"] is None and out["imbalance"] is None
    assert "not listed" in run(*batch).stdout
    error = run(*batch, "--svg", tmp_path / "plan.svg", code=2).stderr
    assert error.startswith("svg: expected a plan with rows on at most 1048576 cores, got 21474")


def test_balanced_plan():
    sums = ",".join(str(28 * i) for i in range(33))
    lengths = ["--cu-seqlens-q", sums, "--cu-seqlens-k", sums, *TND, "--mask", 3, "--cores", 28]
    assert plan_json(*lengths)["imbalance"] == pytest.approx(1.4426, abs=1e-4)
    balanced = plan_json(*lengths, "--policy", "balanced")
    assert balanced["imbalance"] <= 1.02
    assert balanced["words"][6] != 0


def test_explains_a_row():
    lengths = [*PACKED, "--mask", 3, "--cores", 8]
    row = plan_json(*lengths, "--explain-row", 14)["row"]
    assert row == {
        "row": 14,
        "batch": 0,
        "position": 14,
        "storage_row": 14,
        "key_begin": 0,
        "num_visible_keys": 3,
        "core": 6,
        "cost": 19,
    }
    assert (
        "Row 14 is position 14 of sequence 0, row 14 of q, and sees 3 keys, rows 0 to 2 of k. "
        "Core 6 takes it at cost 1 * 3 + 16 = 19."
    ) in run(*lengths, "--explain-row", 14).stdout
    assert "sees no key. Core 3" in run(*lengths, "--explain-row", 11).stdout
    padded = ["--batch-size", 3, "--max-seqlen-q", 8, "--max-seqlen-k", 9, "--seqused-q", "2,0,5"]
    row = plan_json(*padded, "--seqused-k", "9,9,1", "--explain-row", 4)["row"]
    assert [row[key] for key in ("batch", "position", "storage_row", "key_begin")] == [2, 2, 18, 18]
    assert "row: expected in [0, 16), got 16" in run(*lengths, "--explain-row", 16, code=2).stderr


def test_prints_words_and_loads():
    out = run("--batch-size", 2, "--max-seqlen-q", 10, "--max-seqlen-k", 5, "--cores", 3).stdout
    assert "formerCoreSize" in out and "max/mean 1.0500" in out and "█" in out


def test_prints_the_costliest_of_many_cores():
    lengths = ["--batch-size", 1, "--max-seqlen-q", 100, "--max-seqlen-k", 100, "--mask", 3]
    out = run(*lengths, "--cores", 100).stdout
    assert "load of the 64 costliest cores" in out
    assert "│   99 │    1 │  116 │" in out and "│   36 │    1 │   53 │" in out
    assert "│   35 │" not in out


def test_core_count_from_the_device_name():
    assert plan_json(*PACKED, "--soc", "Ascend910B3")["num_cores"] == 20
    assert plan_json(*PACKED)["num_cores"] == kindling.get_num_threads()


def test_reads_files(tmp_path):
    sums = [0, 100, 250, 251]
    expected = plan_json("--cu-seqlens-q", "0,100,250,251", "--cu-seqlens-k", "0,100,250,251", *TND)
    array = np.array(sums, np.int32)
    np.save(tmp_path / "sums.npy", array)
    (tmp_path / "list.json").write_text(json.dumps(sums))
    (tmp_path / "with:colon.JSON").write_text(json.dumps({"only": sums}))
    (tmp_path / "both.json").write_text(json.dumps({"cu_seqlens_q": sums, "keys": sums}))
    from safetensors.numpy import save_file

    save_file({"q": array, "k": array}, tmp_path / "sums.safetensors")
    pairs = [
        (f"{tmp_path}/sums.npy", f"{tmp_path}/list.json"),
        (f"{tmp_path}/both.json", f"{tmp_path}/both.json:keys"),
        (f"{tmp_path}/with:colon.JSON", f"{tmp_path}/with:colon.JSON:only"),
        (" 0, 100,250 ,+251", f"{tmp_path}/list.json"),
        (f"{tmp_path}/sums.safetensors:q", f"{tmp_path}/sums.safetensors:k"),
    ]
    for q, k in pairs:
        assert plan_json("--cu-seqlens-q", q, "--cu-seqlens-k", k, *TND) == expected


# Every check of docs/metadata.md that has an option, with the argument that the message names.
BSND = ["--batch-size", 1, "--max-seqlen-q", 4, "--max-seqlen-k", 4]
FAULTS = [
    (["--heads", 0], "num_heads_q"),
    (["--heads", 129], "num_heads_q"),
    (["--head-dim", 64], "head_dim"),
    (["--batch-size", -1], "batch_size"),
    (["--max-seqlen-q", -1], "max_seqlen_q"),
    (["--max-seqlen-k", -1], "max_seqlen_k"),
    (["--mask", 1], "mask_mode"),
    (["--cmp-ratio", 0], "cmp_ratio"),
    (["--cmp-ratio", 129], "cmp_ratio"),
    (["--layout-q", "BNSD"], "layout_q"),
    (["--layout-k", "tnd"], "layout_k"),
    (["--cores", 0], "num_cores"),
    (["--cores", 2**31], "num_cores"),
    (["--soc", "H200"], "soc_version"),
    (["--policy", "fair"], "policy"),
    (["--layout-q", "TND"], "cu_seqlens_q"),
    (["--layout-k", "TND"], "cu_seqlens_k"),
    (["--mask", 3, "--cmp-ratio", 2], "cmp_residual_k"),
    (["--seqused-q", "1,2", "--batch-size", 0], "batch_size"),
    (["--layout-q", "TND", "--cu-seqlens-q", "0,2,4", "--seqused-q", "1"], "cu_seqlens_q"),
    (["--layout-k", "TND", "--cu-seqlens-k", "0,2,4", "--seqused-k", "1"], "cu_seqlens_k"),
    (["--cmp-residual-k", "0,0"], "cmp_residual_k"),
    (["--batch-size", 0], "batch_size"),
    (["--max-seqlen-q", 0], "max_seqlen_q"),
    (["--max-seqlen-k", 0], "max_seqlen_k"),
    (["--layout-q", "TND", "--cu-seqlens-q", "0,1,2"], "batch_size"),
    (["--seqused-q", "1,1", "--seqused-k", "1,1"], "batch_size"),
    (["--layout-q", "TND", "--cu-seqlens-q", "1,2"], r"cu_seqlens_q\[0\]"),
    (["--layout-q", "TND", "--cu-seqlens-q", "0,-2"], r"cu_seqlens_q\[1\]"),
    (["--layout-k", "TND", "--cu-seqlens-k", "1,2"], r"cu_seqlens_k\[0\]"),
    (["--layout-k", "TND", "--cu-seqlens-k", "0,-2"], r"cu_seqlens_k\[1\]"),
    (["--cu-seqlens-q", "0,3,2"], r"cu_seqlens_q\[2\]"),
    (["--cu-seqlens-k", "0,3,2"], r"cu_seqlens_k\[2\]"),
    (["--seqused-q", "5"], r"seqused_q\[0\]"),
    (["--seqused-q", "-1"], r"seqused_q\[0\]"),
    (["--seqused-k", "5"], r"seqused_k\[0\]"),
    (["--seqused-k", "-1"], r"seqused_k\[0\]"),
    (["--cmp-residual-k", "1"], r"cmp_residual_k\[0\]"),
    (["--cmp-residual-k", "-1"], r"cmp_residual_k\[0\]"),
    (["--max-seqlen-q", 2**31], "max_seqlen_q"),
    (["--max-seqlen-k", 2**31], "max_seqlen_k"),
    (["--max-seqlen-q", 2**31 - 1, "--batch-size", 2], "batch_size"),
    (["--batch-size", 2**60], "batch_size"),
    (["--seqused-q", "1,two"], r"seqused_q\[1\]"),
    (["--seqused-q", str(2**31)], r"seqused_q\[0\]"),
    (["--seqused-q", "nothing.json"], "seqused_q"),
    (["--seqused-q", "1_0"], r"seqused_q\[0\]"),
    (["--seqused-q", "1,,2"], r"seqused_q\[1\]"),
    (["--seqused-q", "9" * 5000], r"seqused_q\[0\]"),
    (["--seqused-q", "nothing.npy"], "seqused_q"),
    (["--seqused-q", "nothing.safetensors"], "seqused_q"),
    (["--heads", "many"], "num_heads_q"),
    (["--head-dim", "1e2"], "head_dim"),
    (["--batch-size", 10**30], "batch_size"),
    (["--explain-row", "first"], "row"),
    (["--explain-row", 4], "row"),
    (["--svg", "/nowhere/plan.svg"], "svg"),
    (["--png", "/"], "png"),
    # Several at once: the first check decides.
    (["--heads", 0, "--mask", 1, "--layout-q", "TND"], "num_heads_q"),
    (["--cmp-ratio", 0, "--layout-q", "BNSD", "--cores", 0], "cmp_ratio"),
    (["--seqused-q", "5", "--cmp-residual-k", "1", "--cores", 0], "num_cores"),
    (["--seqused-q", "5", "--cmp-residual-k", "1,2"], "cmp_residual_k"),
    (["--seqused-k", "5", "--cmp-residual-k", "1"], r"seqused_k\[0\]"),
    # A record does not excuse its arguments.
    (["--check", "1,2,3", "--heads", 0], "num_heads_q"),
]


@pytest.mark.parametrize(("options", "argument"), FAULTS)
def test_bad_input_is_exit_2_with_the_argument_named(options, argument):
    error = run(*BSND, *options, code=2).stderr
    assert re.match(rf"{argument}: expected .*, got ", error), error
    assert error.count("\n") == 1


@pytest.mark.parametrize("name", LENGTHS)
def test_arrays_of_other_ranks_and_dtypes(tmp_path, name):
    np.save(tmp_path / "square.npy", np.zeros((1, 1), np.int32))
    np.save(tmp_path / "wide.npy", np.zeros(1, np.int64))
    option = "--" + name.replace("_", "-")
    error = run(*BSND, option, tmp_path / "square.npy", code=2).stderr
    assert error.startswith(f"{name}: expected rank 1, got rank 2"), error
    error = run(*BSND, option, tmp_path / "wide.npy", code=2).stderr
    assert error == f"{name}: expected dtype int32, got int64\n"


def test_files_that_are_none_of_theirs(tmp_path):
    (tmp_path / "broken.json").write_text("[0, 1")
    (tmp_path / "broken.npy").write_bytes(b"no array")
    (tmp_path / "broken.safetensors").write_bytes(b"\xff" * 20)
    (tmp_path / "floats.json").write_text("[0, 1.5]")
    (tmp_path / "flags.json").write_text("[0, true]")
    (tmp_path / "wide.json").write_text("[0, 2147483648]")
    (tmp_path / "number.json").write_text("3")
    (tmp_path / "bytes.json").write_bytes(b"\xff")
    (tmp_path / "deep.json").write_text("[" * 100_000)
    (tmp_path / "nothing.json").write_text("{}")
    (tmp_path / "entries.json").write_text('{"a": [0], "b": [0]}')
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "empty.npy").touch()
    np.save(tmp_path / "objects.npy", np.array([[], None], object))
    np.save(tmp_path / "plain.npy", np.zeros(2, np.int32))
    files = [path.name for path in tmp_path.iterdir() if path.name != "plain.npy"]
    for name in [*files, "entries.json:c", "floats.json:a", "plain.npy:a"]:
        error = run("--cu-seqlens-q", tmp_path / name, *TND, code=2).stderr
        assert re.match(r"cu_seqlens_q(\[1\])?: expected .*, got ", error), (name, error)
        assert error.count("\n") == 1 and len(error) < 600, error
        assert "/" not in error or str(tmp_path) in error
    error = run("--cu-seqlens-q", tmp_path / "entries.json:c", *TND, code=2).stderr
    assert "one of the entries ['a', 'b'] of" in error and error.endswith("got 'c'\n")


def test_checks_records(tmp_path):
    words = plan_json(*PACKED, "--cores", 8)["words"]
    good = tmp_path / "good.json"
    good.write_text(json.dumps({"words": words, "names": ["other"]}))
    assert "valid" in run(*PACKED, "--check", good).stdout
    array = np.array(words, np.int32)
    np.save(tmp_path / "good.npy", array)
    assert "valid" in run(*PACKED, "--check", tmp_path / "good.npy").stdout
    assert plan_json(*PACKED, "--check", ",".join(map(str, words)))["words"] == words
    words[3] = 5
    bad = tmp_path / "bad.json"
    bad.write_text(json.dumps(words))
    error = run(*PACKED, "--check", bad, code=2).stderr
    assert error.startswith("metadata[3]: expected total_size + remain_core_num"), error
    for word, value in ((0, 17), (2, 3), (4, 7), (6, 1), (8, 1), (63, 1)):
        wrong = array.copy()
        wrong[word] = value
        np.save(tmp_path / "wrong.npy", wrong)
        error = run(*PACKED, "--check", tmp_path / "wrong.npy", code=2).stderr
        assert re.match(rf"metadata\[{word}\]: expected .*, got {value}\n$", error), error
    np.save(tmp_path / "wide.npy", array.astype(np.int64))
    error = run(*PACKED, "--check", tmp_path / "wide.npy", code=2).stderr
    assert error == "metadata: expected dtype int32, got int64\n"
    error = run(*PACKED, "--check", tmp_path / "none.json", code=2).stderr
    assert error.startswith("metadata: expected a readable file, got ")
    assert "metadata: expected length 64, got 3" in run(*PACKED, "--check", "1,2,3", code=2).stderr


@pytest.mark.parametrize("rows", [1, 10, 100_000])
def test_pictures(tmp_path, rows):
    lengths = ["--batch-size", 1, "--max-seqlen-q", rows, "--max-seqlen-k", rows, "--mask", 3]
    svg, png = tmp_path / "plan.svg", tmp_path / "plan.png"
    run(*lengths, "--cores", 6, "--svg", svg, "--png", png)
    first = svg.read_bytes()
    assert png.read_bytes()[:4] == b"\x89PNG" and b"on 6 cores, cyclic dealing" in first
    run(*lengths, "--cores", 6, "--svg", svg)
    assert svg.read_bytes() == first
    assert sorted(path.name for path in tmp_path.iterdir()) == ["plan.png", "plan.svg"]


def test_picture_shows_every_row_once():
    sums = np.array([0, 40, 100], np.int32)
    batch = {"cu_seqlens_q": sums, "cu_seqlens_k": sums, "layout_q": "TND", "layout_k": "TND"}
    plan = kindling.Plan(kindling.make_metadata(1, 1, 128, **batch, num_cores=7), **batch)
    costs = cost_map(plan)
    assert costs.shape == (7, 100)
    assert (~np.isnan(costs)).sum(axis=0).tolist() == [1] * 100
    assert np.nansum(costs, axis=1).tolist() == plan.cost_of_cores().tolist()


def test_pictures_of_plans_without_rows(tmp_path):
    run(*TND, "--cu-seqlens-q", 0, "--cu-seqlens-k", 0, "--svg", tmp_path / "plan.svg")
    assert b"0 rows on 1 core" in (tmp_path / "plan.svg").read_bytes()


def test_pictures_of_many_rows_show_every_core(monkeypatch):
    """Where only some rows are looked at, they are not all on the same cores."""
    monkeypatch.setattr(_plan_pictures, "MAX_DRAWN_ROWS", 1000)
    batch = {"batch_size": 1, "max_seqlen_q": 8000, "max_seqlen_k": 500}
    plan = kindling.Plan(kindling.make_metadata(1, 1, 128, **batch, num_cores=8), **batch)
    costs = cost_map(plan)
    assert costs.shape == (8, 256)
    assert (~np.isnan(costs)).sum(axis=1).min() > 50
    assert np.nanmin(costs) == np.nanmax(costs) == 516


@pytest.mark.parametrize("cores", [1, 127, 128, 129, 300, 1000])
def test_bins_of_cores(cores):
    loads = np.arange(cores) * 7 % 1000
    edges, largest = binned_loads(loads)
    bins = min(cores, 128)
    bin_of_core = np.arange(cores) * bins // cores
    assert edges.tolist() == [*np.searchsorted(bin_of_core, np.arange(bins)), cores]
    assert largest.tolist() == [loads[bin_of_core == i].max() for i in range(bins)]


def test_failed_pictures_leave_no_file(tmp_path, monkeypatch):
    target = tmp_path / "plan.svg"
    target.write_text("old")
    (tmp_path / "link.svg").symlink_to("plan.svg")

    def fail(self, other):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", fail)
        error = run(*BSND, "--svg", target, code=2).stderr
    assert error.endswith(f"got {target}: No space left on device\n")
    assert target.read_text() == "old"
    _plan_command.write_atomically(tmp_path / "link.svg", b"new")
    assert target.read_text() == "new" and (tmp_path / "link.svg").is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.svg", "plan.svg"]
    umask = os.umask(0)
    os.umask(umask)
    assert target.stat().st_mode & 0o777 == 0o666 & ~umask


def test_pipes_are_written_to_and_not_replaced(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        _plan_command.write_atomically(pipe, b"picture")
        assert os.read(reader, 100) == b"picture"
    finally:
        os.close(reader)
    assert pipe.is_fifo()


def test_options_are_those_of_the_operator():
    """Names, defaults and help come from the description, which the core owns."""
    described = {argument.name: argument for argument in kindling.describe_metadata()}
    option_of = {"num_heads_q": "heads", "mask_mode": "mask", "num_cores": "cores"}
    option_of |= {"soc_version": "soc"}
    parameters = inspect.signature(_plan_command.plan, eval_str=True).parameters
    for name, argument in described.items():
        if name == "num_heads_k":  # only 1 is allowed
            continue
        parameter = parameters[option_of.get(name, name)]
        (option,) = parameter.annotation.__metadata__
        assert option.help == argument.doc
        default = {"none": None, "required": parameter.default}.get(
            argument.default, argument.default
        )
        assert parameter.default == default or str(parameter.default) == default
    assert (parameters["heads"].default, parameters["head_dim"].default) == (64, 128)


def test_docs_table_is_the_description():
    text = (REPO / "docs" / "metadata.md").read_text()
    section = text[text.index("## Arguments") : text.index("## Device names")]
    table = [line for line in section.splitlines() if line.startswith("|")]
    assert table[2:] == [
        f"| `{a.name}` | {a.kind} | {a.type} | {a.shape} | {a.default} | {a.doc} |"
        for a in kindling.describe_metadata()
    ]


def test_installed_command():
    command = Path(sys.executable).with_name("kindling")
    done = subprocess.run(
        [command, "plan", "--batch-size", "0"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("batch_size: expected") and "Traceback" not in done.stderr


def test_terminals_without_block_characters():
    command = [sys.executable, "-m", "kindling.cli", "plan", *map(str, BSND)]
    done = subprocess.run(
        command,
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        check=True,
    )
    assert b"####" in done.stdout


def test_the_command_starts_without_what_it_may_not_need():
    code = "import sys, kindling.cli; print([m for m in sys.argv[1:] if m in sys.modules])"
    modules = ["numpy", "rich", "matplotlib", "safetensors"]
    done = subprocess.run(
        [sys.executable, "-c", code, *modules], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
