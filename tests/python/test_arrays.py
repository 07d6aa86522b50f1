"""Kinds of arrays in and out, absent ones, and buffers of the caller."""

from __future__ import annotations

from array import array as array_of
from typing import Any

import cases
import kindling
import numpy as np
import pytest
from cases import SMALL, Case, make_inputs
from exchange import Bare, Exchanged, to_numpy, to_torch

# Kinds of arrays.


def all_results(convert: Any, case: Case) -> list[Any]:
    """Every floating result of the package, from arrays that `convert` made."""
    x = make_inputs(case)
    lengths = {
        name: convert(value) if isinstance(value, np.ndarray) else value
        for name, value in x.lengths.items()
    }
    q, k, w, p, lse = (convert(array) for array in x.tensors())
    return [
        kindling.softmax_lse(q, k, w, **lengths),
        *kindling.softmax_lse(q, k, w, p=p, **lengths),
        *kindling.kl_loss_grad(q, k, w, p, lse, return_loss=True, **lengths),
        *kindling.kl_loss_grad(q, k, w, p, lse, grad_dtype="float32", **lengths)[:4],
        kindling.attention_l1_norm(q, k, **lengths),
    ]


@pytest.mark.parametrize("dtype", cases.DTYPES)
@pytest.mark.parametrize("layout", ["BSND", "TND"])
def test_results_are_of_the_kind_of_q(dtype, layout, torch):
    case = Case((5, 3), (9, 4), layout, layout, num_heads=3, head_dim=8, dtype=dtype)
    plain = all_results(lambda array: array, case)
    assert all(type(array) is np.ndarray for array in plain)
    for convert, kind in (
        (to_torch, torch.Tensor),
        (lambda array: Exchanged(to_torch(array)), Exchanged),
    ):
        for expected, actual in zip(plain, all_results(convert, case), strict=True):
            assert type(actual) is kind
            actual = to_numpy(actual)
            assert actual.dtype == expected.dtype
            assert actual.tobytes() == expected.tobytes()


def test_dlpack_without_a_namespace(torch):
    case = Case((5, 3), (9, 4), num_heads=3, head_dim=8)
    plain = all_results(lambda array: array, case)
    bare = all_results(lambda array: Bare(to_torch(array)), case)
    for expected, actual in zip(plain, bare, strict=True):
        assert type(actual) is np.ndarray and actual.tobytes() == expected.tobytes()
    # NumPy has no word for bfloat16, so those results stay DLPack arrays.
    x = make_inputs(Case((5, 3), (9, 4), num_heads=3, head_dim=8, dtype="bfloat16"))
    expected = kindling.kl_loss_grad(*x.tensors(), **x.lengths)
    bare = [Bare(to_torch(array)) for array in x.tensors()]
    actual = kindling.kl_loss_grad(*bare, **x.lengths).dq
    assert hasattr(actual, "__dlpack__") and actual.__dlpack_device__() == (1, 0)
    actual = torch.from_dlpack(actual)
    assert to_numpy(actual).tobytes() == expected.dq.tobytes()


def test_kinds_may_be_mixed(torch, inputs):
    expected = kindling.kl_loss_grad(*inputs.tensors(), **inputs.lengths)
    q, k, w, p, lse = inputs.tensors()
    result = kindling.kl_loss_grad(
        q, to_torch(k), Exchanged(to_torch(w)), p, to_torch(lse), **inputs.lengths
    )
    for a, b in zip(result[:4], expected[:4], strict=True):
        assert type(a) is np.ndarray and a.tobytes() == b.tobytes()
    assert isinstance(kindling.softmax_lse(to_torch(q), k, w, **inputs.lengths), torch.Tensor)


