"""The fast operators against the definition, the reference and the spec's literals."""

from __future__ import annotations

from dataclasses import replace

import cases
import definition
import kindling
import numpy as np
import pytest
from calls import bits, grads, main_attention
from cases import Case, Inputs, make_inputs
from definition import assert_within
from kindling import reference

# The definition: tests/python/definition.py in NumPy, kindling.reference in C++.


@pytest.mark.parametrize("case", cases.sweep(40, "reference"), ids=str)
def test_reference_is_the_definition(case):
    inputs = make_inputs(case)
    lse, loss_rows = reference.softmax_lse(
        inputs.q, inputs.k, inputs.w, p=inputs.p, **inputs.lengths
    )
    expected = definition.softmax_lse(case, inputs).value
    seen = np.isfinite(expected)
    np.testing.assert_array_equal(lse[~seen], -np.inf)
    np.testing.assert_allclose(lse[seen], expected[seen], rtol=1e-12, atol=1e-12)
    result = reference.kl_loss_grad(*inputs.tensors(), return_loss=True, **inputs.lengths)
    for name, expected in definition.kl_loss_grad(case, inputs).items():
        actual = getattr(result, name)
        np.testing.assert_allclose(actual, expected.value, rtol=1e-10, atol=1e-12, err_msg=name)
    # The lse of the inputs is rounded to float32, that of the loss rows here is not.
    np.testing.assert_allclose(loss_rows, result.loss_rows, rtol=1e-5, atol=1e-5)


LARGE = [
    Case((6,), (20,), num_heads=300, head_dim=9),
    Case((3,), (7,), num_heads=2, head_dim=1100, dtype="bfloat16"),
    Case((2, 70), (5000, 700), num_heads=2, head_dim=4, spare_k=3),
]


@pytest.mark.parametrize("case", cases.sweep(70, "fast") + LARGE, ids=str)
def test_fast_is_the_reference(case, isa):
    inputs = make_inputs(case)
    lse, loss_rows = kindling.softmax_lse(
        inputs.q, inputs.k, inputs.w, p=inputs.p, **inputs.lengths
    )
    assert lse.dtype == loss_rows.dtype == np.float32
    assert_within(lse, definition.softmax_lse(case, inputs), "lse", case)
    expected = definition.kl_loss_grad(case, inputs)
    result = grads(inputs)
    for name, actual in result._asdict().items():
        assert_within(actual, expected[name], name, case)
    assert result.dq.dtype == result.dk.dtype == cases.DTYPES[case.dtype]
    assert result.dw.dtype == result.softmax_out.dtype == result.loss_rows.dtype == np.float32
    assert_within(loss_rows, _with_own_lse(case, inputs, expected["loss_rows"]), "loss", case)


def _with_own_lse(case: Case, inputs: Inputs, loss_rows: definition.Bounded):
    """Loss rows of the pass that computes lse itself: off by P times the error of lse, too."""
    lse = definition.softmax_lse(case, inputs)
    value, bound = loss_rows.value.copy(), loss_rows.bound.copy()
    for batch in range(case.num_batches):
        slot = case.lse_slot(batch)
        seen = np.arange(inputs.p.shape[-1]) < case.visible(batch)[:, None]
        mass = np.where(seen, inputs.p[case.row_slot(batch)][:, 0], 0).sum(-1, dtype=np.float64)
        true = np.where(np.isfinite(lse.value[slot]), lse.value[slot], 0)
        value[slot] += mass * (true - inputs.lse[slot].astype(np.float64))
        bound[slot] += mass * lse.bound[slot]
    return definition.Bounded(value, bound)


