"""Bad input to kindling.jax: found while tracing where shapes and dtypes tell, else when run."""

from __future__ import annotations

import kindling
import ml_dtypes
import numpy as np
import pytest
from cases import make_inputs

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402
import jax_cases as jc  # noqa: E402
from jax_cases import kj  # noqa: E402

INPUTS = make_inputs(jc.RAGGED)
NAMES = ("q", "k", "w", "p", "lse")
GOOD = dict(zip(NAMES, INPUTS.tensors(), strict=True)) | INPUTS.lengths
I4 = np.int32

# What shapes, dtypes and attributes tell.
WHILE_TRACING = {
    "rank of q": {"q": GOOD["q"][0]},
    "rank above four": {"q": GOOD["q"][None, None, None]},
    "dtype of q": {"q": GOOD["q"].astype("i4")},
    "dtype of k": {"k": GOOD["k"].astype("f2")},
    "small float": {"q": GOOD["q"].astype(ml_dtypes.float8_e5m2)},
    "width of k": {"k": GOOD["k"][..., :5]},
    "heads of k": {"k": np.repeat(GOOD["k"], 2, 1)},
    "rows of w": {"w": GOOD["w"][1:]},
    "dtype of w": {"w": GOOD["w"].astype("f2")},
    "rows of p": {"p": GOOD["p"][1:]},
    "rank of lse": {"lse": GOOD["lse"][0]},
    "no cu_seqlens_q": {"cu_seqlens_q": None},
    "dtype of lengths": {"seqused_k": GOOD["seqused_k"].astype("i2")},
    "rank of lengths": {"seqused_k": GOOD["seqused_k"][None]},
    "batches": {"cu_seqlens_k": np.array([0, 17], I4)},
    "residual": {"cmp_residual_k": np.zeros(3, I4)},
    "no residual": {"cmp_ratio": 4},
    "layout": {"layout_q": "BNSD"},
    "layout of k": {"layout_k": "BSND"},
    "mask": {"mask_mode": 1},
    "ratio": {"cmp_ratio": 129},
    "huge ratio": {"cmp_ratio": 2**64},
    "bool": {"mask_mode": True},
    "float": {"mask_mode": 3.0},
    "row_scale": {"row_scale": np.ones((1, 9), "f4")},
    "grad_dtype": {"grad_dtype": "float16"},
}

# What only the values of lengths tell.
WHEN_RUN = {
    "start": {"cu_seqlens_q": np.array([1, 6, 10], I4)},
    "order": {"cu_seqlens_q": np.array([0, 11, 10], I4)},
    "total": {"cu_seqlens_k": np.array([0, 11, 16], I4)},
    "used": {"seqused_q": np.array([5, 5], I4)},
    "negative": {"seqused_k": np.array([-1, 4], I4)},
    "residual": {"cmp_residual_k": np.array([0, 1], I4)},
    "narrow p": {"p": GOOD["p"][..., :8]},
}


def call(module, wrong):
    return module.kl_loss_grad(**{"return_softmax": False} | GOOD | wrong)


def message_of(error_type, function):
    with pytest.raises(error_type) as raised:
        function()
    return str(raised.value)


@pytest.mark.parametrize("what", WHILE_TRACING)
def test_found_while_tracing(what):
    wrong = WHILE_TRACING[what]
    with pytest.raises((ValueError, TypeError)) as expected:
        call(kindling, wrong)
    text = str(expected.value)
    assert ": expected " in text
    kind = type(expected.value)
    assert message_of(kind, lambda: call(kj, wrong)) == text
    # The same under jit, before anything is compiled.
    attributes = {n: v for n, v in (GOOD | wrong).items() if not isinstance(v, np.ndarray)}
    given = {n: v for n, v in (GOOD | wrong).items() if isinstance(v, np.ndarray)}
    traced = jax.jit(lambda given: call(kj, given | attributes))
    assert message_of(kind, lambda: traced.trace(given)) == text


