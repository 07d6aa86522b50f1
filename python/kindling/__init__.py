"""KL distillation of a lightning indexer on the CPU: plan, teacher, student, loss and gradients.

=======================================  =========================================================
:func:`~kindling.make_metadata`          lengths to a plan, 64 integers
:class:`~kindling.Plan`                  such a plan read back: rows, cores, costs
:func:`~kindling.attention_teacher`      main attention to the teacher p
:class:`~kindling.Rows`                  which rows see which keys, for all of them
:func:`~kindling.softmax_lse`            indexer q, k, w to its log-sum-exp, and the loss given p
:func:`~kindling.kl_loss_grad`           q, k, w, p, lse to gradients, softmax and loss
:mod:`kindling.reference`                the same calls in double precision, slow by design
=======================================  =========================================================

Arrays may be NumPy arrays (bfloat16 is that of ``ml_dtypes``), torch tensors on the CPU, or
anything else that has DLPack; dense or strided, read-only or requiring grad, they are never copied.
Results are of the kind of q.

Environment, read once at import: ``KINDLING_NUM_THREADS`` is what ``set_num_threads`` takes,
``KINDLING_ISA`` what ``set_isa`` takes.
"""

from kindling import reference
from kindling._core import __version__
from kindling._operators import (
    attention_l1_norm,
    attention_teacher,
    kl_loss_grad,
    make_metadata,
    softmax_lse,
)
from kindling._plan import (
    Plan,
    RowCoordinates,
    SocProfile,
    describe_metadata,
    soc_profile,
    validate_metadata,
)
from kindling._rows import Rows
from kindling._run import KLLossGrad
from kindling._runtime import (
    CpuInfo,
    apply_environment,
    cpu_info,
    get_num_threads,
    set_isa,
    set_num_threads,
)
from kindling._schema import ArgumentDescription, describe_operator

__all__ = [
    "ArgumentDescription",
    "CpuInfo",
    "KLLossGrad",
    "Plan",
    "RowCoordinates",
    "Rows",
    "SocProfile",
    "__version__",
    "attention_l1_norm",
    "attention_teacher",
    "cpu_info",
    "describe_metadata",
    "describe_operator",
    "get_num_threads",
    "kl_loss_grad",
    "make_metadata",
    "reference",
    "set_isa",
    "set_num_threads",
    "soc_profile",
    "softmax_lse",
    "validate_metadata",
]

apply_environment()
del apply_environment
