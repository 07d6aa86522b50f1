"""Scripts for the vendor's device, run on the CPU by the compat runner."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

SCRIPTS = Path(__file__).resolve().parent / "vendor_scripts"


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", "-m", "kindling.compat", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True)


def run_code(code: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    script = tmp_path / "script.py"
    script.write_text(code)
    return run(script)


@pytest.mark.parametrize(
    ("script", "arguments", "output"),
    [
        ("gradients.py", ["--heads", "16"], "gradients ok 16\n"),
        ("teacher.py", [], "teacher ok 1 True\n"),
        ("training.py", [], "training ok\n"),
    ],
)
def test_vendor_scripts(script, arguments, output):
    result = run(SCRIPTS / script, *arguments)
    assert (result.returncode, result.stdout) == (0, output), result.stderr


def test_what_is_missing_is_named(tmp_path):
    code = """
import torch, torch_npu, cann_ops_transformer.ops

def message(action):
    try:
        action()
    except Exception as error:
        print(type(error).__name__, str(error).partition(":")[0])

def from_import():
    from cann_ops_transformer.ops import flash_attention_score

def submodule():
    import torch_npu.contrib.transfer_to_npu

message(lambda: torch_npu.npu_format_cast)
message(lambda: torch.npu.graphs)
message(lambda: cann_ops_transformer.ops.moe_init_routing)
message(from_import)
message(submodule)
message(lambda: torch.zeros(1, device="npu:1"))
message(lambda: torch.zeros(1).npu(3))
message(lambda: torch.npu.set_device("cuda:0"))
print(hasattr(torch.npu, "graphs"), hasattr(torch.npu, "synchronize"))
"""
    result = run_code(code, tmp_path)
    assert result.stdout.splitlines() == [
        "MissingOnCpuError torch_npu.npu_format_cast",
        "MissingOnCpuError torch.npu.graphs",
        "MissingOnCpuError cann_ops_transformer.ops.moe_init_routing",
        "ImportError cann_ops_transformer.ops.flash_attention_score",
        "ImportError torch_npu.contrib",
        "ValueError device",
        "ValueError device",
        "ValueError device",
        "False True",
    ], result.stderr


def test_everything_is_on_the_one_device(tmp_path):
    code = """
import io, torch, torch_npu

assert torch.zeros(2, device=0).to(0).pin_memory().device.type == "cpu"
assert torch.nn.Linear(2, 2).to(0).npu(0)(torch.ones(1, 2, device=0)).shape == (1, 2)
for elsewhere in ({"npu:0": "npu:0"}, {"npu:1": "npu:0"}, None, "npu:0", lambda data, at: data):
    saved = io.BytesIO()
    torch.save({"x": torch.ones(2).npu()}, saved)
    saved.seek(0)
    assert torch.load(saved, map_location=elsewhere)["x"].device.type == "cpu"
with torch.random.fork_rng(devices=[0], device_type="npu"):
    torch.npu.manual_seed(3)
    first = torch.rand(2, device="npu")
assert not torch.equal(torch.rand(2), first)
try:
    torch.zeros(2, device=1)
except ValueError as error:
    print(error)
"""
    result = run_code(code, tmp_path)
    expected = "device: expected npu:0, the only one on the CPU, got index 1\n"
    assert (result.returncode, result.stdout) == (0, expected), result.stderr


def test_device_within_a_backward_pass(tmp_path):
    code = """
import torch, torch_npu
from torch.utils.checkpoint import checkpoint

def step(x):
    return (torch.ones(4, 4, device="npu").tril() @ x).sum()

class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x
    @staticmethod
    def backward(ctx, grad):
        return grad * torch.full((), 2.0, device="npu")

for reentrant in (False, True):
    x = torch.randn(4, 4, device="npu", requires_grad=True)
    x.register_hook(lambda grad: grad.to("npu:0"))
    for backward in (torch.Tensor.backward, torch.autograd.backward):
        backward(checkpoint(step, Twice.apply(x), use_reentrant=reentrant))
assert torch.autograd.grad(checkpoint(step, Twice.apply(x), use_reentrant=False), x)[0][0, 0] == 8
print("ok")
"""
    result = run_code(code, tmp_path)
    assert (result.returncode, result.stdout) == (0, "ok\n"), result.stderr


def test_stand_ins_have_specs(tmp_path):
    code = """
