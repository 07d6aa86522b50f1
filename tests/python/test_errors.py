"""What is refused, by type of error and name of argument; nothing crashes, nothing leaks."""

from __future__ import annotations

import gc
import sys
from typing import Any

import kindling
import ml_dtypes
import numpy as np
import pytest
from calls import METADATA
from cases import LENGTHS
from exchange import Exchanged, to_torch


def check_refused(call: Any, arguments: dict[str, Any], name: str, error: type[Exception]) -> str:
    with pytest.raises(error) as caught:
        call(**arguments)
    assert type(caught.value) is error
    message = str(caught.value)
    assert message.startswith((f"{name}: expected ", f"{name}[")), message
    return message


@pytest.mark.parametrize(
    "name",
    [
        "num_heads_q",
        "num_heads_k",
        "head_dim",
        "batch_size",
        "max_seqlen_q",
        "max_seqlen_k",
        "mask_mode",
        "cmp_ratio",
        "num_cores",
    ],
)
def test_integers(name):
    good = {"num_heads_q": 64, "num_heads_k": 1, "head_dim": 128, "cmp_ratio": 1, "num_cores": 2}
    value = good.get(name, 0)
    expected = kindling.make_metadata(**METADATA).tolist()
    for same in (
        np.int8(value) if value < 128 else np.uint8(value),
        np.uint64(value),
        np.array(value),
    ):
        assert kindling.make_metadata(**{**METADATA, name: same}).tolist() == expected
    for wrong in (True, np.True_, 1.0, np.float64(1), "1", None, [1], 1j, object()):
        if wrong is None and name == "num_cores":
            continue
        check_refused(kindling.make_metadata, {**METADATA, name: wrong}, name, TypeError)
    for wrong in (2**63, -(2**63) - 1, 10**5000):
        check_refused(kindling.make_metadata, {**METADATA, name: wrong}, name, ValueError)


class Index:
    """An integer of somebody else's."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __index__(self) -> int:
        return self.value


@pytest.mark.parametrize("integer", [np.int64, np.uint8, np.array, Index], ids=str)
def test_integers_of_operators(integer, inputs):
    tensors = inputs.tensors()
    lengths = inputs.lengths | {"mask_mode": 3, "cmp_ratio": 1}
    same = lengths | {name: integer(lengths[name]) for name in ("mask_mode", "cmp_ratio")}
    for module in (kindling, kindling.reference):
        expected = module.kl_loss_grad(*tensors, **lengths)
        assert np.array_equal(module.kl_loss_grad(*tensors, **same).dq, expected.dq)
        lse = module.softmax_lse(*tensors[:3], **lengths)
        assert np.array_equal(module.softmax_lse(*tensors[:3], **same), lse)
        p = module.attention_teacher(*tensors[:2], max_seqlen_k=11, **lengths)
        options = {"max_seqlen_k": integer(11), "softmax_scale": integer(1)}
        assert np.array_equal(module.attention_teacher(*tensors[:2], **options, **same), p)
    record = kindling.make_metadata(3, 1, 128, num_cores=integer(2), **same)
    assert repr(kindling.Plan(record, **same)) == repr(kindling.Plan(record, **lengths))
    for wrong in (3.0, True, np.float64(3), np.array([3, 3])):
        for name in ("mask_mode", "cmp_ratio"):
            check_refused(
                kindling.reference.softmax_lse,
                {"q": inputs.q, "k": inputs.k, "w": inputs.w, **lengths, name: wrong},
                name,
                TypeError,
            )


@pytest.mark.parametrize("name", LENGTHS)
def test_length_arrays(name):
    """None of these is a ragged batch's length; none crashes."""
    for wrong in ([0, 5, 8], (0, 5, 8), 5, "0,5", {}, object(), np.int32):
        message = check_refused(kindling.make_metadata, {**METADATA, name: wrong}, name, TypeError)
        assert "expected an int32 array, got " in message
    for dtype in ("i8", "u4", "i2", "f4", "f8", "?", "c8", "S3", "U2", "O", "M8[s]", "i4,i4"):
        message = check_refused(
            kindling.make_metadata,
            {**METADATA, name: np.zeros(2, dtype)},
            name,
            TypeError,
        )
        assert np.dtype(dtype).name in message or str(np.dtype(dtype)) in message, message
    check_refused(
        kindling.make_metadata, {**METADATA, name: np.zeros((2, 1), np.int32)}, name, ValueError
    )
    check_refused(
        kindling.make_metadata,
        {**METADATA, name: np.zeros(2, np.int32).reshape([1] * 40 + [2])},
        name,
        ValueError,
    )


