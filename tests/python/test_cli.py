"""The command `kindling`."""

from __future__ import annotations

import importlib.metadata
import json
import re
import subprocess
import sys

import kindling
import pytest
from kindling.cli import app
from typer.testing import CliRunner


def run(*arguments: str):
    return CliRunner().invoke(app, list(arguments))


def test_version():
    result = run("--version")
    assert result.exit_code == 0
    assert result.stdout == f"kindling {kindling.__version__}\n"


def test_info():
    result = run("info", "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout) == {
        "version": kindling.__version__,
        **kindling.cpu_info(),
    }
    result = run("info")
    assert result.exit_code == 0
    for word in (kindling.__version__, kindling.cpu_info()["isa"], "num threads"):
        assert word in result.stdout


def test_unknown_commands_are_refused():
    assert run("no-such-command").exit_code == 2


NO_IMPORTS_BUT = """
import importlib.abc, sys
class Refuse(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top not in sys.stdlib_module_names and top not in {allowed}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Refuse())
"""


def run_without_packages(code: str, allowed=("kindling", "numpy")) -> subprocess.CompletedProcess:
    """Run `code` where nothing but the standard library and `allowed` can be imported."""
    lines = NO_IMPORTS_BUT.format(allowed=tuple(allowed)) + code
    return subprocess.run([sys.executable, "-c", lines], capture_output=True, text=True)


def test_the_package_depends_on_numpy_alone():
    needed = importlib.metadata.requires("kindling")
    assert [line for line in needed if "extra ==" not in line] == ["numpy>=1.26"]


def test_operators_run_where_there_is_only_numpy():
    done = run_without_packages("""
import numpy as np, kindling
q = np.ones((1, 2, 1, 8), np.float32)
lse = kindling.softmax_lse(q, q, q[..., 0])
p = kindling.attention_l1_norm(q, q)
kindling.kl_loss_grad(q, q, q[..., 0], p, lse)
kindling.reference.softmax_lse(q, q, q[..., 0])
record = kindling.make_metadata(64, 1, 128, batch_size=1, max_seqlen_q=1, max_seqlen_k=1)
print("ran", record.shape)
""")
    assert done.stdout == "ran (64,)\n", done.stderr


NEEDED = ["typer", "rich", "matplotlib", "safetensors"]


def test_the_extra_is_what_the_command_asks_for():
    needed = importlib.metadata.requires("kindling")
    names = [re.match(r"\w+", line).group() for line in needed if 'extra == "cli"' in line]
    assert names == NEEDED


@pytest.mark.parametrize("missing", NEEDED)
def test_the_command_names_the_extra_that_it_lacks(missing):
    blocked = f"""
import importlib.util, kindling.__main__ as command
find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name: None if name == {missing!r} else find_spec(name)
command.main()
"""
    done = subprocess.run([sys.executable, "-c", blocked], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == (
        f"kindling: expected the packages of the command, got none named {missing}: "
        'pip install "kindling[cli]"\n'
    )


def test_the_package_runs_as_the_command():
    done = subprocess.run(
        [sys.executable, "-m", "kindling", "--version"], capture_output=True, text=True
    )
    assert done.stdout == f"kindling {kindling.__version__}\n", done.stderr
