"""Runs scripts that were written for the vendor's device, on the CPU.

``python -m kindling.compat script.py`` or, at the top of a program, ``kindling.compat.install()``.
After that ``import torch_npu``, ``from cann_ops_transformer.ops import ...``, ``.npu()``,
``torch.device("npu:0")`` and ``torch.npu.synchronize()`` mean the CPU and Kindling's operators.
Nothing is changed before it is asked for; what is not there says so by name. See docs/torch.md.
"""

from kindling.compat._device import MissingOnCpuError
from kindling.compat._install import install, is_installed, uninstall

__all__ = ["MissingOnCpuError", "install", "is_installed", "uninstall"]
