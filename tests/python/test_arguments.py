"""No row argument is ignored without a word.

It changes the result, or is refused, or is on the short list of those that have no effect, as the
docstrings say.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import kindling
import numpy as np
import pytest
from calls import bits
from cases import SMALL, Case, make_inputs
from exchange import to_torch
from kindling import reference

I4 = np.int32
LAYOUTS = ["BSND", "TND"]
NONSENSE = np.array([0, 1, 2, 3, 999], I4)


class Change(NamedTuple):
    argument: str
    value: Any


def base_case(layout_q: str, layout_k: str, mask_mode: int, cmp_ratio: int) -> Case:
    return replace(
        SMALL,
        layout_q=layout_q,
        layout_k=layout_k,
        mask_mode=mask_mode,
        cmp_ratio=cmp_ratio,
        residual=None if cmp_ratio == 1 else (1, 0),
    )


BASES = [base_case(*words) for words in itertools.product(LAYOUTS, LAYOUTS, (0, 3), (1, 4))]


def record(case: Case, **options: Any) -> np.ndarray:
    sizes = {"num_heads_q": 3, "num_heads_k": 1, "head_dim": 128, "num_cores": 3}
    return kindling.make_metadata(**{**sizes, **case.metadata_arguments(), **options})


def changes(case: Case) -> list[Change]:
    """Arguments beside those of the case, each with a value that says something else."""
    other = {"BSND": "TND", "TND": "BSND"}
    return [
        Change("cu_seqlens_q", np.array([0, 4, sum(case.allocated_q())], I4)),
        Change("cu_seqlens_k", np.array([0, 7, sum(case.allocated_k())], I4)),
        Change("cu_seqlens_q", NONSENSE),
        Change("cu_seqlens_k", NONSENSE),
        Change("seqused_q", np.array([4, 2], I4)),
        Change("seqused_k", np.array([7, 3], I4)),
        Change("cmp_residual_k", np.array([0, 0] if case.cmp_ratio == 1 else [2, 3], I4)),
        Change("cmp_residual_k", np.array([case.cmp_ratio, 0], I4)),
        Change("layout_q", other[case.layout_q]),
        Change("layout_k", other[case.layout_k]),
        Change("mask_mode", 3 - case.mask_mode),
        Change("cmp_ratio", 2),
        Change("metadata", record(case)),
        Change("metadata", record(replace(case, num_rows=(6, 4)))),
    ]


def is_said_to_have_no_effect(case: Case, change: Change) -> bool:
    """The list."""
    if change.argument == "metadata":  # a hint who computes which row, if it has as many rows
        return change.value[0] == record(case)[0]
    if change.argument in ("cmp_residual_k", "cmp_ratio") and case.mask_mode == 0:
        return change.argument == "cmp_ratio" or change.value[0] < case.cmp_ratio
    # With one token per key nothing is left over: zeros say what absence says.
    return change.argument == "cmp_residual_k" and case.cmp_ratio == 1 and not change.value.any()


def outcome(call: Callable[..., Any], options: dict[str, Any], change: Change, errors: Any) -> str:
    before = call(**options)
    try:
        after = call(**{**options, change.argument: change.value})
    except errors as error:
        # Of a wrong layout what does not fit it is told.
        assert change.argument.startswith("layout") or change.argument in str(error), error
        return "refused"
    return "same" if after == before else "changed"


def check(call: Callable[..., Any], case: Case, without: tuple[str, ...] = (), errors: Any = None):
    for change in changes(case):
        if change.argument in without:
            continue
        got = outcome(call, case.lengths(), change, errors or (ValueError, TypeError))
        where = f"{case}: {change.argument} {change.value}"
        assert (got == "same") == is_said_to_have_no_effect(case, change), (where, got)
        padded = case.lengths().get(change.argument.replace("cu_seqlens", "layout")) == "BSND"
        if change.argument.startswith("cu_seqlens") and padded:
            assert got == "refused", where
        if change.value is NONSENSE:
            assert got == "refused", where


def doors(module: Any) -> dict[str, Callable[..., Any]]:
    """Of NumPy's functions: results bit by bit, for inputs and row arguments."""
    return {
        "softmax_lse": lambda x, **o: bits(module.softmax_lse(x.q, x.k, x.w, **o)),
        "loss_rows": lambda x, **o: bits(module.softmax_lse(x.q, x.k, x.w, p=x.p, **o)),
        "kl_loss_grad": lambda x, **o: bits(
            module.kl_loss_grad(*x.tensors(), return_loss=True, **o)
        ),
        "attention_teacher": lambda x, **o: bits(module.attention_teacher(x.q, x.k, **o)),
    }


