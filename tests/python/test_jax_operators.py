"""kindling.jax beside kindling: the same bits, eagerly and compiled, on many threads at once."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from dataclasses import replace

import cases
import kindling
import numpy as np
import pytest
from calls import bits, grads, main_attention
from cases import make_inputs

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402
import jax_cases as jc  # noqa: E402
from jax_cases import kj  # noqa: E402


def as_numpy(result):
    """What came from JAX as NumPy, in the same tuple."""
    return jax.tree.map(np.asarray, result)


def how_to_call(function, lengths, how):
    """`function` of arrays and keyword arguments as it is, or compiled with lengths as operands."""
    given, static = jc.split(lengths)
    if how == "eager":
        return lambda *arrays, **options: function(*arrays, **lengths, **options)
    return lambda *arrays, **options: jax.jit(
        lambda arrays, given: function(*arrays, **given, **static, **options)
    )(arrays, given)


@pytest.mark.parametrize("how", ["eager", "jit"])
@pytest.mark.parametrize("case", jc.OF_ALL_DTYPES + cases.sweep(5, "jax"), ids=str)
def test_same_bits_as_numpy(case, how):
    inputs = make_inputs(case)
    (q, k, w, p, lse), lengths = jc.of_inputs(inputs)
    scale = np.random.default_rng(1).standard_normal(inputs.lse.shape).astype("f4")

    softmax_lse = how_to_call(kj.softmax_lse, lengths, how)
    expected = kindling.softmax_lse(inputs.q, inputs.k, inputs.w, **inputs.lengths)
    assert bits(np.asarray(softmax_lse(q, k, w))) == bits(expected)
    both = kindling.softmax_lse(inputs.q, inputs.k, inputs.w, p=inputs.p, **inputs.lengths)
    if how == "eager":
        assert bits(as_numpy(softmax_lse(q, k, w, p=p))) == bits(both)

    kl_loss_grad = how_to_call(kj.kl_loss_grad, lengths, how)
    for options in ({}, {"return_softmax": False, "grad_dtype": "float32"}):
        result = kl_loss_grad(q, k, w, p, lse, return_loss=True, **options)
        assert isinstance(result, kindling.KLLossGrad)
        assert bits(as_numpy(result)) == bits(grads(inputs, **options))
    if how == "eager":
        result = kl_loss_grad(q, k, w, p, lse, row_scale=jnp.asarray(scale))
        assert bits(as_numpy(result)) == bits(grads(inputs, row_scale=scale, return_loss=False))


@pytest.mark.parametrize("how", ["eager", "jit"])
@pytest.mark.parametrize("case", jc.CASES, ids=str)
@pytest.mark.parametrize("key_heads", [1, 2])
def test_teacher_has_the_bits_of_numpy(case, key_heads, how):
    case = replace(case, dtype="bfloat16")
    q, k, lse = main_attention(case, 4, key_heads, 24)
    lengths = case.lengths()
    width = case.teacher_stride() + 2
    _, as_jax = jc.arrays(case)
    teacher = how_to_call(kj.attention_teacher, as_jax, how)
    for given in ((q, k), (q, k, lse)):
        expected = kindling.attention_l1_norm(
            *given, softmax_scale=0.25, max_seqlen_k=width, **lengths
        )
        p = teacher(*map(jnp.asarray, given), softmax_scale=0.25, max_seqlen_k=width)
        assert bits(np.asarray(p)) == bits(expected)


@pytest.mark.parametrize("case", jc.CASES, ids=str)
def test_numpy_arrays_are_taken_as_they_are(case):
    inputs = make_inputs(case)
    lse = kj.softmax_lse(inputs.q, inputs.k, inputs.w, **inputs.lengths)
    assert isinstance(lse, jax.Array)
    q = np.asfortranarray(inputs.q)
    assert bits(np.asarray(kj.softmax_lse(q, inputs.k, inputs.w, **inputs.lengths))) == bits(
        np.asarray(lse)
    )


def test_what_must_not_be_read_may_be_nan():
    case = replace(jc.RAGGED, spare_p=3)
    inputs = make_inputs(case)
    clean, poisoned = (jc.of_inputs(x) for x in (inputs, cases.poison(case, inputs)))
    a, b = (
        as_numpy(kj.kl_loss_grad(*arrays, return_loss=True, **lengths))
        for arrays, lengths in (clean, poisoned)
    )
    assert bits(a) == bits(b)


def test_other_lengths_need_no_compilation():
    case = replace(jc.RAGGED, spare_q=0, spare_k=0)
    inputs = make_inputs(case)
    (q, k, w, p, _), lengths = jc.of_inputs(inputs)
    given, static = jc.split(lengths)
    traces = []

    @jax.jit
    def step(q, given):
        traces.append(1)
        return jax.value_and_grad(lambda q: kj.indexer_kl_loss(q, k, w, p, **given, **static))(q)

    seen = set()
    plain = inputs.tensors()[:3]
    for cu in ([0, 5, 8], [0, 1, 8], [0, 8, 8]):
        cu = np.array(cu, np.int32)
        keys = np.array([0, 9, 13], np.int32)
        now = inputs.lengths | {"cu_seqlens_q": cu, "cu_seqlens_k": keys}
        loss, dq = step(q, {"cu_seqlens_q": cu, "cu_seqlens_k": keys})
        lse, loss_rows = kindling.softmax_lse(*plain, p=inputs.p, **now)
        expected = kindling.kl_loss_grad(*plain, inputs.p, lse, **now)
        assert bits(np.asarray(dq)) == bits(expected.dq)
        assert float(loss) == np.float32(loss_rows.astype("f8").sum())
        seen.add(float(loss))
    assert len(traces) == 1 and len(seen) == 3


def test_callers_on_many_threads():
    inputs = make_inputs(jc.RAGGED)
    arrays, lengths = jc.of_inputs(inputs)
    expected = bits(grads(inputs))
    call = jax.jit(lambda *arrays: kj.kl_loss_grad(*arrays, return_loss=True, **lengths))
    call(*arrays)
    wrong = []

    def work() -> None:
        for _ in range(20):
            if bits(as_numpy(call(*arrays))) != expected:
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_gil_is_free_while_a_call_runs():
    """While one thread computes, this one is never held up for a large part of that time."""
    random = np.random.default_rng(0)
    q = random.standard_normal((1, 600, 8, 64), dtype="f4")
    k = random.standard_normal((1, 3000, 1, 64), dtype="f4")
    w = random.standard_normal((1, 600, 8), dtype="f4")
    call = jax.jit(kj.softmax_lse).lower(q, k, w).compile()
    seconds = []

    def compute() -> None:
        start = time.perf_counter()
        call(q, k, w).block_until_ready()
        seconds.append(time.perf_counter() - start)

    before_threads = kindling.get_num_threads()
    kindling.set_num_threads(1)
    try:
        worker = threading.Thread(target=compute)
        worker.start()
        longest_gap, before = 0.0, time.perf_counter()
        while worker.is_alive():
            now = time.perf_counter()
            longest_gap, before = max(longest_gap, now - before), now
        worker.join()
    finally:
        kindling.set_num_threads(before_threads)
    assert longest_gap < 0.6 * seconds[0]


@pytest.mark.parametrize("shape", [(0, 4), (3, 0), (2, 4)], ids=str)
@pytest.mark.parametrize("num_keys", [0, 5])
def test_arrays_without_elements(shape, num_keys):
    batches, length = shape
    q, w = np.zeros((*shape, 2, 8), "f4"), np.zeros((*shape, 2), "f4")
    k, p = np.zeros((batches, num_keys, 1, 8), "f4"), np.zeros((*shape, 1, num_keys), "f4")
    lse = kindling.softmax_lse(q, k, w)
    assert bits(np.asarray(kj.softmax_lse(q, k, w))) == bits(lse)
    assert bits(as_numpy(kj.softmax_lse(q, k, w, p=p))) == bits(kindling.softmax_lse(q, k, w, p=p))
    assert bits(as_numpy(kj.kl_loss_grad(q, k, w, p, lse))) == bits(
        kindling.kl_loss_grad(q, k, w, p, lse)
    )
    assert kj.indexer_kl_loss(q, k, w, p, reduction="mean") == 0


def run(code: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        check=False,
    )


def test_imports():
    assert run("import kindling, sys; print('jax' in sys.modules)").stdout == "False\n"
    result = run("from kindling import _core; _core.jax_handlers = {}; import kindling.jax")
    assert result.returncode != 0
    assert "ImportError: kindling.jax: expected a package that was built with" in result.stderr
    assert "KINDLING_JAX=1 pip install ." in result.stderr
