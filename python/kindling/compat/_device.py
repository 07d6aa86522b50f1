"""The vendor's modules as far as they make sense on a CPU: torch_npu, torch.npu, the operators."""

from __future__ import annotations

import contextlib
import importlib.machinery
import os
import time
import types
from collections.abc import Iterator
from typing import Any

NAMES = (
    "torch_npu",
    "torch_npu.npu",
    "torch.npu",
    "cann_ops_transformer",
    "cann_ops_transformer.ops",
)


class MissingOnCpuError(AttributeError, NotImplementedError):
    """Something of the vendor's device that Kindling does not stand in for."""


def missing_message(name: str) -> str:
    return (
        f"{name}: expected what kindling.compat has on the CPU, which is the dense indexer's "
        "operators and the plain calls of torch.npu, got a name outside it"
    )


class StandIn(types.ModuleType):
    """A module that names what it lacks."""

    def __init__(self, name: str, doc: str) -> None:
        super().__init__(name, doc)
        self.__path__: list[str] = []  # so that importing a submodule asks the finder
        # Libraries ask importlib.util.find_spec whether the device's package is there.
        self.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise MissingOnCpuError(missing_message(f"{self.__name__}.{name}"))


class Event:
    """A point in time. Work on the CPU is done when a call returns, so this is a clock."""

    def __init__(self, enable_timing: bool = False, **_: Any) -> None:
        self._enable_timing = enable_timing
        self._seconds: float | None = None

    def record(self, stream: Any = None) -> None:
        self._seconds = time.perf_counter()

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass

    def wait(self, stream: Any = None) -> None:
        pass

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds from this event to another."""
        if not (self._enable_timing and end._enable_timing):
            raise ValueError("elapsed_time: expected events with enable_timing=True, got others")
        if self._seconds is None or end._seconds is None:
            raise ValueError("elapsed_time: expected recorded events, got one that is not")
        return 1e3 * (end._seconds - self._seconds)


class Stream:
    """A queue of work. Work on the CPU is done when a call returns, so it is always empty."""

    def __init__(self, device: Any = None, priority: int = 0, **_: Any) -> None:
        check_index(device)

    def synchronize(self) -> None:
        pass

    def query(self) -> bool:
        return True

    def wait_stream(self, stream: Any) -> None:
        pass

    def wait_event(self, event: Any) -> None:
        pass

    def record_event(self, event: Event | None = None) -> Event:
        event = Event() if event is None else event
        event.record(self)
        return event


def check_index(device: Any) -> None:
    """There is one device, npu:0."""
    index = device
    if isinstance(device, str):
        head, _, tail = device.partition(":")
        index = tail or 0
        if head not in ("npu", "cpu") or not str(index).isdigit():
            raise ValueError(f'device: expected "npu" or "npu:0", got "{device}"')
    elif device is not None and not isinstance(device, int):
        if not hasattr(device, "type"):
            raise TypeError(f"device: expected a device, got {type(device).__name__}")
        index = device.index
    if index is not None and int(index) != 0:
        raise ValueError(f"device: expected npu:0, the only one on the CPU, got index {index}")


def _set_device(device: Any) -> None:
    check_index(device)


def _synchronize(device: Any = None) -> None:
    check_index(device)


@contextlib.contextmanager
def _stream(stream: Any) -> Iterator[None]:
    yield


@contextlib.contextmanager
def _device(device: Any) -> Iterator[None]:
    check_index(device)
    yield


def _mem_get_info(device: Any = None) -> tuple[int, int]:
    """Free and total bytes of host memory."""
    check_index(device)
    page = os.sysconf("SC_PAGE_SIZE")
    return page * os.sysconf("SC_AVPHYS_PAGES"), page * os.sysconf("SC_PHYS_PAGES")


def make_npu(torch: Any) -> StandIn:
    """torch.npu, which is torch_npu.npu too."""
    npu = StandIn("torch.npu", "The vendor's device, stood in for by the CPU.")
    default_stream = Stream()
    functions = {
        "_is_in_bad_fork": lambda: False,  # torch.manual_seed asks
        "Event": Event,
        "Stream": Stream,
        "current_device": lambda: 0,
        "current_stream": lambda device=None: default_stream,
        "default_stream": lambda device=None: default_stream,
        "device": _device,
        "device_count": lambda: 1,
        "empty_cache": lambda: None,
        "get_device_name": lambda device=None: "Kindling on the CPU",
        "get_rng_state": lambda device=None: torch.get_rng_state(),
        "init": lambda: None,
        "is_available": lambda: True,
        "is_bf16_supported": lambda: True,
        "is_initialized": lambda: True,
        "manual_seed": torch.default_generator.manual_seed,
        "manual_seed_all": torch.default_generator.manual_seed,
        "mem_get_info": _mem_get_info,
        "set_device": _set_device,
        "set_rng_state": lambda state, device=None: torch.set_rng_state(state),
        "stream": _stream,
        "synchronize": _synchronize,
    }
    for name, function in functions.items():
        setattr(npu, name, function)
    return npu


def make_modules(torch: Any, operators: dict[str, Any]) -> dict[str, StandIn]:
    """What goes into sys.modules. `operators` are the functions of cann_ops_transformer.ops."""
    npu = make_npu(torch)
    torch_npu = StandIn("torch_npu", "The vendor's PyTorch adapter, stood in for by the CPU.")
    torch_npu.npu = npu
    torch_npu.__version__ = torch.__version__  # the adapter's follows torch's
    package = StandIn("cann_ops_transformer", "The vendor's operators, computed by Kindling.")
    package.ops = StandIn("cann_ops_transformer.ops", package.__doc__ or "")
    for name, function in operators.items():
        setattr(package.ops, name, function)
    return dict(zip(NAMES, (torch_npu, npu, npu, package, package.ops), strict=True))