def test_layouts(inputs):
    calls = [
        (kindling.make_metadata, METADATA),
        (kindling.softmax_lse, {"q": inputs.q, "k": inputs.k, "w": inputs.w, **inputs.lengths}),
        (kindling.attention_l1_norm, {"q": inputs.q, "k": inputs.k, **inputs.lengths}),
    ]
    for call, arguments in calls:
        for name in ("layout_q", "layout_k"):
            for wrong in ("", "tnd", "TND ", "TND\0", "BSN", "Ω", "\udc80", None):
                check_refused(call, {**arguments, name: wrong}, name, ValueError)
            for wrong in (1, b"TND", ["TND"], np.array(["TND", "TND"])):
                check_refused(call, {**arguments, name: wrong}, name, TypeError)


class Raises:
    """An array whose every answer is an error."""

    def __dlpack__(self, **_: Any) -> Any:
        raise RuntimeError("nothing here")

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


class Nonsense:
    __dlpack__ = None

    def __dlpack_device__(self) -> str:
        return "cpu"


@pytest.mark.filterwarnings("ignore:.*(nested tensors is in prototype|of FakeTensor)")
def test_things_that_are_no_arrays(torch, inputs):
    good = dict(zip(("q", "k", "w", "p", "lse"), inputs.tensors(), strict=True)) | inputs.lengths
    ragged = torch.nested.nested_tensor([torch.zeros(3), torch.zeros(2)], layout=torch.jagged)
    for name in ("q", "k", "w", "p", "lse", "row_scale", "metadata"):
        for wrong, part in (
            ([[1.0]], "got list"),
            (1.0, "got float"),
            ("q", "got str"),
            (object(), "got object"),
            (np.float32, "got type"),
            (Raises(), "nothing here"),
            (Nonsense(), "__index__"),
            (np.zeros(2, "M8[s]"), "datetime64"),
            (torch.zeros(3).to_sparse(), "layout torch.sparse_coo"),
            (ragged, "strided"),
            (ragged, "got a nested one: pack it, .values()"),
        ):
            message = check_refused(kindling.kl_loss_grad, {**good, name: wrong}, name, TypeError)
            assert part in message, message
        for wrong, part in (
            (torch.zeros(3, device="meta"), "meta"),
            (Exchanged(torch.zeros(3), (2, 0)), "device type 2"),
        ):
            message = check_refused(kindling.kl_loss_grad, {**good, name: wrong}, name, ValueError)
            assert part in message, message
        if name not in ("row_scale", "metadata"):
            message = check_refused(kindling.kl_loss_grad, {**good, name: None}, name, TypeError)
            assert message.endswith("got None")
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        fake = torch.zeros(3)
    message = check_refused(kindling.kl_loss_grad, {**good, "q": fake}, "q", TypeError)
    assert "with memory, got" in message
    with pytest.raises(TypeError, match="^q: .*with memory, got"):
        torch.func.vmap(lambda q: kindling.softmax_lse(q, good["k"], good["w"]))(torch.zeros(2, 3))


def test_memory_that_cannot_be_viewed(inputs):
    good = {"q": inputs.q, "k": inputs.k, "w": inputs.w, **inputs.lengths}
    swapped = inputs.w.astype(inputs.w.dtype.newbyteorder())
    assert "byte order" in check_refused(
        kindling.softmax_lse, {**good, "w": swapped}, "w", TypeError
    )
    records = np.zeros(inputs.w.shape, np.dtype([("a", "f4"), ("b", "u1")]))["a"]
    assert "5" in check_refused(kindling.softmax_lse, {**good, "w": records}, "w", ValueError)
    shifted = np.zeros(inputs.w.nbytes + 1, "u1")[1:].view("f4").reshape(inputs.w.shape)
    assert "aligned" in check_refused(kindling.softmax_lse, {**good, "w": shifted}, "w", ValueError)


