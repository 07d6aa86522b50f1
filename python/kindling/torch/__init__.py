"""Kindling for PyTorch: operators, a differentiable loss, a module. Importing it imports torch.

==========================================  ======================================================
``torch.ops.kindling.*``                    the operators, for torch.compile and torch.export too
``torch.ops.cann_ops_transformer.*``        six of them under the vendor's name
:func:`~kindling.torch.indexer_kl_loss`     the loss, differentiable in q, k and w
:func:`~kindling.torch.attention_teacher`   main attention to the teacher p
==========================================  ======================================================

All run on the CPU, without copies, and are bitwise the same for any number of threads. See
docs/torch.md.
"""

from kindling.torch._loss import attention_teacher, indexer_kl_loss
from kindling.torch._ops import register_vendor_operators

__all__ = ["attention_teacher", "indexer_kl_loss", "register_vendor_operators"]