@pytest.mark.parametrize("case", cases.sweep(24, "scaled"), ids=str)
def test_row_scale_and_unrounded_gradients(case, isa):
    inputs = make_inputs(case)
    row_scale = np.random.default_rng(1).standard_normal(inputs.lse.shape).astype("f4")
    row_scale[..., ::5] = 0
    expected = definition.kl_loss_grad(case, inputs, row_scale=row_scale, grad_dtype="float32")
    result = grads(inputs, row_scale=row_scale, grad_dtype="float32")
    assert result.dq.dtype == result.dk.dtype == np.float32
    for name, actual in result._asdict().items():
        assert_within(actual, expected[name], name, case)
    in_double = reference.kl_loss_grad(
        *inputs.tensors(), row_scale=row_scale, return_loss=True, **inputs.lengths
    )
    for name, actual in in_double._asdict().items():
        np.testing.assert_allclose(actual, expected[name].value, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("case", cases.sweep(40, "teacher"), ids=str)
@pytest.mark.parametrize("given", [False, True], ids=["own lse", "given lse"])
def test_teacher_is_the_reference(case, given, isa):
    num_heads, num_key_heads, width = [(1, 1, 7), (8, 8, 32), (8, 2, 48), (6, 1, 100)][
        sum(case.num_rows) % 4
    ]
    q, k, lse = main_attention(case, num_heads, num_key_heads, width)
    options = {"softmax_scale": 0.8, **case.lengths()}
    if case.layout_q != case.layout_k or case.layout_q == "TND":
        options["max_seqlen_k"] = case.teacher_stride()
    if not given:
        lse = None
    p = kindling.attention_l1_norm(q, k, lse, **options)
    stride = case.teacher_stride() or max(case.allocated_k())
    expected = definition.attention_l1_norm(case, q, k, lse, 0.8, stride)
    assert p.dtype == np.float32
    assert_within(p, expected, "p", case)
    in_double = reference.attention_l1_norm(q, k, lse, **options)
    np.testing.assert_allclose(in_double, expected.value, rtol=1e-11, atol=1e-13)
    if not given:
        for batch in range(case.num_batches):
            sums = in_double[case.row_slot(batch)].sum((-2, -1))
            np.testing.assert_allclose(sums, np.sign(case.visible(batch)), rtol=1e-12)


def test_teacher_stride():
    packed = Case((5, 3), (9, 4), spare_k=2)
    q, k, _ = main_attention(packed, 2, 1, 8)
    p = kindling.attention_l1_norm(q, k, **packed.lengths())
    assert p.shape == (8, 1, 11)  # the longest allocated key length
    p = kindling.attention_l1_norm(q, k, max_seqlen_k=9, **packed.lengths())
    assert p.shape == (8, 1, 9)
    with pytest.raises(ValueError, match=r"^max_seqlen_k: .*9.*8"):
        kindling.attention_l1_norm(q, k, max_seqlen_k=8, **packed.lengths())
    padded = replace(packed, layout_q="BSND", layout_k="BSND")
    q, k, _ = main_attention(padded, 2, 1, 8)
    p = kindling.attention_l1_norm(q, k, max_seqlen_k=500, **padded.lengths())
    assert p.shape == (2, 5, 1, 11)  # S2


def plain(case: Case, inputs: Inputs) -> dict[str, np.ndarray]:
    """One packed entry in plain float32, with dS rounded to the inputs' dtype: what anybody would
    write with a BLAS."""
    dtype = cases.DTYPES[case.dtype]
    q, k, w = inputs.q.astype("f4"), inputs.k[:, 0].astype("f4"), inputs.w
    seen = np.arange(len(k)) < case.visible(0)[:, None]
    s = (q.reshape(-1, case.head_dim) @ k.T).reshape(len(q), case.num_heads, len(k))
    i = (w[:, None] @ np.maximum(s, 0))[:, 0]
    most = np.where(seen, i, -np.inf).max(-1, keepdims=True)
    lse = most[:, 0] + np.log(np.where(seen, np.exp(i - most), 0).sum(-1))
    y = np.where(seen, np.exp(i - inputs.lse[0][:, None]), 0)
    p = np.where(seen, inputs.p[:, 0], 0)
    d_i = y * p.sum(-1, keepdims=True) - p
    d_s = np.where(s > 0, d_i[:, None] * w[:, :, None], 0).astype(dtype).astype("f4")
    d_k = d_s.reshape(-1, len(k)).T @ q.reshape(-1, case.head_dim)
    log_p = np.where(p > 0, np.log(np.where(p > 0, p, 1)), 0)
    return {
        "lse": lse[None],
        "dq": (d_s @ k).astype(dtype),
        "dk": d_k.astype(dtype)[:, None],
        "dw": (np.maximum(s, 0) @ d_i[:, :, None])[:, :, 0],
        "softmax_out": y[:, None],
        "loss_rows": (p * (log_p - i + inputs.lse[0][:, None])).sum(-1)[None],
    }


@pytest.mark.parametrize("dtype", cases.DTYPES)
def test_errors_are_those_of_a_plain_computation(dtype, isa):
    """Errors of sums average out, so that norms lie far below the bounds that hold elsewhere."""
    case = Case((80,), (200,), num_heads=16, head_dim=128, dtype=dtype)
    inputs = make_inputs(case)
    actual = grads(inputs)._asdict()
    actual["lse"] = kindling.softmax_lse(inputs.q, inputs.k, inputs.w, **inputs.lengths)
    expected = definition.kl_loss_grad(case, inputs)
    expected["lse"] = definition.softmax_lse(case, inputs)
    for name, simple in plain(case, inputs).items():
        error, limit = (
            np.linalg.norm(array.astype("f8") - expected[name].value)
            for array in (actual[name], simple)
        )
        assert error <= 2 * limit, (name, error / limit)


# Literals of the spec.


def runs(*pairs: tuple[int, int]) -> list[int]:
    return [value for value, count in pairs for _ in range(count)]


VISIBLE = {
    (16, 4, 1, 0): runs((0, 12), (1, 1), (2, 1), (3, 1), (4, 1)),
    (32, 8, 4, 0): runs((0, 3), *((n, 4) for n in range(1, 8)), (8, 1)),
    (18, 4, 4, 2): runs((0, 3), (1, 4), (2, 4), (3, 4), (4, 3)),
    (10, 3, 4, 1): runs((1, 4), (2, 4), (3, 2)),
    (13, 4, 4, 2): runs((1, 2), (2, 4), (3, 4), (4, 3)),
    (8, 3, 4, 3): runs((2, 4), (3, 4)),
    (511, 3048, 13, 0): runs((3008, 3), *((n, 13) for n in range(3009, 3048)), (3048, 1)),
}


@pytest.mark.parametrize("uq, uk, ratio, residual", VISIBLE)
def test_visible_keys(uq, uk, ratio, residual):
    expected = VISIBLE[uq, uk, ratio, residual]
    case = Case((uq,), (uk,), cmp_ratio=ratio, residual=(residual,), num_heads=1, head_dim=1)
    # Keys of zeros have logits of zero, so that exp(lse) counts them.
    q, k, w = np.ones((uq, 1, 1), "f4"), np.zeros((uk, 1, 1), "f4"), np.ones((uq, 1), "f4")
    counts = np.exp(kindling.softmax_lse(q, k, w, **case.lengths()).astype("f8"))
    np.testing.assert_array_equal(np.rint(counts[0]), expected)
    np.testing.assert_array_equal(case.visible(0), expected)  # what the other tests go by


@pytest.mark.parametrize("width", [2, 8, 128])
def test_micro_case(width, isa):
    q = np.zeros((1, 1, 1, width), "f4")
    k = np.zeros((1, 2, 1, width), "f4")
    q[..., 0] = 1
    k[0, :, 0, 0] = 1, 2
    w = np.ones((1, 1, 1), "f4")
    lse = kindling.softmax_lse(q, k, w)
    np.testing.assert_allclose(lse, [[[2.3132617]]], rtol=1e-6)
    d = 0.2310586
    for p, d_i, gradient in (
        ([0.5, 0.5], [-d, d], d),
        ([0.25, 0.25], [-d / 2, d / 2], d / 2),
        ([0, 0], [0, 0], 0),
    ):
        p = np.array(p, "f4").reshape(1, 1, 1, 2)
        result = kindling.kl_loss_grad(q, k, w, p, lse)
        np.testing.assert_allclose(result.softmax_out.ravel(), [0.2689414, 0.7310586], rtol=1e-6)
        np.testing.assert_allclose(result.dw, [[[gradient]]], atol=2e-7)
        np.testing.assert_allclose(result.dq[0, 0, 0, 0], gradient, atol=2e-7)
        np.testing.assert_allclose(result.dk[0, :, 0, 0], d_i, atol=2e-7)
        assert not result.dq[..., 1:].any() and not result.dk[..., 1:].any()
        if not p.any():
            assert not (result.dq.any() or result.dk.any() or result.dw.any())


def test_scores_of_zero_pass_no_gradient(isa):
    """S > 0 is strict: a key at right angles to the query moves neither, whatever dI is."""
    q = np.zeros((1, 1, 2, 4), "f4")
    k = np.zeros((1, 2, 1, 4), "f4")
    q[0, 0, 0, 0], q[0, 0, 1, 1] = 1, -1
    k[0, 0, 0, 0], k[0, 1, 0, 2] = 1, 1  # scores (1, 0) of head 0, (-0, 0) of head 1
    w = np.ones((1, 1, 2), "f4")
    p = np.array([0.2, 0.8], "f4").reshape(1, 1, 1, 2)
    result = kindling.kl_loss_grad(q, k, w, p, kindling.softmax_lse(q, k, w))
    assert result.dk[0, 0, 0, 0] > 0.1 and result.dq[0, 0, 0, 0] > 0.1
    assert not result.dk[0, 1].any() and not result.dq[0, 0, 1].any()
    assert np.count_nonzero(result.dk) == np.count_nonzero(result.dq) == 1
    assert result.dw[0, 0, 0] > 0.1 and result.dw[0, 0, 1] == 0


def test_entries_of_p_that_are_not_positive_have_no_loss(isa):
    """Zeros and negative numbers of p count in P and in dI, not in the loss."""
    case = Case((4,), (30,), mask_mode=0)
    x = make_inputs(case)
    x.p[:, 0, ::3] *= -1
    result, expected = grads(x), reference.kl_loss_grad(*x.tensors(), return_loss=True, **x.lengths)
    for name in ("dq", "dk", "dw", "loss_rows"):
        np.testing.assert_allclose(getattr(result, name), getattr(expected, name), atol=1e-5)
    positive = replace(x, p=np.maximum(x.p, 0))
    assert bits(grads(positive).loss_rows) == bits(result.loss_rows)


def test_lse_of_constant_inputs(isa):
    q = np.full((1, 3, 8, 128), 0.2, np.float16)
    k = np.full((1, 256, 1, 128), 0.1, np.float16)
    w = np.full((1, 3, 8), 0.005, np.float32)
    lse = kindling.softmax_lse(q, k, w)
    np.testing.assert_allclose(lse, 5.6475274, atol=1e-6, rtol=0)
