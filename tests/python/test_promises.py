"""What the operators promise beyond their values: exact zeros, what they never read, the same bits
whoever computes, and the properties of the chain (spec 3 and 7)."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import cases
import definition
import kindling
import numpy as np
import pytest
from calls import bits, grads, main_attention
from cases import Case, Inputs, make_inputs
from kindling import reference

# Every element written, exact zeros, and what must not be read.


def filled(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    array = np.empty(shape, dtype)
    array[...] = np.nan
    return array


@pytest.mark.parametrize("case", cases.sweep(50, "poison"), ids=str)
def test_poison(case):
    inputs = make_inputs(case)
    poisoned = cases.poison(case, inputs)
    row_scale = np.full(case.lse_shape(), np.nan, "f4")
    for batch in range(case.num_batches):
        row_scale[case.lse_slot(batch)][case.visible(batch) > 0] = 2
    ones = np.full(case.lse_shape(), 2, "f4")

    clean = kindling.softmax_lse(inputs.q, inputs.k, inputs.w, p=inputs.p, **inputs.lengths)
    buffers = filled(case.lse_shape(), "f4"), filled(case.lse_shape(), "f4")
    result = kindling.softmax_lse(
        poisoned.q, poisoned.k, poisoned.w, p=poisoned.p, out=buffers, **inputs.lengths
    )
    assert result[0] is buffers[0] and result[1] is buffers[1]
    assert bits(result) == bits(clean)
    assert not np.isnan(clean[0]).any() and np.isfinite(clean[1]).all()

    clean = grads(inputs, row_scale=ones)
    buffers = kindling.KLLossGrad(*(filled(array.shape, array.dtype) for array in clean))
    result = grads(poisoned, row_scale=row_scale, out=buffers)
    assert bits(result) == bits(clean)
    for name, expected in definition.kl_loss_grad(case, inputs, row_scale=ones).items():
        array = getattr(clean, name)
        assert np.isfinite(array.astype("f4")).all(), name
        must_be_zero = (expected.value == 0) & (expected.bound == 0)
        assert not array[must_be_zero].any(), name

    q, k, lse = main_attention(case, 4, 2, 24)
    for given in (None, lse):
        stride = {"max_seqlen_k": case.teacher_stride(), **inputs.lengths}
        clean = kindling.attention_l1_norm(q, k, given, **stride)
        bad_q, bad_k, bad_lse = (filled(a.shape, a.dtype) for a in (q, k, lse))
        for batch in range(case.num_batches):
            seen = case.visible(batch) > 0
            bad_q[case.row_slot(batch)][seen] = q[case.row_slot(batch)][seen]
            bad_lse[case.lse_slot(batch)][seen] = lse[case.lse_slot(batch)][seen]
            bad_k[case.key_slot(batch)] = k[case.key_slot(batch)]
        result = kindling.attention_l1_norm(
            bad_q,
            bad_k,
            None if given is None else bad_lse,
            out=filled(clean.shape, "f4"),
            **stride,
        )
        assert bits(result) == bits(clean)
        assert np.isfinite(clean).all()


def test_keys_that_no_row_can_see_are_not_read():
    """A batch entry without rows: its keys lie between those of others."""
    case = Case((4, 0, 3), (6, 5, 7), num_heads=3)
    inputs = make_inputs(case)
    clean = grads(inputs)
    bad = replace(inputs, k=inputs.k.copy())
    bad.k[case.key_slot(1)] = np.nan
    assert bits(grads(bad)) == bits(clean)
    assert not clean.dk[case.key_slot(1)].any()
    lse = kindling.softmax_lse(bad.q, bad.k, bad.w, **inputs.lengths)
    assert bits(lse) == bits(kindling.softmax_lse(inputs.q, inputs.k, inputs.w, **inputs.lengths))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf], ids=str)
@pytest.mark.parametrize("dtype", cases.DTYPES)
def test_nonfinite_rows_stay_alone(value, dtype, isa):
    """A row's NaN or infinity reaches that row and dk of the keys it sees, and nothing else."""
    case = Case((40, 30), (40, 50), num_heads=5, dtype=dtype)
    inputs = make_inputs(case)
    clean = grads(inputs)
    row = 17  # sees keys 0..17
    for name in ("q", "w", "p", "lse"):
        bad = replace(inputs, **{name: getattr(inputs, name).copy()})
        if name == "lse":
            bad.lse[0, row] = value
        elif name == "p":
            bad.p[row, 0, 3] = value
        else:
            getattr(bad, name)[row, 2] = value
        result = grads(bad)
        others = np.arange(70) != row
        assert bits(result.dq[others]) == bits(clean.dq[others]), name
        assert bits(result.dw[others]) == bits(clean.dw[others]), name
        assert bits(result.softmax_out[others]) == bits(clean.softmax_out[others]), name
        assert bits(result.loss_rows[:, others]) == bits(clean.loss_rows[:, others]), name
        assert bits(result.dk[row + 1 :]) == bits(clean.dk[row + 1 :]), name
        assert not result.softmax_out[row, 0, row + 1 :].any(), name
        if np.isnan(value):
            assert np.isnan(result.dw[row]).any(), name
            assert np.isnan(result.loss_rows[0, row]), name
    bad = replace(inputs, q=inputs.q.copy())
    bad.q[row, 2] = value
    lse = kindling.softmax_lse(bad.q, bad.k, bad.w, **inputs.lengths)
    clean = kindling.softmax_lse(inputs.q, inputs.k, inputs.w, **inputs.lengths)
    assert bits(lse[:, others]) == bits(clean[:, others])
    assert not np.isfinite(lse[0, row])