@pytest.mark.parametrize("name", doors(kindling))
@pytest.mark.parametrize("module", [kindling, reference], ids=["kindling", "reference"])
def test_numpy_ignores_nothing(module, name):
    door = doors(module)[name]
    for case in BASES:
        inputs = make_inputs(case)
        check(lambda inputs=inputs, **o: door(inputs, **o), case)


def torch_doors() -> dict[str, tuple[Callable[..., Any], tuple[str, ...]]]:
    import kindling.torch as kt
    import torch

    ops, no_record = torch.ops.kindling, ("metadata",)

    def backward(q, k, w, p, lse, **o):
        return ops.indexer_kl_loss_backward(torch.ones(()), q, k, w, p, lse, **o)

    def teacher(q, k, w, p, lse, **o):
        return ops.attention_teacher(q, k, None, max_seqlen_k=9, **o)

    def loss(q, k, w, p, lse, **o):
        q = q.detach().requires_grad_()
        result = kt.indexer_kl_loss(q, k, w, p, **o)
        return result, *torch.autograd.grad(result, [q])

    def loss_in_forward(q, k, w, p, lse, **o):
        q = q.detach().requires_grad_()
        return kt.indexer_kl_loss(q, k, w, p, lse=lse, grads_in_forward=True, **o)

    return {
        "indexer_kl_loss": (loss, ()),
        "grads_in_forward": (loss_in_forward, ()),
        "attention_teacher": (lambda q, k, *_, **o: kt.attention_teacher(q, k, **o), ()),
        "index_scores": (lambda q, k, w, *_, **o: kt.index_scores(q, k, w, **o), no_record),
        "index_topk": (lambda q, k, w, *_, **o: tuple(kt.index_topk(q, k, w, 9, **o)), no_record),
        "ops.kl_loss_grad_loss": (ops.dense_lightning_indexer_kl_loss_grad_loss, ()),
        "ops.kl_loss_grad": (ops.dense_lightning_indexer_kl_loss_grad, ()),
        "ops.backward": (backward, ()),
        "ops.teacher": (teacher, ()),
        "ops.softmax_lse": (  # whose record is another one
            lambda q, k, w, *_, **o: ops.dense_lightning_indexer_softmax_lse(q, k, w, **o),
            no_record,
        ),
    }


@pytest.mark.parametrize(
    "name",
    [
        "indexer_kl_loss",
        "grads_in_forward",
        "attention_teacher",
        "index_scores",
        "index_topk",
        "ops.kl_loss_grad_loss",
        "ops.kl_loss_grad",
        "ops.backward",
        "ops.teacher",
        "ops.softmax_lse",
    ],
)
def test_torch_ignores_nothing(torch, name):
    door, without = torch_doors()[name]

    def as_torch(value):
        return to_torch(value) if isinstance(value, np.ndarray) else value

    for case in BASES:
        tensors = [to_torch(array) for array in make_inputs(case).tensors()]

        def call(tensors=tensors, **options):
            result = door(*tensors, **{name: as_torch(value) for name, value in options.items()})
            result = result if isinstance(result, tuple) else (result,)
            return bits(tuple(tensor.detach().numpy() for tensor in result))

        check(call, case, without)