@pytest.mark.parametrize("what", WHEN_RUN)
def test_found_when_run(what):
    wrong = WHEN_RUN[what]
    expected = message_of(ValueError, lambda: call(kindling, wrong))
    assert expected.startswith(f"{next(iter(wrong))}")
    static = {n: v for n, v in GOOD.items() if not isinstance(v, np.ndarray)}
    compiled = jax.jit(lambda given: call(kj, given | static))
    for function in (lambda given: call(kj, given | static), compiled):
        given = {n: v for n, v in (GOOD | wrong).items() if n not in static}
        text = message_of(
            jax.errors.JaxRuntimeError, lambda f=function, x=given: jax.block_until_ready(f(x))
        )
        assert expected in text and "INVALID_ARGUMENT" in text
    # What was compiled is none the worse for it.
    good = {n: v for n, v in GOOD.items() if n not in static}
    if what != "narrow p":
        good |= {n: np.zeros_like(v) for n, v in wrong.items() if n not in good}
    result = jax.jit(lambda given: call(kj, given | static))(good)
    assert np.array_equal(result.dq, call(kindling, {}).dq)


def test_loss_and_softmax_lse_find_the_same():
    q, k, w, p = (GOOD[name] for name in NAMES[:4])
    for name in ("q", "k", "w", "p"):
        for wrong in (GOOD[name][0], GOOD[name].astype("i4")):
            arrays = {"q": q, "k": k, "w": w, "p": p} | {name: wrong}
            with pytest.raises((TypeError, ValueError), match=f"^{name}: expected "):
                kj.indexer_kl_loss(**arrays, **INPUTS.lengths)
            with pytest.raises((TypeError, ValueError), match=f"^{name}: expected "):
                kj.softmax_lse(**arrays, **INPUTS.lengths)
    with pytest.raises(ValueError, match=r"^lse: expected shape \(N2=1, T1=10\), got \(1, 9\)"):
        kj.indexer_kl_loss(q, k, w, p, lse=GOOD["lse"][:, 1:], **INPUTS.lengths)
    with pytest.raises(ValueError, match='^reduction: expected .* got "max"'):
        kj.indexer_kl_loss(q, k, w, p, reduction="max", **INPUTS.lengths)
    bad = INPUTS.lengths | {"cu_seqlens_q": np.array([0, 6, 9], I4)}
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"cu_seqlens_q\[2\]: expected 10 = "):
        kj.indexer_kl_loss(q, k, w, p, reduction="mean", **bad).block_until_ready()
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"cu_seqlens_q\[2\]: expected 10 = "):
        jax.grad(lambda w: kj.indexer_kl_loss(q, k, w, p, **bad))(w).block_until_ready()


def test_teacher():
    q, k = GOOD["q"], GOOD["k"]
    lengths = INPUTS.lengths
    for wrong, error, text in (
        ({}, ValueError, "max_seqlen_k: expected > 0 where a layout is TND"),
        ({"max_seqlen_k": -1}, ValueError, "max_seqlen_k: expected >= 0, got -1"),
        ({"max_seqlen_k": 2.0}, TypeError, "max_seqlen_k: expected an integer, got float"),
        ({"softmax_scale": np.inf}, ValueError, "softmax_scale: expected a finite fp32 number"),
        ({"softmax_scale": "1"}, TypeError, "softmax_scale: expected a real number, got str"),
        ({"lse": np.ones((1, 10), "f4")}, ValueError, r"lse: expected shape \(N2=1, T1=10, G=3\)"),
    ):
        with pytest.raises(error, match=f"^{text}"):
            kj.attention_teacher(q, k, **({"max_seqlen_k": 9} if wrong else {}) | wrong, **lengths)
    with pytest.raises(jax.errors.JaxRuntimeError, match="max_seqlen_k: expected last dim >= 9"):
        jax.jit(lambda q: kj.attention_teacher(q, k, max_seqlen_k=8, **lengths))(
            q
        ).block_until_ready()


