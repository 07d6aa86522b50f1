"""Puts the stand-ins where scripts look for them, and takes them away again."""

from __future__ import annotations

import functools
import importlib.abc
import importlib.util
import sys
from collections.abc import Callable, Sequence
from typing import Any

from kindling.compat._device import NAMES, check_index, make_modules, missing_message

_undo: list[Callable[[], None]] = []
_modes: list[Any] = []  # the torch function mode in force, if any


def is_installed() -> bool:
    """Whether :func:`install` is in force."""
    return bool(_undo)


def install() -> None:
    """Let scripts for the vendor's device run here. A second call changes nothing.

    Raises
    ------
    RuntimeError
        Where the vendor's own package is installed: its device is not to be shadowed.
    """
    if is_installed():
        return
    for name in ("torch_npu", "cann_ops_transformer"):
        if name in sys.modules or importlib.util.find_spec(name) is not None:
            raise RuntimeError(f"install: expected no {name} in this environment, got one")
    import torch

    from kindling.torch._ops import VENDOR, VENDOR_OPERATORS, register_vendor_operators

    register_vendor_operators()
    operators = {name: getattr(getattr(torch.ops, VENDOR), name) for name in VENDOR_OPERATORS}
    modules = make_modules(torch, operators)
    _name_the_device(torch)
    try:
        _patch(torch, modules)
    except BaseException:
        uninstall()
        raise


def uninstall() -> None:
    """Take everything back, except that the device type keeps its name in this process.

    Raises
    ------
    RuntimeError
        In another thread than that of :func:`install`, and within a ``with`` block of a torch
        function mode, such as ``with torch.device(...)``, that was entered after it. Nothing is
        taken back then.
    """
    if _modes:
        from torch.overrides import _get_current_function_mode

        if _get_current_function_mode() is not _modes[-1]:
            raise RuntimeError(
                "uninstall: expected the thread of install, and no torch function mode entered "
                "since, got another"
            )
    while _undo:
        _undo.pop()()


def _name_the_device(torch: Any) -> None:
    """Make "npu" a device type that torch.device accepts; once in a process."""
    if torch._C._get_privateuse1_backend_name() == "npu":
        return
    torch.utils.rename_privateuse1_backend("npu")
    # A device type with a name counts as an accelerator, which torch.compile, checkpoints and data
    # loaders would then ask for streams and pinned memory. There is none behind it.
    accelerator = torch.accelerator
    current, is_available = accelerator.current_accelerator, accelerator.is_available

    @functools.wraps(current)
    def current_accelerator(check_available: bool = False) -> Any:
        found = current(False)
        if found is None or found.type == "npu":
            return None
        return current(check_available)

    accelerator.current_accelerator = current_accelerator
    accelerator.is_available = functools.wraps(is_available)(
        lambda: current_accelerator() is not None and is_available()
    )


def _patch(torch: Any, modules: dict[str, Any]) -> None:
    for name, module in modules.items():
        sys.modules[name] = module
        _undo.append(functools.partial(sys.modules.pop, name, None))
    _set(torch, "npu", modules["torch.npu"])
    finder = _Finder()
    sys.meta_path.insert(0, finder)
    _undo.append(lambda: sys.meta_path.remove(finder))

    _set(torch.Tensor, "npu", _to_device)
    _set(torch.Tensor, "is_npu", property(lambda tensor: True))
    _set(torch.Tensor, "pin_memory", _to_device)
    _set(torch.nn.Module, "npu", _to_device)
    from torch.utils._device import DeviceContext  # of torch.device(...) and set_default_device

    for owner in (torch.autocast, torch.amp.GradScaler, DeviceContext):
        _set(owner, "__init__", _with_cpu_type(owner.__init__))
    _set(torch, "load", _with_cpu_map_location(torch.load))

    mode = _device_mode(torch)
    # PyTorch calls what a mode handles with the mode off, a backward pass and its hooks included.
    if hasattr(torch.autograd, "_engine_run_backward"):
        run_backward = torch.autograd._engine_run_backward

        @functools.wraps(run_backward)
        def run_backward_with_mode(*args: Any, **kwargs: Any) -> Any:
            with _device_mode(torch):
                return run_backward(*args, **kwargs)

        _set(torch.autograd, "_engine_run_backward", run_backward_with_mode)
    mode.__enter__()
    _modes.append(mode)
    _undo.append(lambda: _modes.pop().__exit__(None, None, None))


def _set(owner: Any, name: str, value: Any) -> None:
    """setattr that uninstall takes back."""
    absent = object()
    before = vars(owner).get(name, absent)
    setattr(owner, name, value)
    if before is absent:
        _undo.append(lambda: delattr(owner, name))
    else:
        _undo.append(lambda: setattr(owner, name, before))


def _to_device(self: Any, device: Any = None, non_blocking: bool = False, **_: Any) -> Any:
    """Tensor.npu, Module.npu, Tensor.pin_memory: everything is there already."""
    check_index(device)
    return self


def _is_npu(value: Any, torch: Any) -> bool:
    """Whether a device argument means the vendor's: by name, or by number as the accelerator's."""
    if isinstance(value, torch.device):
        return value.type == "npu"
    if isinstance(value, str):
        return value == "npu" or value.startswith("npu:")
    return isinstance(value, int) and not isinstance(value, bool)


def _device_mode(torch: Any) -> Any:
    """A torch function mode in which tensors meant for the device are made on the CPU."""
    from torch.overrides import TorchFunctionMode

    takes_device = {torch.Tensor.to}  # as a positional argument

    class OnTheCpu(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
        ) -> Any:
            kwargs = kwargs or {}
            if _is_npu(kwargs.get("device"), torch):
                check_index(kwargs["device"])
                kwargs = {**kwargs, "device": "cpu"}
            if func in takes_device and len(args) > 1 and _is_npu(args[1], torch):
                check_index(args[1])
                args = (args[0], "cpu", *args[2:])
            return func(*args, **kwargs)

    return OnTheCpu()


def _with_cpu_type(init: Callable[..., None]) -> Callable[..., None]:
    """A constructor that takes a device or its type first, with the CPU for the vendor's."""
    import torch

    @functools.wraps(init)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> None:
        for name in ("device_type", "device"):
            if _is_npu(kwargs.get(name), torch):
                kwargs[name] = "cpu"
        if args and _is_npu(args[0], torch):
            args = ("cpu", *args[1:])
        init(self, *args, **kwargs)

    return wrapped


def _with_cpu_map_location(load: Callable[..., Any]) -> Callable[..., Any]:
    import torch

    @functools.wraps(load)
    def wrapped(f: Any, map_location: Any = None, **kwargs: Any) -> Any:
        # A table says where each device's tensors go: on the vendor's, wherever they were saved.
        if map_location is None or isinstance(map_location, dict) or _is_npu(map_location, torch):
            map_location = "cpu"
        return load(f, map_location=map_location, **kwargs)

    return wrapped


class _Finder(importlib.abc.MetaPathFinder):
    """Says by name which of the vendor's modules or functions is not there."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> None:
        is_vendors = fullname.startswith(("torch_npu.", "torch.npu.", "cann_ops_transformer."))
        if is_vendors and fullname not in NAMES:
            raise ImportError(missing_message(fullname), name=fullname.partition(".")[0])
        return None