@pytest.mark.parametrize("value", [np.nan, np.inf], ids=str)
@pytest.mark.parametrize("dtype", cases.DTYPES)
def test_nonfinite_keys_stay_alone(value, dtype, isa):
    """Rows that do not see the key have the same bits as without it."""
    case = Case((40, 30), (40, 50), num_heads=5, dtype=dtype)
    inputs = make_inputs(case)
    clean = grads(inputs)
    bad = replace(inputs, k=inputs.k.copy())
    key = 25  # the first entry's rows from 25 on see it
    bad.k[key] = value
    result = grads(bad)
    blind = np.r_[0:25, 40:70]
    for name in ("dq", "dw", "softmax_out"):
        assert bits(getattr(result, name)[blind]) == bits(getattr(clean, name)[blind]), name
    assert bits(result.loss_rows[:, blind]) == bits(clean.loss_rows[:, blind])
    assert bits(result.dk[40:]) == bits(clean.dk[40:])  # the other entry's keys
    lse = kindling.softmax_lse(bad.q, bad.k, bad.w, **inputs.lengths)
    before = kindling.softmax_lse(inputs.q, inputs.k, inputs.w, **inputs.lengths)
    assert bits(lse[:, blind]) == bits(before[:, blind])
    if np.isnan(value):
        assert np.isnan(lse[0, 25:40]).all()


# Reproducibility, bit by bit.

RAGGED = [
    Case((70, 0, 129, 5), (300, 40, 513, 5), num_heads=8, head_dim=64, dtype="bfloat16"),
    Case((70, 1, 90), (64, 300, 30), mask_mode=0, num_heads=3, head_dim=40, spare_q=3, spare_k=9),
    Case(
        (33, 120),
        (260, 30),
        "BSND",
        "TND",
        cmp_ratio=4,
        residual=(1, 3),
        num_heads=16,
        dtype="float16",
    ),
]


def everything(case: Case, inputs: Inputs, **options: Any) -> list[Any]:
    """All outputs of all operators."""
    q, k, _ = main_attention(case, 4, 2, 32)
    stride = {"max_seqlen_k": case.teacher_stride()}
    return [
        bits(kindling.attention_l1_norm(q, k, **stride, **inputs.lengths, **options)),
        bits(
            kindling.softmax_lse(
                inputs.q, inputs.k, inputs.w, p=inputs.p, **inputs.lengths, **options
            )
        ),
        bits(grads(inputs, **options)),
    ]


@pytest.mark.parametrize("case", RAGGED, ids=str)
def test_same_bits_for_any_threads_and_cores(case, isa):
    inputs = make_inputs(case)
    expected = everything(case, inputs, num_threads=1)
    for num_threads in (2, 3, 7):
        assert everything(case, inputs, num_threads=num_threads) == expected, num_threads
    for num_cores in (1, 2, 24, 40):
        metadata = kindling.make_metadata(
            8, 1, 128, num_cores=num_cores, **case.metadata_arguments()
        )
        for num_threads in (1, 3):
            result = everything(case, inputs, metadata=metadata, num_threads=num_threads)
            assert result == expected, (num_cores, num_threads)


