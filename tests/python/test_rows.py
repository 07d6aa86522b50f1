"""kindling.Rows and causal: one value for which rows see which keys, at every door."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace

import kindling
import numpy as np
import pytest
from calls import METADATA, bits
from cases import Case, make_inputs
from kindling import Rows, reference

CASE = Case((5, 3), (9, 4), num_heads=3, head_dim=8)
INPUTS = make_inputs(CASE)
ROWS = Rows(**INPUTS.lengths)


def test_a_value_by_name():
    cu = INPUTS.lengths["cu_seqlens_q"]
    assert ROWS.cu_seqlens_q is cu is ROWS["cu_seqlens_q"] and ROWS.mask_mode == 3
    assert ROWS.metadata is None and ROWS.cmp_ratio == 1
    given = {n: v for n, v in INPUTS.lengths.items() if v is not None and n != "cmp_ratio"}
    assert dict(ROWS) == given
    assert len(ROWS) == len(list(ROWS)) == len(dict(ROWS)) and "cmp_ratio" not in list(ROWS)
    assert (
        Rows().mask_mode == 0
        and len(Rows()) == 0
        and repr(Rows(cmp_ratio=4)) == "Rows(cmp_ratio=4)"
    )
    assert ROWS == ROWS and ROWS != Rows(**ROWS) and hash(ROWS) == hash(ROWS)
    for again in (copy.copy(ROWS), copy.deepcopy(ROWS), pickle.loads(pickle.dumps(ROWS))):
        assert {n: bits(v) if isinstance(v, np.ndarray) else v for n, v in again.items()} == {
            n: bits(v) if isinstance(v, np.ndarray) else v for n, v in ROWS.items()
        }
    for name in ("mask_mode", "another"):
        with pytest.raises(AttributeError, match=f"^{name}: expected no change"):
            setattr(ROWS, name, 0)
        with pytest.raises(AttributeError, match=f"^{name}: expected no change"):
            delattr(ROWS, name)
    with pytest.raises(AttributeError, match="expected one of cu_seqlens_q, .*, got another"):
        _ = ROWS.another
    with pytest.raises(KeyError):
        _ = ROWS[0]
    with pytest.raises(TypeError):
        Rows(cu)


def all_calls(module):
    """Every operator, as a function of its row arguments."""
    q, k, w, p, lse = INPUTS.tensors()
    return [
        lambda **rows: module.softmax_lse(q, k, w, p=p, **rows),
        lambda **rows: module.kl_loss_grad(q, k, w, p, lse, return_loss=True, **rows),
        lambda **rows: module.attention_teacher(q, k, **rows),
        lambda **rows: module.make_metadata(8, 1, 128, num_cores=2, **rows),
    ]


@pytest.mark.parametrize("module", [kindling, reference], ids=["kindling", "reference"])
@pytest.mark.parametrize("call", range(4))
def test_three_ways_to_say_the_same(module, call):
    is_record = call == 3  # which deals rows by number, whatever they see
    call = all_calls(module)[call]
    expected = bits(call(**INPUTS.lengths))
    assert bits(call(rows=ROWS)) == expected
    assert bits(call(**ROWS)) == expected
    assert bits(call(rows=INPUTS.lengths)) == expected  # any mapping
    packed = {name: value for name, value in INPUTS.lengths.items() if name != "mask_mode"}
    assert bits(call(causal=True, **packed)) == expected
    assert bits(call(causal=True, rows=Rows(**packed))) == expected
    assert bits(call(rows=Rows(causal=True, **packed))) == expected
    full = bits(call(causal=False, **packed))
    assert full == bits(call(**packed)) and (full != expected or is_record)


@pytest.mark.parametrize("module", [kindling, reference], ids=["kindling", "reference"])
@pytest.mark.parametrize("call", range(4))
def test_what_contradicts_is_refused(module, call):
    call = all_calls(module)[call]
    both = "^causal: expected what mask_mode = 3 says, got False"
    for contradiction in (
        {"causal": False, **INPUTS.lengths},
        {"causal": False, "rows": ROWS},
        {"causal": False, "rows": {**INPUTS.lengths}},
    ):
        with pytest.raises(ValueError, match=both):
            call(**contradiction)
    with pytest.raises(ValueError, match=both):
        Rows(mask_mode=3, causal=False)
    with pytest.raises(ValueError, match="^causal: expected what mask_mode = 1 says, got True"):
        call(mask_mode=1, causal=True)
    for wrong in (1, 0, "yes", np.True_):
        with pytest.raises(TypeError, match="^causal: expected a bool, got "):
            call(causal=wrong, **{n: v for n, v in INPUTS.lengths.items() if n != "mask_mode"})
    for name, value in ROWS.items():
        with pytest.raises(ValueError, match=f"^{name}: expected none beside rows"):
            call(rows=ROWS, **{name: value})
    with pytest.raises(TypeError, match="^rows: expected a kindling.Rows, got int"):
        call(rows=3)
    with pytest.raises(ValueError, match="^rows: expected arguments of kindling.Rows, got .'mask'"):
        call(rows={"mask": 3})


def test_the_record_travels_with_the_rows():
    record = kindling.make_metadata(8, 1, 128, num_cores=2, rows=ROWS)
    with_record = Rows(**ROWS, metadata=record)
    q, k, w, *_ = INPUTS.tensors()
    expected = kindling.softmax_lse(q, k, w, rows=ROWS)
    assert bits(kindling.softmax_lse(q, k, w, rows=with_record)) == bits(expected)
    with pytest.raises(ValueError, match=r"^metadata\[0\]: expected"):
        kindling.softmax_lse(q, k, w, rows=Rows(**ROWS, metadata=np.zeros(64, "i4")))
    with pytest.raises(ValueError, match="^metadata: expected rows without a record"):
        kindling.make_metadata(8, 1, 128, rows=with_record)
    assert kindling.Plan(record, rows=ROWS).num_rows == 8
    kindling.validate_metadata(record, rows=ROWS)
    lengths = {n: v for n, v in METADATA.items() if not n.startswith(("num", "head"))}
    assert kindling.make_metadata(64, 1, 128, num_cores=2, rows=lengths).tolist() == (
        kindling.make_metadata(**METADATA).tolist()
    )


def test_old_names_stay():
    assert kindling.attention_l1_norm is kindling.attention_teacher
    assert reference.attention_l1_norm is reference.attention_teacher


# torch.


@pytest.fixture
def kt():
    pytest.importorskip("torch")
    return pytest.importorskip("kindling.torch")


def torch_inputs():
    import torch_cases as tc

    return tc.tensors(replace(CASE, spare_q=0))


def test_torch_takes_rows(kt):
    import torch

    (q, k, w, p, _), lengths = torch_inputs()
    rows = Rows(**lengths)
    packed = {name: value for name, value in lengths.items() if name != "mask_mode"}
    for call in (
        lambda **r: kt.indexer_kl_loss(q, k, w, p, **r),
        lambda **r: kt.attention_teacher(q, k, **r),
        lambda **r: kt.index_scores(q, k, w, **r),
        lambda **r: kt.index_topk(q, k, w, 2, **r).indices,
    ):
        expected = call(**lengths)
        for same in (call(rows=rows), call(**rows), call(causal=True, **packed)):
            assert torch.equal(same, expected)
        with pytest.raises(ValueError, match="^causal: expected what mask_mode = 3 says"):
            call(rows=rows, causal=False)
    assert kt.attention_l1_norm is kt.attention_teacher


def test_torch_compiles_with_rows(kt):
    import torch

    (q, k, w, p, _), lengths = torch_inputs()

    def loss(q, k, w, p, rows):
        return kt.indexer_kl_loss(q, k, w, p, rows=rows, causal=True)

    torch._dynamo.reset()
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    q.requires_grad_()
    rows = Rows(**lengths)
    (expected,) = torch.autograd.grad(loss(q, k, w, p, rows), q)
    (actual,) = torch.autograd.grad(compiled(q, k, w, p, rows), q)
    assert torch.equal(actual, expected)


def test_rows_are_a_pytree_of_torch(kt):
    import torch
    from torch.utils import _pytree as pytree

    _, lengths = torch_inputs()
    rows = Rows(**lengths)
    leaves, spec = pytree.tree_flatten(rows)
    given = [value for value in lengths.values() if isinstance(value, torch.Tensor)]
    assert [x for x in leaves if x is not None] == given
    again = pytree.tree_unflatten([None if x is None else x + 0 for x in leaves], spec)
    assert isinstance(again, Rows) and again.mask_mode == 3 and again.layout_q == "TND"


def test_the_module_takes_causal_and_rows(kt):
    import torch

    torch.manual_seed(0)
    indexer = kt.LightningIndexer(hidden=16, num_heads=2, head_dim=8)
    cu = torch.tensor([0, 4, 9], dtype=torch.int32)
    rows = Rows(cu_seqlens_q=cu, cu_seqlens_k=cu, layout_q="TND", layout_k="TND", causal=True)
    hidden, p = torch.randn(9, 16), torch.full((9, 1, 5), 0.2)
    for call in (
        lambda **o: indexer.loss(hidden, p, **o),
        lambda **o: indexer.scores(hidden, **o),
        lambda **o: indexer.topk(hidden, 2, **o).values,
    ):
        causal, full = call(cu_seqlens=cu), call(cu_seqlens=cu, mask_mode=0)
        assert not torch.equal(causal, full)
        assert torch.equal(call(rows=rows), causal)
        assert torch.equal(call(cu_seqlens=cu, causal=True), causal)
        assert torch.equal(call(cu_seqlens=cu, causal=False), full)
        everything = Rows(**{**rows, "mask_mode": 0})
        assert torch.equal(call(rows=everything), full)
        with pytest.raises(ValueError, match="^causal: expected what mask_mode = 0 says, got True"):
            call(cu_seqlens=cu, mask_mode=0, causal=True)
        with pytest.raises(ValueError, match="^cu_seqlens_q: expected none beside rows"):
            call(cu_seqlens=cu, rows=rows)


# JAX.


def test_jax_takes_rows_as_a_pytree():
    jax = pytest.importorskip("jax")
    kj = pytest.importorskip("kindling.jax", exc_type=ImportError)
    q, k, w, p, _ = INPUTS.tensors()
    rows = Rows(
        **{n: jax.numpy.asarray(v) if isinstance(v, np.ndarray) else v for n, v in ROWS.items()}
    )
    expected = kj.indexer_kl_loss(q, k, w, p, **INPUTS.lengths)
    loss = jax.jit(lambda rows, q: kj.indexer_kl_loss(q, k, w, p, rows=rows))
    assert loss(rows, q) == kj.indexer_kl_loss(q, k, w, p, **rows) == expected
    traces = loss._cache_size()
    doubled = jax.tree_util.tree_map(lambda x: x + 0, rows)
    assert isinstance(doubled, Rows) and loss(doubled, q) == expected
    assert loss._cache_size() == traces
    grad = jax.grad(lambda q, rows: kj.indexer_kl_loss(q, k, w, p, rows=rows))(q, rows)
    assert grad.shape == q.shape
    lse = kj.softmax_lse(q, k, w, rows=rows)
    assert bits(np.asarray(lse)) == bits(kindling.softmax_lse(q, k, w, rows=ROWS))
    with pytest.raises(ValueError, match="^causal: expected what mask_mode = 3 says, got False"):
        kj.softmax_lse(q, k, w, rows=rows, causal=False)
    with pytest.raises(ValueError, match="^metadata: expected rows without a record"):
        kj.softmax_lse(q, k, w, rows=Rows(metadata=np.zeros(64, "i4")))
    assert kj.attention_l1_norm is kj.attention_teacher