def test_kind_of_metadata(torch):
    lengths = np.array([0, 5, 8], np.int32)
    options = {"layout_q": "TND", "layout_k": "TND", "num_cores": 3}
    plain = kindling.make_metadata(
        64, 1, 128, cu_seqlens_q=lengths, cu_seqlens_k=lengths, **options
    )
    assert type(plain) is np.ndarray and plain.dtype == np.int32 and plain.shape == (64,)
    for convert in (
        torch.from_numpy,
        lambda x: Exchanged(torch.from_numpy(x)),
        lambda x: array_of("i", x.tolist()),
        memoryview,
    ):
        other = kindling.make_metadata(
            64, 1, 128, cu_seqlens_q=convert(lengths), cu_seqlens_k=lengths, **options
        )
        kind = torch.Tensor if convert is torch.from_numpy else np.ndarray
        assert type(other) is kind
        assert other.tolist() == plain.tolist()
    assert type(
        kindling.make_metadata(64, 1, 128, batch_size=1, max_seqlen_q=1, max_seqlen_k=1)
    ) is (np.ndarray)


def strided(array: np.ndarray) -> list[np.ndarray]:
    """The same values in memory that is not dense."""
    spaced = np.zeros([2 * n + 1 for n in array.shape], array.dtype)
    spaced = spaced[tuple(slice(1, 2 * n + 1, 2) for n in array.shape)]
    spaced[...] = array
    backwards = array[::-1, ..., ::-1].copy()[::-1, ..., ::-1]
    transposed = array.T.copy().T
    return [spaced, backwards, transposed]


@pytest.mark.parametrize("dtype", cases.DTYPES)
def test_strides_change_no_bit(dtype, torch):
    case = Case((5, 3), (9, 4), layout_q="BSND", num_heads=3, head_dim=8, dtype=dtype)
    x = make_inputs(case)
    lengths = {
        name: np.repeat(value, 3)[::3] if isinstance(value, np.ndarray) else value
        for name, value in x.lengths.items()
    }
    expected = kindling.kl_loss_grad(*x.tensors(), return_loss=True, **x.lengths)
    alone = kindling.softmax_lse(x.q, x.k, x.w, **x.lengths)
    teacher = kindling.attention_l1_norm(x.q, x.k, **x.lengths)
    for tensors in zip(*(strided(array) for array in x.tensors()), strict=True):
        assert not any(array.flags.c_contiguous for array in tensors[:2])
        result = kindling.kl_loss_grad(*tensors, return_loss=True, **lengths)
        for a, b in zip(result, expected, strict=True):
            assert a.tobytes() == b.tobytes()
        assert kindling.softmax_lse(*tensors[:3], **lengths).tobytes() == alone.tobytes()
        assert kindling.attention_l1_norm(*tensors[:2], **lengths).tobytes() == teacher.tobytes()
    tensors = [to_torch(array.T.copy()).permute(*range(array.ndim)[::-1]) for array in x.tensors()]
    assert not tensors[0].is_contiguous()
    for a, b in zip(
        kindling.kl_loss_grad(*tensors, return_loss=True, **x.lengths), expected, strict=True
    ):
        assert to_numpy(a).tobytes() == b.tobytes()


def test_broadcast_inputs():
    case = Case((6,), (6,), num_heads=3, head_dim=8)
    x = make_inputs(case)
    q, k, w = (np.broadcast_to(array[:1], array.shape) for array in (x.q, x.k, x.w))
    assert q.strides[0] == 0 and not q.flags.writeable
    dense = [array.copy() for array in (q, k, w)]
    a = kindling.kl_loss_grad(q, k, w, x.p, x.lse, **x.lengths)
    b = kindling.kl_loss_grad(*dense, x.p, x.lse, **x.lengths)
    assert all(left.tobytes() == right.tobytes() for left, right in zip(a[:4], b[:4], strict=True))


