"""Threads, instruction sets, and the environment variables that choose them."""

from __future__ import annotations

import os
import platform
from typing import TypedDict

from kindling import _core


class CpuInfo(TypedDict):
    """What :func:`cpu_info` returns."""

    processor: str
    isas: list[str]
    isa: str
    num_processors: int
    num_threads: int


def set_num_threads(num_threads: int) -> None:
    """Set how many threads an operator uses by default, the caller's included.

    Parameters
    ----------
    num_threads : int
        1 to 1024. Results do not depend on it.

    Raises
    ------
    ValueError
        Outside that range.
    """
    _core.set_num_threads(num_threads)


def get_num_threads() -> int:
    """How many threads an operator uses by default.

    Returns
    -------
    int
        What :func:`set_num_threads` or ``KINDLING_NUM_THREADS`` set, else the processors that this
        process may use.
    """
    return _core.get_num_threads()


def set_isa(isa: str) -> None:
    """Make later calls of this process use one instruction set.

    Parameters
    ----------
    isa : str
        One of ``cpu_info()["isas"]``. Results are reproducible for one instruction set; between
        two they differ by rounding.

    Raises
    ------
    ValueError
        For a name that is unknown, or that this processor cannot run.
    """
    _core.set_isa(isa)


def cpu_info() -> CpuInfo:
    """What this machine has, and what the operators use of it.

    Returns
    -------
    dict
        ``processor`` (its name), ``isas`` (instruction sets that it can run, best last), ``isa``
        (the one in use), ``num_processors`` (those that this process may use) and ``num_threads``
        (the default of the operators).

    Examples
    --------
    >>> import kindling
    >>> info = kindling.cpu_info()
    >>> info["isa"] in info["isas"]
    True
    """
    return {
        "processor": _processor_name(),
        "isas": list(_core.supported_isas()),
        "isa": _core.get_isa(),
        "num_processors": _num_processors(),
        "num_threads": _core.get_num_threads(),
    }


def apply_environment() -> None:
    """Obey ``KINDLING_NUM_THREADS`` and ``KINDLING_ISA``; empty values count as unset.

    Raises
    ------
    ValueError
        For a value that cannot be obeyed. Computing on with another one would hide that.
    """
    num_threads = os.environ.get("KINDLING_NUM_THREADS", "").strip()
    if num_threads:
        try:
            _core.set_num_threads(int(num_threads))
        except ValueError:
            raise ValueError(
                f"KINDLING_NUM_THREADS: expected an integer in [1, {_core.MAX_THREADS}], "
                f"got {num_threads!r}"
            ) from None
    isa = os.environ.get("KINDLING_ISA", "").strip()
    if isa:
        supported = _core.supported_isas()
        if isa not in supported:
            raise ValueError(
                f"KINDLING_ISA: expected one that this processor has "
                f"({', '.join(map(repr, supported))}), got {isa!r}"
            )
        _core.set_isa(isa)


def _num_processors() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _processor_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
            for line in lines:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