@pytest.mark.parametrize("case", RAGGED, ids=str)
def test_same_bits_with_and_without_optional_outputs(case, isa):
    inputs = make_inputs(case)
    full = bits(grads(inputs))
    for softmax in (False, True):
        for loss in (False, True):
            part = grads(inputs, return_softmax=softmax, return_loss=loss)
            assert (part.softmax_out is not None, part.loss_rows is not None) == (softmax, loss)
            for name, value in bits(part).items():
                assert value is None or value == full[name], name
    alone = kindling.softmax_lse(inputs.q, inputs.k, inputs.w, **inputs.lengths)
    lse, _ = kindling.softmax_lse(inputs.q, inputs.k, inputs.w, p=inputs.p, **inputs.lengths)
    assert bits(alone) == bits(lse)


@pytest.mark.parametrize("case", RAGGED, ids=str)
def test_same_bits_in_fresh_and_used_buffers(case):
    inputs = make_inputs(case)
    fresh = grads(inputs)
    used = grads(replace(inputs, w=-inputs.w))
    assert bits(grads(inputs, out=used)) == bits(fresh)


@pytest.mark.parametrize("case", RAGGED, ids=str)
def test_same_bits_one_by_one(case, isa):
    """A packed batch, and its entries called alone."""
    inputs = make_inputs(case)
    whole = grads(inputs)
    lse = kindling.softmax_lse(inputs.q, inputs.k, inputs.w, **inputs.lengths)
    for batch in range(case.num_batches):
        rows, keys, lse_slot = case.row_slot(batch), case.key_slot(batch), case.lse_slot(batch)
        alone = case.entry(batch)
        width = case.num_keys[batch]
        single = Inputs(
            inputs.q[rows],
            inputs.k[keys],
            inputs.w[rows],
            inputs.p[rows][..., :width],
            inputs.lse[lse_slot][None],
            alone.lengths(),
        )
        result = grads(single)
        assert bits(result.dq) == bits(whole.dq[rows])
        assert bits(result.dk) == bits(whole.dk[keys])
        assert bits(result.dw) == bits(whole.dw[rows])
        assert bits(result.softmax_out) == bits(whole.softmax_out[rows][..., :width])
        assert bits(result.loss_rows[0]) == bits(whole.loss_rows[lse_slot])
        single_lse = kindling.softmax_lse(single.q, single.k, single.w, **single.lengths)
        assert bits(single_lse[0]) == bits(lse[lse_slot])


# Chain properties (spec 7).


@pytest.mark.parametrize("dtype", cases.DTYPES)
def test_softmax_sums_to_one_and_d_i_to_zero(dtype, isa):
    """A head that gives every key the same logit has dw = that logit times the sum of dI."""
    case = Case((60, 7), (150, 300), num_heads=4, head_dim=33, dtype=dtype)
    inputs = make_inputs(case, mass=0.6)
    inputs.k[..., -1] = 1
    inputs.q[..., -1] = 0
    inputs.q[:, 3] = 0
    inputs.q[:, 3, -1] = 1
    lse = kindling.softmax_lse(inputs.q, inputs.k, inputs.w, **inputs.lengths)
    result = grads(replace(inputs, lse=lse))
    sums = result.softmax_out.sum((-2, -1), dtype="f8")
    np.testing.assert_allclose(sums, 1, rtol=3e-6)  # lse near 5, so off by some units of 2**-22
    np.testing.assert_allclose(result.dw[:, 3], 0, atol=3e-6)
    assert abs(result.dw[:, :3]).max() > 1e-2


def test_permuted_keys():
    case = Case((30,), (90,), mask_mode=0, num_heads=4)
    inputs = make_inputs(case)
    order = np.random.default_rng(0).permutation(90)
    permuted = replace(inputs, k=inputs.k[order], p=inputs.p[..., order])
    a, b = grads(inputs), grads(permuted)
    expected = definition.kl_loss_grad(case, inputs)
    for name, left, right in (
        ("dk", a.dk[order], b.dk),
        ("softmax_out", a.softmax_out[..., order], b.softmax_out),
    ):
        index = (order,) if name == "dk" else (..., order)
        assert (abs(left - right) <= 2 * expected[name].bound[index]).all(), name
    for name in ("dq", "dw", "loss_rows"):
        off = abs(getattr(a, name) - getattr(b, name))
        assert (off <= 2 * expected[name].bound).all(), name


