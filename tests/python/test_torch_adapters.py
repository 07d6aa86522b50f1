"""docs/torch.md: its example, and its table of conventions, each line against plain torch."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import kindling.torch as kt  # noqa: E402
import torch_cases as tc  # noqa: E402
from torch.nn.functional import kl_div  # noqa: E402

BATCH, LENGTH, HEADS, WIDTH, MAIN_HEADS = 2, 6, 3, 8, 4
SEEN = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()


@pytest.fixture
def case():
    """q, k, w that require grad, and the main attention of every head, (B, S, G, S)."""
    torch.manual_seed(0)
    q, k, w = tc.leaves(
        torch.randn(BATCH, LENGTH, HEADS, WIDTH),
        torch.randn(BATCH, LENGTH, 1, WIDTH),
        torch.randn(BATCH, LENGTH, HEADS),
    )
    scores = torch.randn(BATCH, LENGTH, MAIN_HEADS, LENGTH)
    attention = scores.masked_fill(~SEEN[:, None], -torch.inf).softmax(-1)
    return (q, k, w), attention


def ln_student(q, k, w, score_scale=1.0):
    """ln y of every row and key, (B, S, S); very negative where a key is not seen."""
    scores = torch.einsum("bshd,btd->bsht", q, k[:, :, 0]) * score_scale
    logits = torch.einsum("bsht,bsh->bst", scores.relu(), w)
    return logits.masked_fill(~SEEN, -1e30).log_softmax(-1)


def terms(p, ln_y):
    return torch.xlogy(p, p) - p * ln_y


def same(inputs, ours, theirs):
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    ours, theirs = (torch.autograd.grad(loss, inputs) for loss in (ours, theirs))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)


def loss(inputs, p, **options):
    """p (B, S, S)."""
    return kt.indexer_kl_loss(*inputs, p[:, :, None], mask_mode=3, **options)


def test_the_example_of_the_docs():
    docs = Path(__file__).resolve().parents[2] / "docs" / "torch.md"
    (code,) = re.findall(r"```python\n(.*?)```", docs.read_text(), re.DOTALL)
    names: dict = {}
    exec(code, names)
    assert names["best"].indices.shape == (2, 256, 32)
    assert all(x.grad.isfinite().all() for x in names["indexer"].parameters())


def test_target_is_the_mean_over_heads(case):
    inputs, attention = case
    p = attention.mean(2)
    same(inputs, loss(inputs, p), terms(p, ln_student(*inputs)).sum())


def test_target_is_the_sum_over_heads_made_to_sum_to_one(case):
    inputs, attention = case
    target = attention.sum(2)
    target = target / target.sum(-1, keepdim=True)
    same(inputs, loss(inputs, attention.mean(2)), terms(target, ln_student(*inputs)).sum())


def test_target_is_the_sum_over_heads_as_it_is(case):
    inputs, attention = case
    target = attention.sum(2)
    theirs = terms(target, ln_student(*inputs)).sum()
    same(inputs, loss(inputs, MAIN_HEADS * attention.mean(2)), theirs)


def test_normalised_first(case):
    inputs, attention = case
    p = 0.3 * attention.mean(2)
    mass = p.sum(-1)
    target = p / mass[..., None]
    same(inputs, loss(inputs, target), terms(target, ln_student(*inputs)).sum())
    rows = loss(inputs, p, reduction="none")[:, 0]
    ours = ((rows - mass * mass.log()) / mass).sum()
    same(inputs, ours, terms(target, ln_student(*inputs)).sum())


def test_per_token(case):
    inputs, attention = case
    p = attention.mean(2)
    theirs = terms(p, ln_student(*inputs)).sum(-1).mean()
    same(inputs, loss(inputs, p, reduction="mean"), theirs)
    flat = ln_student(*inputs).flatten(0, 1), p.flatten(0, 1)
    same(inputs, loss(inputs, p, reduction="mean"), kl_div(*flat, reduction="batchmean"))


def test_per_batch(case):
    inputs, attention = case
    p = attention.mean(2)
    theirs = kl_div(ln_student(*inputs), p, reduction="batchmean")
    same(inputs, loss(inputs, p) / BATCH, theirs)


def test_per_sequence(case):
    inputs, attention = case
    p = attention.mean(2)
    used = torch.tensor([6, 3], dtype=torch.int32)
    seen = torch.arange(LENGTH) < used[:, None]
    rows = loss(inputs, p, reduction="none", seqused_q=used, seqused_k=used)[:, 0]
    theirs = terms(p, ln_student(*inputs)).sum(-1).masked_fill(~seen, 0)
    same(inputs, (rows.sum(-1) / used).mean(), (theirs.sum(-1) / used).mean())


@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides")
def test_per_element(case):
    inputs, attention = case
    p = attention.mean(2)
    theirs = kl_div(ln_student(*inputs), p, reduction="mean")
    same(inputs, loss(inputs, p, reduction="mean") / LENGTH, theirs)


def test_masked_tokens_and_a_coefficient(case):
    inputs, attention = case
    p = attention.mean(2)
    mask = torch.tensor([[1, 1, 0, 1, 0, 1], [0, 0, 1, 1, 1, 1]]).float()
    rows = loss(inputs, p, reduction="none")[:, 0]
    theirs = 0.1 * (terms(p, ln_student(*inputs)).sum(-1) * mask).sum() / mask.sum()
    same(inputs, 0.1 * (rows * mask).sum() / mask.sum(), theirs)


def test_scaled_scores(case):
    (q, k, w), attention = case
    p, scale = attention.mean(2), WIDTH**-0.5
    theirs = terms(p, ln_student(q, k, w, scale)).sum()
    same((q, k, w), loss((q, k, w * scale), p), theirs)


def test_temperature(case):
    (q, k, w), attention = case
    p = attention.mean(2)
    logits = torch.einsum("bsht,bsh->bst", torch.einsum("bshd,btd->bsht", q, k[:, :, 0]).relu(), w)
    theirs = terms(p, (logits / 2.5).masked_fill(~SEEN, -1e30).log_softmax(-1)).sum()
    same((q, k, w), loss((q, k, w / 2.5), p), theirs)


def test_cross_entropy(case):
    inputs, attention = case
    p = attention.mean(2)
    theirs = -(p * ln_student(*inputs)).sum()
    same(inputs, loss(inputs, p) - torch.xlogy(p, p).sum(), theirs)
