"""Kindling for PyTorch: operators, a differentiable loss, a module. Importing it imports torch.

===========================================  =====================================================
``torch.ops.kindling.*``                     the operators, for torch.compile and torch.export too
``torch.ops.cann_ops_transformer.*``         six of them under the vendor's name
:func:`~kindling.torch.indexer_kl_loss`      the loss, differentiable in q, k and w
:func:`~kindling.torch.attention_teacher`    main attention to the teacher p
:class:`~kindling.torch.LightningIndexer`    the published indexer as a module
:func:`~kindling.torch.index_scores`,
:func:`~kindling.torch.index_topk`           logits and best keys, by tiles
:mod:`kindling.torch.reference`              the loss in double, for gradcheck
===========================================  =====================================================

All run on the CPU, without copies; loss and gradients are bitwise the same for any number of
threads. See docs/torch.md.
"""

from torch.utils import _pytree as pytree

from kindling._rows import Rows
from kindling.torch import reference
from kindling.torch._loss import attention_l1_norm, attention_teacher, indexer_kl_loss
from kindling.torch._module import IndexerInputs, LightningIndexer, Rope
from kindling.torch._ops import register_vendor_operators
from kindling.torch._scores import TopK, index_scores, index_topk

pytree.register_pytree_node(
    Rows,
    Rows.tree_flatten,
    lambda tensors, attributes: Rows.tree_unflatten(attributes, tensors),
    serialized_type_name="kindling.Rows",
)

__all__ = [
    "IndexerInputs",
    "LightningIndexer",
    "Rope",
    "TopK",
    "attention_l1_norm",
    "attention_teacher",
    "index_scores",
    "index_topk",
    "indexer_kl_loss",
    "reference",
    "register_vendor_operators",
]
