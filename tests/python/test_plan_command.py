"""`kindling plan`, through the command line."""

import inspect
import json
import re
import subprocess
import sys
from pathlib import Path

import kindling
import numpy as np
import pytest
from kindling import _plan_command, cli
from kindling._plan_pictures import cost_map
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
    assert "sees no key; core 3" in run(*lengths, "--explain-row", 11).stdout
    assert "row: expected in [0, 16), got 16" in run(*lengths, "--explain-row", 16, code=2).stderr


def test_prints_words_and_loads():
    out = run("--batch-size", 2, "--max-seqlen-q", 10, "--max-seqlen-k", 5, "--cores", 3).stdout
    assert "formerCoreSize" in out and "max/mean 1.0500" in out and "█" in out


def test_core_count_from_the_device_name():
    assert plan_json(*PACKED, "--soc", "Ascend910B3")["num_cores"] == 20
    assert plan_json(*PACKED)["num_cores"] == kindling.get_num_threads()


def test_reads_files(tmp_path):
    sums = [0, 100, 250, 251]
    expected = plan_json("--cu-seqlens-q", "0,100,250,251", "--cu-seqlens-k", "0,100,250,251", *TND)
    array = np.array(sums, np.int32)
    np.save(tmp_path / "sums.npy", array)
    (tmp_path / "list.json").write_text(json.dumps(sums))
    (tmp_path / "both.json").write_text(json.dumps({"cu_seqlens_q": sums, "keys": sums}))
    from safetensors.numpy import save_file

    save_file({"q": array, "k": array}, tmp_path / "sums.safetensors")
    pairs = [
        (f"{tmp_path}/sums.npy", f"{tmp_path}/list.json"),
        (f"{tmp_path}/both.json", f"{tmp_path}/both.json:keys"),
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
    (["--seqused-q", "1,1", "--seqused-k", "1,1"], "batch_size"),
    (["--layout-q", "TND", "--cu-seqlens-q", "1,2"], r"cu_seqlens_q\[0\]"),
    (["--layout-k", "TND", "--cu-seqlens-k", "0,-2"], r"cu_seqlens_k\[1\]"),
    (["--seqused-q", "5"], r"seqused_q\[0\]"),
    (["--seqused-k", "-1"], r"seqused_k\[0\]"),
    (["--cmp-residual-k", "1"], r"cmp_residual_k\[0\]"),
    (["--max-seqlen-q", 2**31], "max_seqlen_q"),
    (["--batch-size", 2**60], "batch_size"),
    (["--seqused-q", "1,two"], r"seqused_q\[1\]"),
    (["--seqused-q", str(2**31)], r"seqused_q\[0\]"),
    (["--seqused-q", "nothing.json"], "seqused_q"),
    (["--svg", "/nowhere/plan.svg"], "svg"),
]


@pytest.mark.parametrize(("options", "argument"), FAULTS)
def test_bad_input_is_exit_2_with_the_argument_named(options, argument):
    error = run(*BSND, *options, code=2).stderr
    assert re.match(rf"{argument}: expected .*, got ", error), error
    assert error.count("\n") == 1


def test_files_that_are_none_of_theirs(tmp_path):
    (tmp_path / "broken.json").write_text("[0, 1")
    (tmp_path / "broken.npy").write_bytes(b"no array")
    (tmp_path / "broken.safetensors").write_bytes(b"\xff" * 20)
    (tmp_path / "floats.json").write_text("[0, 1.5]")
    (tmp_path / "entries.json").write_text('{"a": [0], "b": [0]}')
    np.save(tmp_path / "wide.npy", np.zeros(2, np.int64))
    for name in ("broken.json", "broken.npy", "broken.safetensors", "floats.json", "entries.json"):
        error = run("--cu-seqlens-q", tmp_path / name, *TND, code=2).stderr
        assert error.startswith("cu_seqlens_q"), error
    error = run("--cu-seqlens-q", tmp_path / "wide.npy", "--cu-seqlens-k", "0,1", *TND, code=2)
    assert error.stderr == "cu_seqlens_q: expected dtype int32, got int64\n"


def test_checks_records(tmp_path):
    words = plan_json(*PACKED, "--cores", 8)["words"]
    good = tmp_path / "good.json"
    good.write_text(json.dumps({"words": words, "names": ["other"]}))
    assert "valid" in run(*PACKED, "--check", good).stdout
    words[3] = 5
    bad = tmp_path / "bad.json"
    bad.write_text(json.dumps(words))
    error = run(*PACKED, "--check", bad, code=2).stderr
    assert error.startswith("metadata[3]: expected total_size + remain_core_num"), error
    assert "metadata: expected length 64, got 3" in run(*PACKED, "--check", "1,2,3", code=2).stderr


@pytest.mark.parametrize("rows", [1, 10, 3000])
def test_pictures(tmp_path, rows):
    lengths = ["--batch-size", 1, "--max-seqlen-q", rows, "--max-seqlen-k", rows, "--mask", 3]
    svg, png = tmp_path / "plan.svg", tmp_path / "plan.png"
    run(*lengths, "--cores", 6, "--svg", svg, "--png", png)
    first = svg.read_bytes()
    assert png.read_bytes()[:4] == b"\x89PNG" and f"{rows} rows on 6 cores".encode() in first
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


def test_failed_pictures_leave_no_file(tmp_path):
    def fail(path):
        path.write_text("half")
        raise RuntimeError

    target = tmp_path / "plan.svg"
    target.write_text("old")
    with pytest.raises(RuntimeError):
        _plan_command.write_atomically(target, fail)
    assert [path.name for path in tmp_path.iterdir()] == ["plan.svg"]
    assert target.read_text() == "old"


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
    for a in kindling.describe_metadata():
        row = f"| `{a.name}` | {a.kind} | {a.type} | {a.shape} | {a.default} | {a.doc} |"
        assert row in text, row


def test_installed_command():
    command = Path(sys.executable).with_name("kindling")
    done = subprocess.run(
        [command, "plan", "--batch-size", "0"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("batch_size: expected") and "Traceback" not in done.stderr