def test_inputs_are_left_alone(torch):
    """Read-only arrays, parameters and inference tensors are read; nothing is written to them."""
    x = make_inputs(SMALL)
    expected = kindling.kl_loss_grad(*x.tensors(), **x.lengths)
    before = [array.copy() for array in x.tensors()]
    for item in (*x.tensors(), *(v for v in x.lengths.values() if isinstance(v, np.ndarray))):
        item.flags.writeable = False
    result = kindling.kl_loss_grad(*x.tensors(), **x.lengths)
    assert all(a.tobytes() == b.tobytes() for a, b in zip(result[:4], expected[:4], strict=True))
    assert all(a.tobytes() == b.tobytes() for a, b in zip(x.tensors(), before, strict=True))

    tensors = [to_torch(array).requires_grad_() for array in x.tensors()]
    tensors[0] = torch.nn.Parameter(tensors[0])
    result = kindling.kl_loss_grad(*tensors, **x.lengths)
    assert all(
        to_numpy(a).tobytes() == b.tobytes() for a, b in zip(result[:4], expected[:4], strict=True)
    )
    assert not any(tensor.requires_grad for tensor in result[:4])
    with torch.inference_mode():
        tensors = [to_torch(array) for array in x.tensors()]
    assert torch.equal(kindling.kl_loss_grad(*tensors, **x.lengths).dq, result.dq)


def test_torch_views_with_pending_work(torch, inputs):
    """A lazily negated tensor's memory holds the numbers with the other sign."""
    q, k, w = (to_torch(array) for array in (inputs.q, inputs.k, inputs.w))
    expected = kindling.softmax_lse(q, k, -w, **inputs.lengths)
    assert torch.equal(kindling.softmax_lse(q, k, torch._neg_view(w), **inputs.lengths), expected)
    with torch.device("meta"):  # a default device must not reach the results
        assert kindling.softmax_lse(q, k, w, **inputs.lengths).device.type == "cpu"


@pytest.mark.parametrize("dtype", cases.DTYPES)
def test_torch_subclasses(torch, dtype):
    """They are read attribute by attribute, plain tensors by one call."""

    class Mine(torch.Tensor):
        pass

    case = Case((5, 3), (9, 4), layout_q="BSND", num_heads=3, head_dim=8, dtype=dtype)
    x = make_inputs(case)
    plain = [to_torch(array.T.copy()).permute(*range(array.ndim)[::-1]) for array in x.tensors()]
    lengths = {
        name: to_torch(value) if isinstance(value, np.ndarray) else value
        for name, value in x.lengths.items()
    }
    expected = kindling.kl_loss_grad(*plain, **lengths)
    of_mine = {
        name: value.as_subclass(Mine) if isinstance(value, torch.Tensor) else value
        for name, value in lengths.items()
    }
    result = kindling.kl_loss_grad(*(tensor.as_subclass(Mine) for tensor in plain), **of_mine)
    for a, b in zip(result[:4], expected[:4], strict=True):
        assert type(a) is torch.Tensor and torch.equal(a, b)


# Optional arrays and empty batches.


def test_arrays_without_elements_count_as_absent(inputs):
    empty = np.zeros((0,), np.int64)  # of any dtype
    rest = {name: empty for name in ("seqused_q", "seqused_k", "cmp_residual_k", "metadata")}
    a = kindling.kl_loss_grad(*inputs.tensors(), **inputs.lengths)
    b = kindling.kl_loss_grad(
        *inputs.tensors(), row_scale=np.zeros((0, 3)), **{**inputs.lengths, **rest}
    )
    assert all(left.tobytes() == right.tobytes() for left, right in zip(a[:4], b[:4], strict=True))
    lse = kindling.softmax_lse(inputs.q, inputs.k, inputs.w, **inputs.lengths)
    same = kindling.softmax_lse(inputs.q, inputs.k, inputs.w, p=empty, **inputs.lengths)
    assert same.tobytes() == lse.tobytes()
    p = kindling.attention_l1_norm(inputs.q, inputs.k, **inputs.lengths)
    same = kindling.attention_l1_norm(inputs.q, inputs.k, empty, **inputs.lengths)
    assert same.tobytes() == p.tobytes()
    with pytest.raises(ValueError, match="^cu_seqlens_q: "):
        kindling.softmax_lse(
            inputs.q, inputs.k, inputs.w, **{**inputs.lengths, "cu_seqlens_q": empty}
        )