def test_scaled_teacher():
    case = Case((30, 20), (90, 20), num_heads=4)
    inputs = make_inputs(case)
    scaled = replace(inputs, p=3 * inputs.p)
    once, thrice = grads(inputs), grads(scaled)
    bound = definition.kl_loss_grad(case, scaled)
    for name in ("dq", "dk", "dw"):
        off = abs(3 * getattr(once, name) - getattr(thrice, name))
        assert (off <= 2 * bound[name].bound).all(), name
    assert bits(once.softmax_out) == bits(thrice.softmax_out)


def test_negated_weights_negate_logits():
    case = Case((20,), (40,), num_heads=4)
    inputs = make_inputs(case)
    inputs.lse[...] = 0  # softmax_out is exp(I) then
    negated = replace(inputs, w=-inputs.w)
    product = grads(inputs).softmax_out * grads(negated).softmax_out
    seen = np.arange(40) < case.visible(0)[:, None]
    np.testing.assert_allclose(product[:, 0][seen], 1, rtol=1e-5)
    assert not product[:, 0][~seen].any()


def test_gradients_are_finite_differences():
    """Of the reference's own loss, in double; each quotient is good to step**2."""
    case = Case((5, 3), (4, 6), num_heads=3, head_dim=5)
    inputs = make_inputs(case, mass=0.7)
    arrays = {name: getattr(inputs, name).astype("f8") for name in "qkw"}
    options = {"p": inputs.p, **inputs.lengths}

    def loss(**changed: np.ndarray) -> float:
        now = {**arrays, **changed}
        return reference.softmax_lse(now["q"], now["k"], now["w"], **options)[1].sum()

    lse, _ = reference.softmax_lse(*arrays.values(), **options)
    result = reference.kl_loss_grad(*arrays.values(), inputs.p, lse, **inputs.lengths)
    random = np.random.default_rng(0)
    step = 1e-5
    for name, gradient in (("q", result.dq), ("k", result.dk), ("w", result.dw)):
        for _ in range(4):
            direction = random.standard_normal(gradient.shape)
            up, down = (loss(**{name: arrays[name] + s * direction}) for s in (step, -step))
            np.testing.assert_allclose(
                (up - down) / (2 * step), (gradient * direction).sum(), rtol=1e-6, atol=1e-8
            )


@pytest.mark.parametrize("cmp_ratio, residual", [(1, 0), (4, 3)])
def test_context_parallel(cmp_ratio, residual, isa):
    """Shards of one entry's rows, each with the keys that its last row sees."""
    uq, uk = 90, 80
    case = Case((uq,), (uk,), cmp_ratio=cmp_ratio, residual=(residual,), num_heads=6, head_dim=48)
    inputs = make_inputs(case)
    whole = grads(inputs)
    bound = definition.kl_loss_grad(case, inputs)["dk"].bound
    d_k = np.zeros(inputs.k.shape)
    for begin, end in pairwise((0, 7, 40, 41, uq)):
        tokens = uk * cmp_ratio + residual - (uq - end)
        keys, left = divmod(max(tokens, 0), cmp_ratio)
        shard = replace(case, num_rows=(end - begin,), num_keys=(keys,), residual=(left,))
        part = Inputs(
            inputs.q[begin:end],
            inputs.k[:keys],
            inputs.w[begin:end],
            inputs.p[begin:end],
            inputs.lse[:, begin:end],
            shard.lengths(),
        )
        result = grads(part)
        assert bits(result.dq) == bits(whole.dq[begin:end])
        assert bits(result.dw) == bits(whole.dw[begin:end])
        assert bits(result.softmax_out) == bits(whole.softmax_out[begin:end])
        assert bits(result.loss_rows) == bits(whole.loss_rows[:, begin:end])
        lse = kindling.softmax_lse(part.q, part.k, part.w, **part.lengths)
        full = kindling.softmax_lse(inputs.q, inputs.k, inputs.w, **inputs.lengths)
        assert bits(lse) == bits(full[:, begin:end])
        d_k[:keys] += result.dk
    assert (abs(d_k - whole.dk) <= 2 * bound).all()


def test_loss_is_the_sum_in_ascending_order_in_double():
    case = Case((200, 3), (10, 900), num_heads=2)
    inputs = make_inputs(case)
    result = grads(inputs)
    total = 0.0
    for value in result.loss_rows.ravel().tolist():
        total += value
    assert result.loss == total
    assert isinstance(result.loss, float)
    assert grads(inputs, return_loss=False).loss is None


def test_loss_of_little_mass_is_negative():
    case = Case((10,), (400,), mask_mode=0)
    inputs = make_inputs(case, mass=0.01)
    assert grads(inputs).loss < 0
    assert grads(make_inputs(case)).loss > 0