@pytest.mark.parametrize(
    "name", ["softmax_lse", "kl_loss_grad", "indexer_kl_loss", "attention_teacher"]
)
def test_jax_ignores_nothing(name):
    jax = pytest.importorskip("jax")
    kj = pytest.importorskip("kindling.jax", exc_type=ImportError)
    calls = {
        "softmax_lse": lambda x, **o: kj.softmax_lse(x.q, x.k, x.w, p=x.p, **o),
        "kl_loss_grad": lambda x, **o: tuple(kj.kl_loss_grad(*x.tensors(), **o))[:4],
        "indexer_kl_loss": lambda x, **o: kj.indexer_kl_loss(x.q, x.k, x.w, x.p, **o),
        "attention_teacher": lambda x, **o: kj.attention_teacher(x.q, x.k, max_seqlen_k=9, **o),
    }
    for case in BASES[:: 1 if name == "softmax_lse" else 5]:
        inputs = make_inputs(case)

        def call(inputs=inputs, **options):
            result = jax.block_until_ready(calls[name](inputs, **options))
            return bits(jax.tree_util.tree_map(np.asarray, result))

        errors = (ValueError, TypeError, jax.errors.JaxRuntimeError)
        check(call, case, ("metadata",), errors)


def test_the_way_out_is_named():
    inputs = make_inputs(replace(SMALL, layout_q="BSND", layout_k="BSND"))
    for side in ("q", "k"):
        message = (
            f'^cu_seqlens_{side}: expected layout_{side} "TND" where it is given, '
            f'got layout_{side} "BSND"$'
        )
        for module in (kindling, reference):
            for options in (
                {f"cu_seqlens_{side}": NONSENSE},
                {"rows": kindling.Rows(**{f"cu_seqlens_{side}": NONSENSE})},
            ):
                with pytest.raises(ValueError, match=message):
                    module.softmax_lse(inputs.q, inputs.k, inputs.w, **options)
        absent = {f"cu_seqlens_{side}": NONSENSE[:0]}
        kindling.softmax_lse(inputs.q, inputs.k, inputs.w, **absent)


def test_packed_tokens_without_a_layout_are_told_of_it():
    """Somebody who forgets the layout hears of it, not of the rank of q."""
    inputs = make_inputs(SMALL)
    sums = {name: value for name, value in inputs.lengths.items() if name.startswith("cu_")}
    with pytest.raises(ValueError, match='^cu_seqlens_q: expected layout_q "TND"'):
        kindling.softmax_lse(inputs.q, inputs.k, inputs.w, **sums)


# The vendor's door.


@pytest.mark.parametrize("layouts", list(itertools.product(LAYOUTS, LAYOUTS))[:3])
def test_the_vendors_operators_ignore_sums_of_a_padded_side(torch, layouts):
    import kindling.torch  # noqa: F401

    vendor, ours = torch.ops.cann_ops_transformer, torch.ops.kindling
    case = replace(base_case(*layouts, 3, 1), head_dim=128)
    lengths = {
        name: to_torch(value) if isinstance(value, np.ndarray) else value
        for name, value in case.lengths().items()
    }
    inputs = [to_torch(array) for array in make_inputs(case).tensors()]
    wide = [torch.randn(*case.row_shape(), 3, 512), torch.randn(*case.key_shape(), 1, 512)]
    wide.append(torch.randn(*case.lse_shape(), 3))
    padded = [side for side, layout in zip("qk", layouts, strict=True) if layout == "BSND"]
    sums = {f"cu_seqlens_{side}": to_torch(NONSENSE) for side in padded}
    for name, tensors, more in (
        ("dense_lightning_indexer_softmax_lse", inputs[:3], {}),
        ("dense_lightning_indexer_kl_loss_grad", inputs, {}),
        ("sparse_flash_mla_softmax_l1_norm", wide, {"max_seqlen_k": 9}),
    ):
        options = {**lengths, **more}
        expected = getattr(ours, name)(*tensors, **options)
        actual = getattr(vendor, name)(*tensors, **options, **sums)
        if isinstance(expected, torch.Tensor):
            expected, actual = (expected,), (actual,)
        assert all(torch.equal(a, b) for a, b in zip(actual, expected, strict=True))
        meta = [tensor.to("meta") for tensor in tensors]
        fake = getattr(vendor, name)(*meta, **options, **sums)
        fake = (fake,) if isinstance(fake, torch.Tensor) else fake
        assert [x.shape for x in fake] == [x.shape for x in expected]
        for tensors_of_ours in (tensors, meta):
            with pytest.raises(ValueError, match=f"^cu_seqlens_{padded[0]}: expected layout_"):
                getattr(ours, name)(*tensors_of_ours, **options, **sums)