@pytest.mark.parametrize(
    "case",
    [
        Case((0,), (4,)),
        Case((0,), (4,), "BSND", "BSND"),
        Case((3,), (0,)),
        Case((3,), (0,), "BSND", "BSND", mask_mode=0),
        Case((), ()),
        Case((0, 0), (0, 0), "TND", "BSND"),
        Case((2, 0), (0, 5), spare_q=1, spare_k=2),
    ],
    ids=str,
)
def test_empty_batches(case, torch):
    x = make_inputs(case)
    for convert in (lambda array: array, to_torch):
        tensors = [convert(array) for array in x.tensors()]
        lse, loss_rows = kindling.softmax_lse(*tensors[:3], p=tensors[3], **x.lengths)
        assert tuple(lse.shape) == tuple(loss_rows.shape) == case.lse_shape()
        assert (to_numpy(lse) == -np.inf).all() and not to_numpy(loss_rows).any()
        result = kindling.kl_loss_grad(*tensors, return_loss=True, **x.lengths)
        for like, item in zip((*x.tensors()[:4], x.lse), result, strict=True):
            assert tuple(item.shape) == like.shape
            assert not to_numpy(item).astype("f4").any()
        assert result.loss == 0
        p = kindling.attention_l1_norm(*tensors[:2], **x.lengths)
        assert tuple(p.shape)[:-1] == (*case.row_shape(), 1) and not to_numpy(p).any()


# Buffers of the caller.


def test_out_is_filled_and_returned(torch, inputs):
    expected = kindling.kl_loss_grad(*inputs.tensors(), return_loss=True, **inputs.lengths)
    for convert in (lambda array: array, to_torch):
        tensors = [convert(array) for array in inputs.tensors()]
        buffers = [convert(np.full_like(array, np.nan)) for array in expected]
        for out in (
            kindling.KLLossGrad(*buffers),
            tuple(buffers),
            list(buffers),
            dict(zip(kindling.KLLossGrad._fields, buffers, strict=True)),
        ):
            for buffer in buffers:
                buffer[...] = np.nan
            result = kindling.kl_loss_grad(*tensors, out=out, return_loss=True, **inputs.lengths)
            assert all(a is b for a, b in zip(result, buffers, strict=True))
            assert all(
                to_numpy(a).tobytes() == b.tobytes() for a, b in zip(result, expected, strict=True)
            )
        part = kindling.kl_loss_grad(*tensors, out={"dk": buffers[1]}, **inputs.lengths)
        assert part.dk is buffers[1] and part.dq is not buffers[0] and part.loss_rows is None
        lse = convert(np.full_like(inputs.lse, np.nan))
        assert kindling.softmax_lse(*tensors[:3], out=lse, **inputs.lengths) is lse
        pair = kindling.softmax_lse(*tensors[:3], p=tensors[3], out=(lse, None), **inputs.lengths)
        assert pair[0] is lse and pair[1] is not None
        p = kindling.attention_l1_norm(*tensors[:2], **inputs.lengths)
        again = convert(np.full(tuple(p.shape), np.nan, "f4"))
        assert kindling.attention_l1_norm(*tensors[:2], out=again, **inputs.lengths) is again
        assert to_numpy(again).tobytes() == to_numpy(p).tobytes()
    record = np.full(64, -1, np.int32)
    out = kindling.make_metadata(
        64, 1, 128, batch_size=2, max_seqlen_q=3, max_seqlen_k=3, num_cores=2, out=record
    )
    assert out is record and record[:6].tolist() == [6, 3, 2, 0, 2, 3]


