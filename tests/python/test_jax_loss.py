"""indexer_kl_loss under JAX's transformations: grad, jit, vmap, checkpoint; what they refuse."""

from __future__ import annotations

import doctest
import re
from dataclasses import replace
from pathlib import Path

import cases
import kindling
import numpy as np
import pytest
from calls import bits
from cases import make_inputs

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402
import jax_cases as jc  # noqa: E402
from jax_cases import kj  # noqa: E402
from kindling import reference  # noqa: E402

ARGUMENTS = (0, 1, 2)  # q, k, w


def numpy_result(inputs, **options):
    lse = kindling.softmax_lse(inputs.q, inputs.k, inputs.w, **inputs.lengths)
    return kindling.kl_loss_grad(
        *inputs.tensors()[:4], lse, return_loss=True, **inputs.lengths, **options
    )


def assert_as_accurate(actual, plain, exact, what):
    """No further from the exact result than thrice plain JAX in low precision, or a few units in
    the last place of the largest element."""
    assert actual.shape == exact.shape and actual.dtype == plain.dtype, what
    if exact.size == 0:
        return
    error, plain_error = (abs(np.asarray(x).astype("f8") - exact).max() for x in (actual, plain))
    floor = 4 * float(jnp.finfo(actual.dtype).eps) * abs(exact).max()
    assert error <= 3 * plain_error + floor, f"{what}: off by {error:.3g}, plain {plain_error:.3g}"


@pytest.mark.parametrize("case", jc.OF_ALL_DTYPES + cases.sweep(2, "jax", mask_mode=3), ids=str)
def test_gradients_are_as_accurate_as_plain_jax(case):
    inputs = make_inputs(case)
    (q, k, w, p, _), lengths = jc.of_inputs(inputs)
    weight = np.random.default_rng(1).random(case.lse_shape(), dtype="f4")

    def results(loss_rows):
        def loss(q, k, w):
            rows = loss_rows(q, k, w, p)
            return (rows * weight).sum(), rows

        gradients, rows = jax.jit(jax.grad(loss, ARGUMENTS, has_aux=True))(q, k, w)
        return dict(zip(("dq", "dk", "dw", "loss_rows"), (*gradients, rows), strict=True))

    ours = results(lambda *x: kj.indexer_kl_loss(*x, reduction="none", **lengths))
    plain = results(lambda *x: jc.loss_rows(case, *x))
    lse = reference.softmax_lse(inputs.q, inputs.k, inputs.w, **inputs.lengths)
    exact = reference.kl_loss_grad(
        *inputs.tensors()[:4], lse, row_scale=weight, return_loss=True, **inputs.lengths
    )
    for name in ours:
        assert_as_accurate(ours[name], plain[name], getattr(exact, name), f"{name} of {case}")