def test_what_is_no_array():
    q, k, w, p = (GOOD[name] for name in NAMES[:4])
    for wrong, got in (([1.0], "list"), (None, "None"), (1.0, "float"), ("q", "str")):
        with pytest.raises(TypeError, match=f"^q: expected a JAX or NumPy array, got {got}"):
            kj.indexer_kl_loss(wrong, k, w, p, **INPUTS.lengths)
    with pytest.raises(TypeError, match="^seqused_q: expected a JAX or NumPy array, got list"):
        kj.softmax_lse(q, k, w, **INPUTS.lengths | {"seqused_q": [5, 3]})
    with pytest.raises(TypeError, match=r"^w: expected an array of numbers, got dtype key"):
        kj.softmax_lse(q, k, jax.random.key(0), **INPUTS.lengths)
    # JAX would narrow these without a word.
    with pytest.raises(TypeError, match="^w: expected dtype float32, got float64"):
        kj.softmax_lse(q, k, w.astype("f8"), **INPUTS.lengths)
    with pytest.raises(TypeError, match="^cu_seqlens_q: expected dtype int32, got int64"):
        wide = INPUTS.lengths["cu_seqlens_q"].astype("i8")
        kj.softmax_lse(q, k, w, **INPUTS.lengths | {"cu_seqlens_q": wide})


class Index:
    """An integer of somebody else's."""

    def __init__(self, value):
        self.value = value

    def __index__(self):
        return self.value


@pytest.mark.parametrize("integer", [np.int64, np.array, Index], ids=str)
def test_integers_of_other_libraries(integer):
    lengths = INPUTS.lengths
    q, k, w = (GOOD[name] for name in NAMES[:3])
    same = lengths | {"mask_mode": integer(3), "cmp_ratio": integer(1)}
    for jit in (lambda function: function, jax.jit):
        result = jit(lambda q: kj.softmax_lse(q, k, w, **same))(q)
        assert np.array_equal(result, kindling.softmax_lse(q, k, w, **lengths))
        result = jit(
            lambda q: kj.attention_teacher(
                q, k, max_seqlen_k=integer(12), softmax_scale=integer(1), **same
            )
        )(q)
        assert np.array_equal(result, kindling.attention_teacher(q, k, max_seqlen_k=12, **lengths))
    for wrong in (3.0, True, np.float32(3), np.array([3, 3])):
        with pytest.raises(TypeError, match="^mask_mode: expected an integer, got "):
            kj.softmax_lse(q, k, w, **lengths | {"mask_mode": wrong})


def test_masked_arrays():
    for name in ("q", "p", "cu_seqlens_q"):
        with pytest.raises(TypeError, match=f"^{name}: expected an array without a mask"):
            call(kj, {name: np.ma.array(GOOD[name])})


@pytest.mark.parametrize("name", ["mask_mode", "cmp_ratio", "max_seqlen_k", "softmax_scale"])
def test_attributes_must_be_known_while_tracing(name):
    lengths = {n: v for n, v in INPUTS.lengths.items() if n != name}
    options = {"max_seqlen_k": 9} | lengths
    options.pop(name, None)
    with pytest.raises(TypeError, match=f"^{name}: expected an? .* known while tracing"):
        jax.jit(lambda x: kj.attention_teacher(GOOD["q"], GOOD["k"], **{name: x}, **options))(1)


def test_shapes_must_be_numbers():
    export = pytest.importorskip("jax.export", exc_type=ImportError)

    b, t = export.symbolic_shape("b, t")
    shapes = [(b, t, 2, 8), (b, t, 1, 8), (b, t, 2)]
    arguments = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    with pytest.raises(TypeError, match=r"^q: expected a shape of numbers, got \(b, t, 2, 8\)"):
        export.export(jax.jit(lambda q, k, w: kj.softmax_lse(q, k, w)))(*arguments)
