"""indexer_kl_loss under autograd: gradients, reductions, passes, checkpointing, AMP, training."""

from __future__ import annotations

from dataclasses import replace

import cases
import kindling
import pytest

torch = pytest.importorskip("torch")

import kindling.torch as kt  # noqa: E402
import kindling.torch.reference as reference  # noqa: E402
import torch_cases as tc  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

CASES = [tc.RAGGED, tc.PADDED, tc.COMPRESSED, tc.MIXED]
SWEEP = CASES + cases.sweep(10, "torch autograd", mask_mode=3)


def grads_of(loss, *inputs):
    return torch.autograd.grad(loss, inputs)


@pytest.fixture
def calls(monkeypatch):
    """Counts the library's calls."""
    counts = {"softmax_lse": 0, "kl_loss_grad": 0}
    core = kindling.torch._kernels._core

    class Counting:
        def __getattr__(self, name):
            if name in counts:
                counts[name] += 1
            return getattr(core, name)

    monkeypatch.setattr(kindling.torch._kernels, "_core", Counting())
    return counts


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("shape", SWEEP, ids=str)
def test_gradients_are_as_accurate_as_plain_torch(shape, dtype):
    case = replace(shape, dtype=dtype)
    (q, k, w, p, _), lengths = tc.tensors(case)
    torch.manual_seed(1)
    weight = torch.rand(case.lse_shape())

    def results(loss_rows, q, k, w, p):
        q, k, w = tc.leaves(q, k, w)
        rows = loss_rows(q, k, w, p)
        return [rows.detach(), *grads_of((rows * weight.to(rows.dtype)).sum(), q, k, w)]

    ours = results(lambda *x: kt.indexer_kl_loss(*x, reduction="none", **lengths), q, k, w, p)
    plain = results(lambda *x: tc.loss_rows(case, *x).float(), q, k, w, p)
    exact = results(
        lambda *x: tc.loss_rows(case, *x), q.double(), k.double(), w.double(), p.double()
    )
    if q.numel() == 0:
        assert all(a.shape == b.shape and not a.any() for a, b in zip(ours, plain, strict=True))
        return
    for name, a, b, c in zip(("loss", "dq", "dk", "dw"), ours, plain, exact, strict=True):
        if c.numel() > 0:
            tc.assert_as_accurate(a, b, c, f"{name} of {case}", factor=3.0)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_gradcheck_of_the_reference(case):
    (q, k, w, p, _), lengths = tc.tensors(replace(case, head_dim=3, num_heads=2))
    q, k, w = tc.leaves(q.double(), k.double(), w.double())

    def loss(q, k, w):
        return reference.indexer_kl_loss(q, k, w, p.double(), reduction="none", **lengths)

    assert torch.autograd.gradcheck(loss, (q, k, w), eps=1e-6, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_equals_the_reference(case):
    (q, k, w, p, _), lengths = tc.tensors(case)
    fast, slow = tc.leaves(q, k, w), tc.leaves(q, k, w)
    loss = kt.indexer_kl_loss(*fast, p, **lengths)
    exact = reference.indexer_kl_loss(*slow, p, **lengths)
    loss.backward()
    exact.backward()
    torch.testing.assert_close(loss.double(), exact, rtol=1e-5, atol=1e-5)
    for a, b in zip(fast, slow, strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-5)


# Reductions.


@pytest.mark.parametrize("case", CASES, ids=str)
def test_reductions(case):
    (q, k, w, p, lse), lengths = tc.tensors(case)
    total = kindling.kl_loss_grad(
        q, k, w, p, kindling.softmax_lse(q, k, w, **lengths), return_loss=True, **lengths
    )
    rows = kt.indexer_kl_loss(q, k, w, p, reduction="none", **lengths)
    assert rows.shape == case.lse_shape() and rows.dtype == torch.float32
    assert kt.indexer_kl_loss(q, k, w, p, **lengths).item() == pytest.approx(total.loss, rel=1e-6)
    mean = kt.indexer_kl_loss(q, k, w, p, reduction="mean", **lengths)
    assert mean.item() == pytest.approx(total.loss / sum(case.num_rows), rel=1e-6)
    assert rows.double().sum().item() == pytest.approx(total.loss, rel=1e-5)
    grads = {}
    for reduction, scale in (("sum", 1.0), ("mean", 1 / sum(case.num_rows)), ("none", 0.25)):
        leaves = tc.leaves(q, k, w)
        loss = kt.indexer_kl_loss(*leaves, p, reduction=reduction, **lengths)
        factor = 0.25 if reduction == "none" else 1.0
        grads[reduction] = grads_of((loss * factor).sum(), *leaves)
        for a, b in zip(grads[reduction], total[:3], strict=True):
            torch.testing.assert_close(a, b * scale, rtol=2e-5, atol=2e-6)


def test_mean_without_rows_is_zero():
    q, k, w = tc.leaves(torch.zeros(0, 2, 4), torch.zeros(3, 1, 4), torch.zeros(0, 2))
    cu = {
        "cu_seqlens_q": torch.tensor([0, 0], dtype=torch.int32),
        "cu_seqlens_k": torch.tensor([0, 3], dtype=torch.int32),
    }
    loss = kt.indexer_kl_loss(
        q, k, w, torch.zeros(0, 1, 3), layout_q="TND", layout_k="TND", reduction="mean", **cu
    )
    loss.backward()
    assert loss.item() == 0 and not k.grad.any()


def test_bad_options():
    (q, k, w, p, _), lengths = tc.tensors(tc.PADDED)
    with pytest.raises(ValueError, match='reduction: expected "sum", "mean" or "none", got "avg"'):
        kt.indexer_kl_loss(q, k, w, p, reduction="avg", **lengths)
    with pytest.raises(ValueError, match="grads_in_forward: expected False"):
        kt.indexer_kl_loss(q, k, w, p, reduction="none", grads_in_forward=True, **lengths)
    with pytest.raises(TypeError, match="q: expected dtype bfloat16, float16 or float32"):
        kt.indexer_kl_loss(q.double(), k.double(), w, p, **lengths)
    for lse in (torch.zeros(6), torch.zeros(2, 1, 6, dtype=torch.float64)):
        with pytest.raises((ValueError, TypeError), match="^lse: expected"):
            kt.indexer_kl_loss(q, k, w, p, lse=lse, **lengths)


# What runs when.


def test_passes(calls):
    (q, k, w, p, lse), lengths = tc.tensors(tc.RAGGED)
    lse = kindling.softmax_lse(q, k, w, **lengths)

    def count(**options):
        calls.update(softmax_lse=0, kl_loss_grad=0)
        loss = kt.indexer_kl_loss(*tc.leaves(q, k, w), p, **options, **lengths)
        forward = dict(calls)
        if loss.requires_grad:
            loss.sum().backward()
        return tuple(forward.values()), tuple(calls.values())

    assert count() == ((1, 0), (1, 1))
    assert count(reduction="none") == ((1, 0), (1, 1))
    assert count(lse=lse) == ((1, 0), (1, 1))
    assert count(grads_in_forward=True) == ((1, 1), (1, 1))
    assert count(grads_in_forward=True, lse=lse) == ((0, 1), (0, 1))
    with torch.no_grad():
        assert count() == ((1, 0), (1, 0))
        assert count(grads_in_forward=True) == ((1, 0), (1, 0))


def test_teacher_and_lse_are_constants():
    (q, k, w, p, lse), lengths = tc.tensors(tc.RAGGED)
    p, lse = tc.leaves(p, lse)
    (q,) = tc.leaves(q)
    loss = kt.indexer_kl_loss(q, k, w, p, lse=lse, **lengths)
    loss.backward()
    assert p.grad is None and lse.grad is None and q.grad is not None
    attn = torch.randn(4, 3, 2, 8, requires_grad=True)
    assert not kt.attention_teacher(attn, attn).requires_grad


@pytest.mark.parametrize("grads_in_forward", [False, True])
def test_a_given_lse_is_what_counts(grads_in_forward):
    (q, k, w, p, lse), lengths = tc.tensors(tc.RAGGED)
    for given in (kindling.softmax_lse(q, k, w, **lengths), lse + 0.5):
        expected = kindling.kl_loss_grad(q, k, w, p, given, return_loss=True, **lengths)
        leaves = tc.leaves(q, k, w)
        loss = kt.indexer_kl_loss(
            *leaves, p, lse=given, grads_in_forward=grads_in_forward, **lengths
        )
        assert loss.item() == pytest.approx(expected.loss, rel=1e-6)
        for a, b in zip(grads_of(loss, *leaves), expected[:3], strict=True):
            assert torch.equal(a, b)


@pytest.mark.parametrize("reduction", ["sum", "mean"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gradients_in_the_forward_pass(dtype, reduction):
    (q, k, w, p, _), lengths = tc.tensors(replace(tc.RAGGED, dtype=dtype))
    results = []
    for grads_in_forward in (False, True):
        leaves = tc.leaves(q, k, w)
        loss = kt.indexer_kl_loss(
            *leaves, p, reduction=reduction, grads_in_forward=grads_in_forward, **lengths
        )
        results.append((loss, *grads_of(3 * loss, *leaves)))
    tolerance = 2e-6 if dtype == "float32" else 2**-7
    for a, b in zip(*results, strict=True):
        assert a.dtype == b.dtype
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance * a.abs().max().item())


def test_metadata_changes_nothing():
    (q, k, w, p, _), lengths = tc.tensors(tc.RAGGED)
    record = kindling.make_metadata(8, 1, 128, num_cores=3, **tc.metadata_arguments(tc.RAGGED))
    results = []
    for metadata in (None, record):
        leaves = tc.leaves(q, k, w)
        loss = kt.indexer_kl_loss(*leaves, p, metadata=metadata, **lengths)
        results.append((loss, *grads_of(loss, *leaves)))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_threads_change_nothing():
    case = replace(tc.RAGGED, num_rows=(200, 130), num_keys=(300, 290), num_heads=8)
    (q, k, w, p, _), lengths = tc.tensors(case)
    before = kindling.get_num_threads()
    results = []
    try:
        for num_threads in (1, 2, 5):
            kindling.set_num_threads(num_threads)
            leaves = tc.leaves(q, k, w)
            loss = kt.indexer_kl_loss(*leaves, p, reduction="mean", **lengths)
            results.append((loss, *grads_of(loss, *leaves)))
    finally:
        kindling.set_num_threads(before)
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


def test_second_derivatives_are_refused():
    (q, k, w, p, _), lengths = tc.tensors(tc.RAGGED)
    (q,) = tc.leaves(q)
    (dq,) = torch.autograd.grad(kt.indexer_kl_loss(q, k, w, p, **lengths), q, create_graph=True)
    with pytest.raises(NotImplementedError, match="expected to be differentiated once"):
        dq.sum().backward()


def test_vmap_is_refused_readably():
    (q, k, w, p, _), lengths = tc.tensors(tc.PADDED)
    with pytest.raises(NotImplementedError, match="indexer_kl_loss: expected a call outside"):
        torch.vmap(lambda q: kt.indexer_kl_loss(q, k, w, p, **lengths))(q[None])


# Checkpointing, AMP, training.


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpointing(use_reentrant):
    (q, k, w, p, _), lengths = tc.tensors(tc.RAGGED)

    def loss(q, k, w):
        return kt.indexer_kl_loss(q * 1.5, k, w, p, reduction="mean", **lengths)

    plain, saved = tc.leaves(q, k, w), tc.leaves(q, k, w)
    loss(*plain).backward()
    checkpoint(loss, *saved, use_reentrant=use_reentrant).backward()
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(plain, saved, strict=True))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_scaled_loss_loses_nothing(dtype):
    """A power of two as row_scale changes exponents only."""
    (q, k, w, p, _), lengths = tc.tensors(replace(tc.RAGGED, dtype=dtype))
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    plain, scaled = tc.leaves(q, k, w), tc.leaves(q, k, w)
    kt.indexer_kl_loss(*plain, p, **lengths).backward()
    optimizer = torch.optim.SGD(scaled, lr=0.0)
    scaler.scale(kt.indexer_kl_loss(*scaled, p, **lengths)).backward()
    scaler.unscale_(optimizer)
    for a, b in zip(plain, scaled, strict=True):
        assert torch.equal(a.grad, b.grad)


def test_grad_scaler_skips_a_step_that_overflows():
    (q, k, w, p, _), lengths = tc.tensors(replace(tc.RAGGED, dtype="float16"))
    (w,) = tc.leaves(w)
    before = w.detach().clone()
    optimizer = torch.optim.SGD([w], lr=1.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    loss = kt.indexer_kl_loss(q, k, w, p, **lengths)
    scaler.scale(loss * torch.inf).backward()
    scaler.step(optimizer)
    scaler.update()
    assert torch.equal(w, before) and scaler.get_scale() == 2.0**15


def train(case, loss_of, dtype, amp_dtype=None):
    """Ten steps of a small indexer; the loss of every step and the final weights."""
    torch.manual_seed(3)
    rows = case.row_shape()
    hidden = torch.randn(*rows, 24)
    (*_, p, _), lengths = tc.tensors(case)
    heads, width = case.num_heads, case.head_dim
    maps = torch.nn.ModuleList(
        torch.nn.Linear(24, n, bias=False) for n in (heads * width, width, heads)
    ).to(dtype)
    optimizer = torch.optim.Adam(maps.parameters(), lr=1e-2)
    hidden, p = hidden.to(dtype), p.to(torch.promote_types(dtype, torch.float32))
    losses = []
    for _ in range(10):
        optimizer.zero_grad()
        with torch.autocast("cpu", amp_dtype or torch.bfloat16, enabled=amp_dtype is not None):
            q, k, w = (linear(hidden) for linear in maps)
            q, k = q.view(*rows, heads, width), k.view(*rows, 1, width)
            loss = loss_of(q, k, w * width**-0.5, p, lengths)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return torch.tensor(losses).double(), torch.cat([m.weight.flatten() for m in maps]).double()


@pytest.mark.parametrize("amp_dtype", [None, torch.bfloat16])
def test_ten_steps_as_plain_torch(amp_dtype):
    lengths = (20, 13)
    case = cases.Case(lengths, lengths, "TND", "TND", num_heads=4, head_dim=16)

    def ours(q, k, w, p, lengths):
        return kt.indexer_kl_loss(q, k, w, p, reduction="mean", **lengths)

    def plain(q, k, w, p, lengths):
        with torch.autocast("cpu", enabled=False):
            return tc.loss_rows(case, q, k, w.to(p.dtype), p).sum() / 33

    results = train(case, ours, torch.float32, amp_dtype)
    low = train(case, plain, torch.float32, amp_dtype)
    exact = train(case, plain, torch.float64)
    assert results[0][-1] < 0.7 * results[0][0]
    for name, a, b, c in zip(("loss", "weights"), results, low, exact, strict=True):
        error, bound = (a - c).abs().max().item(), (b - c).abs().max().item()
        floor = 1e-5 if amp_dtype is None else 0
        assert error <= 2 * bound + floor, f"{name}: off by {error:.3g}, torch by {bound:.3g}"


def test_second_derivatives_are_refused_either_way():
    (q, k, w, p, _), lengths = tc.tensors(tc.PADDED)
    for options in ({}, {"grads_in_forward": True}):
        with pytest.raises(NotImplementedError, match="indexer_kl_loss: expected"):
            torch.autograd.functional.hessian(
                lambda x, options=options: kt.indexer_kl_loss(x, k, w, p, **lengths, **options), q
            )


def test_lse_of_rows_that_see_no_key_is_not_read():
    q, k, w = torch.randn(2, 7, 3, 8), torch.randn(2, 9, 1, 8), torch.randn(2, 7, 3)
    p = torch.softmax(torch.randn(2, 7, 1, 9), -1)
    used = torch.tensor([3, 7], dtype=torch.int32)
    lse = kindling.softmax_lse(q, k, w, seqused_q=used)
    poisoned = lse.clone()
    poisoned[0, 0, 3:] = torch.nan

    def rows(lse):
        return kt.indexer_kl_loss(q, k, w, p, seqused_q=used, lse=lse, reduction="none")

    assert torch.equal(rows(lse), rows(poisoned))


@pytest.mark.parametrize(
    ("bad", "error", "argument"),
    [
        ({"p": None}, TypeError, "p"),
        ({"seqused_q": [1, 1]}, TypeError, "seqused_q"),
        ({"layout_q": None}, TypeError, "layout_q"),
        ({"mask_mode": 3.0}, TypeError, "mask_mode"),
        ({"cmp_ratio": 2**70}, ValueError, "cmp_ratio"),
    ],
)
def test_arguments_of_another_type_are_named(bad, error, argument):
    q, k, w = torch.randn(2, 7, 3, 8), torch.randn(2, 9, 1, 8), torch.randn(2, 7, 3)
    arguments = {"q": q, "k": k, "w": w, "p": torch.rand(2, 7, 1, 9)} | bad
    with pytest.raises(error, match=f"^{argument}: expected"):
        kt.indexer_kl_loss(**arguments)


def test_what_cannot_be_differentiated_does_not_require_grad():
    q, k, w = (
        torch.randn(2, 7, 3, 8, requires_grad=True),
        torch.randn(2, 9, 1, 8),
        torch.rand(2, 7, 3),
    )
    lse = torch.ops.kindling.dense_lightning_indexer_softmax_lse(q, k, w)
    assert not lse.requires_grad


def test_a_record_of_meta_tensors_is_a_meta_tensor():
    record = torch.ops.kindling.dense_lightning_indexer_kl_loss_grad_metadata(
        8,
        1,
        128,
        batch_size=1,
        max_seqlen_q=4,
        max_seqlen_k=4,
        seqused_q=torch.zeros(1, dtype=torch.int32, device="meta"),
    )
    assert record.device.type == "meta"