import importlib.util
print([importlib.util.find_spec(name).name for name in ("torch_npu", "cann_ops_transformer.ops")])
"""
    result = run_code(code, tmp_path)
    assert result.stdout == "['torch_npu', 'cann_ops_transformer.ops']\n", result.stderr


def test_uninstall_where_it_cannot(tmp_path):
    code = """
import threading, torch, kindling.compat as compat

errors = []
def uninstall():
    try:
        compat.uninstall()
    except RuntimeError as error:
        errors.append(str(error))

thread = threading.Thread(target=uninstall)
thread.start()
thread.join()
with torch.device("cpu"):
    uninstall()
assert len(errors) == 2 and errors[0].startswith("uninstall: expected the thread of install")
assert compat.is_installed() and torch.ones(1, device="npu").device.type == "cpu"
compat.uninstall()
print(compat.is_installed())
"""
    result = run_code(code, tmp_path)
    assert (result.returncode, result.stdout) == (0, "False\n"), result.stderr


def test_exit_status_and_arguments(tmp_path):
    (tmp_path / "neighbour.py").write_text("X = 5\n")
    code = "import sys, neighbour; print(neighbour.X, __name__, sys.argv[1:]); sys.exit(7)"
    result = run_code(code, tmp_path)
    assert (result.returncode, result.stdout) == (7, "5 __main__ []\n"), result.stderr
    usage = run()
    assert usage.returncode == 2 and usage.stderr.startswith("usage")
    missing = run(tmp_path / "none.py")
    assert missing.returncode == 2 and "script: expected a file" in missing.stderr
    assert run("-m", "this", "x").stdout.startswith("The Zen")


def test_nothing_is_patched_unless_asked():
    code = """
import sys, torch
before = dict(vars(torch)), dict(vars(torch.Tensor)), dict(vars(torch.nn.Module)), torch.load
inits = torch.autocast.__init__, torch.amp.GradScaler.__init__
import kindling.torch, kindling.compat as compat
def same():
    return (before == (dict(vars(torch)), dict(vars(torch.Tensor)), dict(vars(torch.nn.Module)),
            torch.load) and inits == (torch.autocast.__init__, torch.amp.GradScaler.__init__)
            and "torch_npu" not in sys.modules)
assert same() and not compat.is_installed()
compat.install(); compat.install()
assert not same() and compat.is_installed()
assert torch.zeros(2, device="npu").device.type == "cpu"
import torch_npu
compat.uninstall(); compat.uninstall()
assert same() and not compat.is_installed()
try:
    torch.zeros(2, device="npu")
except Exception:
    pass
else:
    raise AssertionError("the device is still stood in for")
compat.install()
assert torch.zeros(2, device="npu:0").npu().is_npu
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def test_the_vendors_own_package_is_not_shadowed(tmp_path):
    (tmp_path / "torch_npu.py").write_text("")
    code = "import kindling.compat; kindling.compat.install()"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path
    )
    assert "install: expected no torch_npu in this environment" in result.stderr


ORDINARY = """
import torch, torch.utils.checkpoint as c
from torch.utils.data import DataLoader

assert not torch.accelerator.is_available()
assert torch.accelerator.current_accelerator() is None
assert torch.compile(lambda x: x * 2, backend="eager")(torch.ones(2)).tolist() == [2, 2]
batches = DataLoader(list(range(8)), batch_size=4, pin_memory=True)
assert next(iter(batches)).tolist() == [0, 1, 2, 3]
x = torch.ones(2, requires_grad=True)
c.checkpoint(lambda a: a * 2, x, use_reentrant=False).sum().backward()
assert x.grad.tolist() == [2, 2]
print("ordinary ok")
"""


@pytest.mark.parametrize(
    "before", ["", "import kindling.compat as c; c.install(); c.uninstall()\n"], ids=["in", "after"]
)
def test_ordinary_torch_goes_on(before, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(before + ORDINARY)
    runner = [] if before else ["-m", "kindling.compat"]
    command = [sys.executable, "-W", "ignore", *runner, str(script)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (0, "ordinary ok\n"), result.stderr
