"""Fixtures of the Python tests."""

from __future__ import annotations

import cases
import kindling
import pytest


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


@pytest.fixture
def inputs():
    """Arrays of a small packed batch."""
    return cases.make_inputs(cases.SMALL)


@pytest.fixture(params=kindling.cpu_info()["isas"])
def isa(request):
    """Run on every instruction set that the machine has."""
    before = kindling.cpu_info()["isa"]
    kindling.set_isa(request.param)
    yield request.param
    kindling.set_isa(before)
