"""The library's calls on Python arrays. Private: the package `kindling` is its only user.

Arguments are positional, in the order of the C++ structs. `shared` is the tuple (cu_seqlens_q,
cu_seqlens_k, seqused_q, seqused_k, cmp_residual_k, layout_q, layout_k, mask_mode, cmp_ratio).
"""

from typing import Any, Literal, TypeAlias

import numpy as np

__version__: str
MAX_THREADS: int
jax_handlers: dict[str, Any]  # capsules for jax.ffi; empty unless built with KINDLING_JAX

Shared: TypeAlias = tuple[Any, Any, Any, Any, Any, Any, Any, Any, Any]

class View:
    """A Python array's memory, held for as long as the view lives."""

    def __init__(
        self, array: Any, name: str, writable: bool = False, bfloat16: bool = False
    ) -> None: ...
    @property
    def kind(self) -> Literal["numpy", "torch", "dlpack"]: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> str: ...

def make_metadata(
    num_heads_q: Any,
    num_heads_k: Any,
    head_dim: Any,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any,
    seqused_q: Any,
    seqused_k: Any,
    cmp_residual_k: Any,
    batch_size: Any,
    max_seqlen_q: Any,
    max_seqlen_k: Any,
    layout_q: Any,
    layout_k: Any,
    mask_mode: Any,
    cmp_ratio: Any,
    num_cores: Any,
    policy: Any,
    soc_version: Any,
    out: Any,
    /,
) -> Any: ...

class Plan:
    @property
    def law(self) -> str: ...
    @property
    def num_rows(self) -> int: ...
    @property
    def num_cores(self) -> int: ...
    @property
    def num_used_cores(self) -> int: ...
    @property
    def pair_cost(self) -> int: ...
    @property
    def row_overhead(self) -> int: ...
    def rows_of_core(self, core: Any) -> Any: ...
    def core_of_row(self, row: Any) -> int: ...
    def cost_of_row(self, row: Any) -> int: ...
    def cost_of_cores(self) -> Any: ...
    def num_rows_of_cores(self) -> Any: ...
    def locate(self, row: Any) -> tuple[int, int, int, int, int]: ...

def make_plan(
    metadata: Any,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any,
    seqused_q: Any,
    seqused_k: Any,
    cmp_residual_k: Any,
    batch_size: Any,
    max_seqlen_q: Any,
    max_seqlen_k: Any,
    layout_q: Any,
    layout_k: Any,
    mask_mode: Any,
    cmp_ratio: Any,
    /,
) -> Plan: ...
def describe_metadata() -> list[tuple[str, str, str, str, str, str]]: ...
def soc_profile(soc_version: Any, /) -> tuple[str, int, int, int]: ...
def softmax_lse(
    q: View,
    k: View,
    w: View,
    p: View | None,
    metadata: View | None,
    shared: Shared,
    num_threads: Any,
    lse: View,
    loss_rows: View | None,
    /,
) -> None: ...
def kl_loss_grad(
    q: View,
    k: View,
    w: View,
    p: View,
    lse: View,
    row_scale: View | None,
    metadata: View | None,
    shared: Shared,
    num_threads: Any,
    dq: View,
    dk: View,
    dw: View,
    softmax_out: View | None,
    loss_rows: View | None,
    /,
) -> None: ...
def attention_l1_norm(
    q: View,
    k: View,
    lse: View | None,
    metadata: View | None,
    shared: Shared,
    softmax_scale: Any,
    num_threads: Any,
    p: View,
    /,
) -> None: ...

reference_softmax_lse = softmax_lse
reference_kl_loss_grad = kl_loss_grad
reference_attention_l1_norm = attention_l1_norm

def describe_softmax_lse(q: View, k: View, w: View, p: View | None, shared: Shared, /) -> None: ...
def describe_kl_loss_grad(
    q: View,
    k: View,
    w: View,
    p: View,
    lse: View,
    row_scale: View | None,
    shared: Shared,
    /,
) -> None: ...
def describe_attention_l1_norm(
    q: View, k: View, lse: View | None, shared: Shared, softmax_scale: Any, /
) -> None: ...
def teacher_stride(
    q: View,
    k: View,
    lse: View | None,
    metadata: View | None,
    shared: Shared,
    softmax_scale: Any,
    max_seqlen_k: Any,
    /,
) -> int: ...
def total_loss(loss_rows: View, /) -> float: ...
def bfloat16_array(bits: np.ndarray, /) -> Any: ...
def set_num_threads(num_threads: Any, /) -> None: ...
def get_num_threads() -> int: ...
def set_isa(isa: Any, /) -> None: ...
def get_isa() -> str: ...
def supported_isas() -> tuple[str, ...]: ...