def test_out_of_another_kind_than_q(torch, inputs):
    buffer = torch.full(inputs.q.shape, torch.nan)
    result = kindling.kl_loss_grad(*inputs.tensors(), out={"dq": buffer}, **inputs.lengths)
    assert result.dq is buffer and type(result.dk) is np.ndarray
    exchanged = Exchanged(torch.full(inputs.q.shape, torch.nan))
    other = kindling.kl_loss_grad(*inputs.tensors(), out={"dq": exchanged}, **inputs.lengths)
    assert other.dq is exchanged and torch.equal(exchanged._tensor, buffer)


def read_only(item: np.ndarray) -> np.ndarray:
    item.flags.writeable = False
    return item


@pytest.mark.parametrize(
    "name, make, error",
    [
        ("dq", lambda a: a[:-1], ValueError),
        ("dk", lambda a: a.astype("f8"), TypeError),
        ("dw", lambda a: a.astype("f2"), TypeError),
        ("dq", lambda a: a.astype("i4"), TypeError),
        ("dq", lambda a: np.asfortranarray(a), ValueError),
        ("softmax_out", lambda a: np.repeat(a, 2, -1)[..., ::2], ValueError),
        ("softmax_out", lambda a: read_only(a), ValueError),
        ("loss_rows", lambda a: a[0], ValueError),
        ("loss_rows", lambda a: np.broadcast_to(a[:, :1], a.shape), ValueError),
        ("dw", lambda a: a.tolist(), TypeError),
    ],
)
def test_wrong_buffers(name, make, error, inputs):
    good = kindling.kl_loss_grad(*inputs.tensors(), return_loss=True, **inputs.lengths)
    out = {name: make(getattr(good, name).copy())}
    with pytest.raises(error, match=f"^{name}: expected "):
        kindling.kl_loss_grad(*inputs.tensors(), return_loss=True, out=out, **inputs.lengths)


def test_wrong_out_containers(inputs, torch):
    call = {**inputs.lengths}
    for out, error, message in (
        ((None, None), TypeError, "^out: .*tuple of 2"),
        (inputs.q, TypeError, "^out: .*ndarray"),
        ({"d_q": inputs.q}, ValueError, "^out: .*d_q"),
        ({"loss_rows": inputs.lse}, ValueError, "^loss_rows: .*return_loss"),
        ({"dq": inputs.q}, ValueError, "^dq: .*overlap with q"),
        ({"dq": torch.zeros(inputs.q.shape).requires_grad_()}, ValueError, "^dq: .*grad"),
    ):
        with pytest.raises(error, match=message):
            kindling.kl_loss_grad(*inputs.tensors(), out=out, **call)
    with pytest.raises(ValueError, match="^softmax_out: .*return_softmax"):
        kindling.kl_loss_grad(
            *inputs.tensors(), return_softmax=False, out={"softmax_out": inputs.p}, **call
        )
    q, k, w, p, _ = inputs.tensors()
    with pytest.raises(TypeError, match="^out: .*lse, loss_rows"):
        kindling.softmax_lse(q, k, w, p=p, out=np.zeros((1, 8), "f4"), **call)
    with pytest.raises(TypeError, match="^lse: "):
        kindling.softmax_lse(q, k, w, out=(None, None), **call)
    with pytest.raises(ValueError, match="^metadata: .*read-only"):
        kindling.make_metadata(
            64,
            1,
            128,
            batch_size=1,
            max_seqlen_q=1,
            max_seqlen_k=1,
            out=read_only(np.zeros(64, np.int32)),
        )
    for wrong, error in ((np.zeros(64), TypeError), (np.zeros(63, np.int32), ValueError)):
        with pytest.raises(error, match="^metadata: "):
            kindling.make_metadata(
                64, 1, 128, batch_size=1, max_seqlen_q=1, max_seqlen_k=1, out=wrong
            )


def test_autograd_notices_a_written_buffer(torch, inputs):
    x = torch.ones(inputs.w.shape, requires_grad=True)
    buffer = torch.zeros(inputs.w.shape)
    loss = (x * buffer).sum()  # saves the buffer for backward
    kindling.kl_loss_grad(*inputs.tensors(), out={"dw": buffer}, **inputs.lengths)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