def test_masked_arrays(inputs):
    """A mask that nobody heeds would be a wrong result; one that is empty is refused alike."""
    good = dict(zip(("q", "k", "w", "p", "lse"), inputs.tensors(), strict=True)) | inputs.lengths
    names = (*good.keys() - {"layout_q", "layout_k", "mask_mode", "cmp_ratio"}, "row_scale")
    for name in (*names, "metadata"):
        plain = good.get(name, inputs.lse)
        for masked in (np.ma.masked_array(plain, plain == plain.flat[0]), np.ma.array(plain)):
            for call in (kindling.kl_loss_grad, kindling.reference.kl_loss_grad):
                message = check_refused(call, {**good, name: masked}, name, TypeError)
                assert message.endswith("MaskedArray")
    out = {"dw": np.ma.zeros(inputs.w.shape, "f4")}
    check_refused(kindling.kl_loss_grad, {**good, "out": out}, "dw", TypeError)
    check_refused(
        kindling.make_metadata,
        {**METADATA, "seqused_q": np.ma.array([1], np.int32)},
        "seqused_q",
        TypeError,
    )


@pytest.mark.parametrize(
    "changes, name, error",
    [
        ({"q": np.zeros((8, 3, 8))}, "q", TypeError),
        ({"q": np.zeros((8, 3, 8), "i8")}, "q", TypeError),
        ({"q": np.zeros(8, "f4")}, "q", ValueError),
        ({"q": np.zeros((), "f4")}, "q", ValueError),
        ({"q": np.zeros((1,) * 9, "f4")}, "q", ValueError),
        ({"q": np.zeros((8, 0, 8), "f4")}, "q", ValueError),
        ({"k": np.zeros((13, 2, 8), "f4")}, "k", ValueError),
        ({"k": np.zeros((13, 1, 9), "f4")}, "k", ValueError),
        ({"k": np.zeros((13, 1, 8), "f2")}, "k", TypeError),
        ({"k": np.zeros((13, 1, 8), ml_dtypes.bfloat16)}, "k", TypeError),
        ({"w": np.zeros((8, 4), "f4")}, "w", ValueError),
        ({"w": np.zeros((8, 3), "f2")}, "w", TypeError),
        ({"p": np.zeros((8, 1, 8), "f4")}, "p", ValueError),
        ({"p": np.zeros((8, 1, 9), "f8")}, "p", TypeError),
        ({"lse": np.zeros((8, 1), "f4")}, "lse", ValueError),
        ({"lse": np.zeros((1, 8), "i4")}, "lse", TypeError),
        ({"row_scale": np.zeros((1, 9), "f4")}, "row_scale", ValueError),
        ({"row_scale": np.zeros((1, 8))}, "row_scale", TypeError),
        ({"metadata": np.zeros(63, "i4")}, "metadata", ValueError),
        ({"metadata": np.zeros(64, "i8")}, "metadata", TypeError),
        ({"metadata": np.zeros(64, "i4")}, "metadata", ValueError),
        ({"mask_mode": 1}, "mask_mode", ValueError),
        ({"cmp_ratio": 4}, "cmp_residual_k", ValueError),
        ({"cu_seqlens_q": np.array([0, 5, 9], "i4")}, "cu_seqlens_q", ValueError),
        ({"cu_seqlens_k": np.array([0, 13], "i4")}, "cu_seqlens_k", ValueError),
        ({"seqused_k": np.array([10, 4], "i4")}, "seqused_k", ValueError),
        ({"num_threads": -1}, "num_threads", ValueError),
        ({"num_threads": 2000}, "num_threads", ValueError),
        ({"num_threads": 1.5}, "num_threads", TypeError),
        ({"grad_dtype": "float16"}, "grad_dtype", TypeError),
        ({"grad_dtype": np.int32}, "grad_dtype", TypeError),
        ({"grad_dtype": 7}, "grad_dtype", TypeError),
    ],
)
def test_refused_by_name(changes, name, error, inputs):
    good = dict(zip(("q", "k", "w", "p", "lse"), inputs.tensors(), strict=True)) | inputs.lengths
    kindling.kl_loss_grad(**good)
    check_refused(kindling.kl_loss_grad, {**good, **changes}, name, error)
    of_lse = ("q", "k", "w", "p", "metadata", "num_threads", *inputs.lengths, "cmp_residual_k")
    if name in of_lse:
        arguments = {key: value for key, value in {**good, **changes}.items() if key in of_lse}
        check_refused(kindling.softmax_lse, arguments, name, error)