@pytest.mark.parametrize("case", [jc.RAGGED, jc.PADDED], ids=str)
@pytest.mark.parametrize("compile", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_reductions(case, compile):
    inputs = make_inputs(replace(case, dtype="bfloat16"))
    (q, k, w, p, _), lengths = jc.of_inputs(inputs)
    num_rows = sum(case.num_rows)
    weight = np.random.default_rng(2).standard_normal(case.lse_shape()).astype("f4")
    own = numpy_result(inputs)
    own_rows = kindling.softmax_lse(inputs.q, inputs.k, inputs.w, p=inputs.p, **inputs.lengths)[1]
    total = own_rows.reshape(-1).astype("f8").cumsum()[-1]
    for reduction, loss, scale in (
        ("sum", np.float32(total), None),
        ("mean", np.float32(total / num_rows), np.float32(1 / np.float32(num_rows))),
        ("none", own_rows, weight),
    ):

        def of(q, k, w, reduction=reduction, scale=scale):
            rows = kj.indexer_kl_loss(q, k, w, p, reduction=reduction, **lengths)
            return (rows * scale).sum() if reduction == "none" else rows, rows

        value, gradients = compile(jax.value_and_grad(of, ARGUMENTS, has_aux=True))(q, k, w)
        assert bits(np.asarray(value[1])) == bits(loss)
        if scale is not None:
            scale = np.broadcast_to(scale, case.lse_shape())
        expected = own if scale is None else numpy_result(inputs, row_scale=scale)
        for x, y in zip(gradients, expected[:3], strict=True):
            assert bits(np.asarray(x)) == bits(y), reduction


def test_mean_counts_used_rows_only():
    case = jc.RAGGED
    (q, k, w, p, _), lengths = jc.arrays(case)
    total = kj.indexer_kl_loss(q, k, w, p, **lengths)
    mean = kj.indexer_kl_loss(q, k, w, p, reduction="mean", **lengths)
    assert q.shape[0] > sum(case.num_rows)
    np.testing.assert_allclose(mean, total / sum(case.num_rows), rtol=1e-6)
    none = lengths | {"seqused_q": jnp.zeros(2, jnp.int32)}
    value, dq = jax.value_and_grad(
        lambda q: kj.indexer_kl_loss(q, k, w, p, reduction="mean", **none)
    )(q)
    assert value == 0 and not dq.any()


def targets(function, *arguments):
    """How often each handler is called in what `function` is traced to."""
    text = str(jax.make_jaxpr(function)(*arguments))
    return {
        name: text.count(f"target_name=kindling_{name}\n")
        for name in ("softmax_lse", "kl_loss_grad")
    }


def test_one_pass_forward_and_one_backward():
    (q, k, w, p, lse), lengths = jc.arrays(jc.PADDED)

    def loss(q, k, w):
        return kj.indexer_kl_loss(q, k, w, p, **lengths)

    assert targets(loss, q, k, w) == {"softmax_lse": 1, "kl_loss_grad": 0}
    assert targets(jax.grad(loss, ARGUMENTS), q, k, w) == {"softmax_lse": 1, "kl_loss_grad": 1}


@pytest.mark.parametrize("case", [jc.RAGGED, jc.COMPRESSED], ids=str)
def test_given_lse(case):
    inputs = make_inputs(case)
    (q, k, w, p, _), lengths = jc.of_inputs(inputs)

    def of(q, k, w, lse):
        return kj.indexer_kl_loss(q, k, w, p, lse=lse, reduction="none", **lengths).sum()

    def from_q(q, k, w):  # lse follows q, and yet is a constant
        return of(q, k, w, kj.softmax_lse(q, k, w, **lengths))

    own = kj.softmax_lse(q, k, w, **lengths)
    plain = jax.value_and_grad(lambda *x: kj.indexer_kl_loss(*x, p, **lengths), ARGUMENTS)(q, k, w)
    first = jax.value_and_grad(of, ARGUMENTS)(q, k, w, own)
    for value in (
        first,
        jax.jit(jax.value_and_grad(from_q, ARGUMENTS))(q, k, w),
        # What belongs to rows that see no key is not read.
        jax.value_and_grad(of, ARGUMENTS)(q, k, w, jnp.where(own == -jnp.inf, jnp.nan, own)),
    ):
        assert value[0] == first[0]  # of the same pass, not of the gradient operator
        np.testing.assert_allclose(value[0], plain[0], rtol=1e-6)
        assert bits(tuple(map(np.asarray, value[1]))) == bits(tuple(map(np.asarray, plain[1])))

    other = np.where(np.isinf(own), 0, own + 0.5).astype("f4")
    expected = kindling.kl_loss_grad(
        *inputs.tensors()[:4], other, return_loss=True, **inputs.lengths
    )
    rows = kj.indexer_kl_loss(q, k, w, p, lse=other, reduction="none", **lengths)
    assert bits(np.asarray(rows)) == bits(expected.loss_rows)
    assert bits(np.asarray(jax.grad(of)(q, k, w, other))) == bits(expected.dq)


def test_teacher_and_lengths_are_constants():
    (q, k, w, p, lse), lengths = jc.arrays(jc.RAGGED)
    given, static = jc.split(lengths)

    def loss(p, lse, given):
        return kj.indexer_kl_loss(q, k, w, p, lse=lse, **given, **static)

    dp, dlse, dlengths = jax.grad(loss, (0, 1, 2), allow_int=True)(p, lse, given)
    assert dp.shape == p.shape and not dp.any() and not dlse.any()
    assert {name: x.dtype for name, x in dlengths.items()} == {
        name: jax.dtypes.float0 for name in given
    }

    def through_the_teacher(q):
        p = kj.attention_teacher(q, k, max_seqlen_k=17, **lengths)
        return kj.indexer_kl_loss(q, k, w, p, **lengths)

    p = kj.attention_teacher(q, k, max_seqlen_k=17, **lengths)
    expected = jax.grad(lambda q: kj.indexer_kl_loss(q, k, w, p, **lengths))(q)
    assert np.array_equal(jax.grad(through_the_teacher)(q), expected) and expected.any()


def test_nan_and_inf_stay_in_their_row():
    case = replace(jc.PADDED, mask_mode=0)
    (q, k, w, p, _), lengths = jc.arrays(case)

    def rows_and_grad(q):
        def loss(q):
            rows = kj.indexer_kl_loss(q, k, w, p, reduction="none", **lengths)
            return rows.sum(), rows

        (_, rows), dq = jax.value_and_grad(loss, has_aux=True)(q)
        return rows[:, 0], dq

    clean_rows, clean_dq = rows_and_grad(q)
    for bad in (jnp.nan, jnp.inf):
        rows, dq = rows_and_grad(q.at[0, 2, 0, 0].set(bad))
        keep = np.ones((2, 6), bool)
        keep[0, 2] = False
        assert not np.isfinite(rows[0, 2])
        assert np.array_equal(rows[keep], clean_rows[keep])
        assert np.array_equal(dq[keep], clean_dq[keep])


def test_vmap_is_a_loop():
    (q, k, w, p, _), lengths = jc.arrays(jc.RAGGED)
    given, static = jc.split(lengths)
    qs = jnp.stack([q, 2 * q, -q])
    lists = {name: jnp.stack([value] * 3) for name, value in given.items()}
    lists["seqused_q"] = jnp.array([[5, 3], [0, 2], [4, 4]], jnp.int32)
    call = jax.value_and_grad(
        lambda q, k, given: kj.indexer_kl_loss(q, k, w, p, **given, **static), (0, 1)
    )
    together = jax.jit(jax.vmap(call, (0, None, 0)))(qs, k, lists)
    for i in range(3):
        alone = call(qs[i], k, {name: value[i] for name, value in lists.items()})
        for x, y in zip(jax.tree.leaves(together), jax.tree.leaves(alone), strict=True):
            assert np.array_equal(x[i], y)

    def of_all(q, k):
        return jax.vmap(lambda q: kj.indexer_kl_loss(q, k, w, p, **lengths))(q).sum()

    dk = jax.grad(of_all, 1)(qs, k)  # k is shared, so its gradients add up
    alone = [jax.grad(lambda k, q=q: kj.indexer_kl_loss(q, k, w, p, **lengths))(k) for q in qs]
    np.testing.assert_allclose(dk, sum(alone), rtol=1e-6, atol=1e-6)


def test_checkpoint_scan_donation_and_leaks():
    (q, k, w, p, _), lengths = jc.arrays(jc.PADDED)

    def loss(q):
        return kj.indexer_kl_loss(q, k, w, p, **lengths)

    def scanned(q):
        return jax.lax.scan(lambda total, q: (total + loss(q), None), 0.0, jnp.stack([q, q]))[0]

    expected = jax.grad(loss)(q)
    with jax.checking_leaks():
        assert np.array_equal(jax.jit(jax.grad(jax.checkpoint(loss)))(q), expected)
        assert np.array_equal(jax.jit(jax.grad(scanned))(q), 2 * expected)
    assert jax.eval_shape(loss, q).shape == ()
    # A donated q may become dq only after its last use.
    donated = jnp.array(q)
    assert np.array_equal(jax.jit(jax.grad(loss), donate_argnums=0)(donated), expected)
    assert donated.is_deleted()


def test_what_cannot_be_differentiated_says_so():
    (q, k, w, p, lse), lengths = jc.arrays(jc.PADDED)

    def loss(q):
        return kj.indexer_kl_loss(q, k, w, p, **lengths)

    for f in (loss, jax.jit(loss)):
        with pytest.raises(NotImplementedError, match="^indexer_kl_loss: .*second derivative"):
            jax.grad(lambda q, f=f: (jax.grad(f)(q) ** 2).sum())(q)
        with pytest.raises(TypeError, match="forward-mode"):
            jax.jvp(f, (q,), (q,))
        with pytest.raises(TypeError, match="forward-mode"):
            jax.hessian(f)(q)
    with pytest.raises(NotImplementedError, match="^softmax_lse: expected no derivative"):
        jax.grad(lambda q: kj.softmax_lse(q, k, w, **lengths).sum())(q)
    with pytest.raises(NotImplementedError, match="^kl_loss_grad: expected no derivative"):
        jax.grad(lambda q: kj.kl_loss_grad(q, k, w, p, lse, **lengths).dw.sum())(q)


def test_trains():
    """Gradient descent takes an indexer towards its teacher, in one compiled step."""
    case = replace(jc.RAGGED, dtype="bfloat16")
    (q, k, w, p, _), lengths = jc.arrays(case, mass=1.0)

    @jax.jit
    def step(parameters):
        loss, gradients = jax.value_and_grad(
            lambda x: kj.indexer_kl_loss(*x, p, reduction="mean", **lengths)
        )(parameters)
        return loss, jax.tree.map(lambda x, g: x - x.dtype.type(0.2) * g, parameters, gradients)

    parameters, losses = (q, k, w), []
    for _ in range(30):
        loss, parameters = step(parameters)
        losses.append(float(loss))
    assert losses[-1] < 0.7 * losses[0] and parameters[0].dtype == jnp.bfloat16


def test_examples():
    result = doctest.testmod(kj._loss)
    assert result.attempted > 0 and result.failed == 0
    page = (Path(__file__).parents[2] / "docs" / "jax.md").read_text()
    names: dict = {}
    exec(re.search(r"```python\n(.*?)```", page, re.DOTALL).group(1), names)
    assert names["dq"].shape == (2, 256, 4, 32) and 0 < names["value"] < np.inf
