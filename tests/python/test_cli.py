"""The command `kindling`."""

from __future__ import annotations

import json

import kindling
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