def test_dtype_errors_name_what_was_given(torch, inputs):
    for wrong, word in ((inputs.q.astype("i8"), "int64"), (torch.zeros(8, 3, 8).long(), "int64")):
        with pytest.raises(TypeError, match=rf"^q: .*, got {word}$"):
            kindling.softmax_lse(wrong, inputs.k, inputs.w, **inputs.lengths)


def test_teacher_errors(inputs):
    good = {"q": inputs.q, "k": inputs.k, **inputs.lengths}
    for changes, name, error in (
        ({"q": np.zeros((8, 3), "f4")}, "q", ValueError),
        ({"k": np.zeros((13, 2, 8), "f4")}, "k", ValueError),
        ({"lse": np.zeros((1, 8), "f4")}, "lse", ValueError),
        ({"lse": np.zeros((1, 8, 3), "f2")}, "lse", TypeError),
        ({"max_seqlen_k": -1}, "max_seqlen_k", ValueError),
        ({"max_seqlen_k": 8}, "max_seqlen_k", ValueError),
        ({"max_seqlen_k": 2.0}, "max_seqlen_k", TypeError),
        ({"softmax_scale": "1"}, "softmax_scale", TypeError),
        ({"softmax_scale": True}, "softmax_scale", TypeError),
        ({"softmax_scale": np.nan}, "softmax_scale", ValueError),
        ({"softmax_scale": None}, "softmax_scale", TypeError),
        ({"out": np.zeros((8, 1, 8), "f4")}, "p", ValueError),
    ):
        check_refused(kindling.attention_l1_norm, {**good, **changes}, name, error)
    for same in (np.float32(0.5), 0.5, np.array(0.5)):
        kindling.attention_l1_norm(**good, softmax_scale=same)


def test_memory_that_nobody_has(inputs):
    """An output of a size that no machine gives is a MemoryError, not a crash."""
    q = np.broadcast_to(np.zeros(1, "f4"), (2**20, 2**20, 64, 128))
    k = np.broadcast_to(np.zeros(1, "f4"), (2**20, 4, 1, 128))
    w = np.broadcast_to(np.zeros(1, "f4"), (2**20, 2**20, 64))
    p = np.broadcast_to(np.zeros(1, "f4"), (2**20, 2**20, 1, 4))
    lse = np.broadcast_to(np.zeros(1, "f4"), (2**20, 1, 2**20))
    with pytest.raises(MemoryError):
        kindling.kl_loss_grad(q, k, w, p, lse)


def test_nothing_leaks(torch, inputs):
    """Arrays are let go of after good calls and bad ones."""
    x = [*inputs.tensors(), to_torch(inputs.q), Exchanged(to_torch(inputs.q))]
    before = [sys.getrefcount(item) for item in x]
    for q in (x[0], x[5], x[6]):
        for _ in range(10):
            kindling.kl_loss_grad(q, *x[1:5], **inputs.lengths)
            with pytest.raises(ValueError, match="^k: "):
                kindling.kl_loss_grad(q, x[0], *x[2:5], **inputs.lengths)
            with pytest.raises(TypeError, match="^lse: "):
                kindling.kl_loss_grad(q, *x[1:4], [1.0], **inputs.lengths)
    del q
    gc.collect()
    assert [sys.getrefcount(item) for item in x] == before
