"""Kindling for JAX: the operators and a differentiable loss, by jax.ffi. Importing it imports jax.

==========================================  ======================================================
:func:`~kindling.jax.indexer_kl_loss`       the loss, differentiable in q, k and w
:func:`~kindling.jax.attention_teacher`     main attention to the teacher p
:func:`~kindling.jax.softmax_lse`           indexer q, k, w to its log-sum-exp, and the loss given p
:func:`~kindling.jax.kl_loss_grad`          q, k, w, p, lse to gradients, softmax and loss
==========================================  ======================================================

All run on the CPU, eagerly and under ``jax.jit``, ``jax.grad`` and ``jax.vmap``; results are
bitwise those of :mod:`kindling`. Needs a package that was built with ``KINDLING_JAX=1``. See
docs/jax.md.
"""

from kindling._run import KLLossGrad
from kindling.jax._loss import attention_l1_norm, attention_teacher, indexer_kl_loss
from kindling.jax._operators import kl_loss_grad, softmax_lse

__all__ = [
    "KLLossGrad",
    "attention_l1_norm",
    "attention_teacher",
    "indexer_kl_loss",
    "kl_loss_grad",
    "softmax_lse",
]
