"""LightningIndexer against a straightforward re-statement; scores and best keys by tiles."""

from __future__ import annotations

import cases
import kindling
import numpy as np
import pytest

torch = pytest.importorskip("torch")

import kindling.torch as kt  # noqa: E402
import kindling.torch._scores as scores_module  # noqa: E402
import torch_cases as tc  # noqa: E402

HIDDEN, HEADS, WIDTH = 24, 4, 16


def restated(module, hidden, latent, positions):
    """q, k and w of one sequence, element by element where it is about positions."""
    state = module.state_dict()
    q = (latent @ state["wq_b.weight"].T).reshape(len(hidden), module.num_heads, module.head_dim)
    k = hidden @ state["wk.weight"].T
    k = (k - k.mean(-1, keepdim=True)) / (k.var(-1, correction=0, keepdim=True) + 1e-6).sqrt()
    k = (k * state["k_norm.weight"] + state["k_norm.bias"])[:, None]
    if module.rope is not None:
        dim, half = module.rope.dim, module.rope.dim // 2
        for x in (q, k):
            before = x.clone()
            for token, position in enumerate(positions):
                for i in range(half):
                    angle = torch.tensor(position * module.rope.theta ** (-2 * i / dim))
                    a, b = (2 * i, 2 * i + 1) if module.rope.interleaved else (i, i + half)
                    x[token, :, a] = before[token, :, a] * angle.cos()
                    x[token, :, a] -= before[token, :, b] * angle.sin()
                    x[token, :, b] = before[token, :, a] * angle.sin()
                    x[token, :, b] += before[token, :, b] * angle.cos()
    w = hidden @ state["weights_proj.weight"].T
    return q, k, w / (module.num_heads * module.head_dim) ** 0.5


def logits_of(q, k, w):
    """(rows, keys), all of them."""
    return (torch.einsum("thd,jd->htj", q, k[:, 0]).relu() * w.T[:, :, None]).sum(0)


@pytest.fixture(
    params=[(None, None), (None, 8), (12, kt.Rope(16, 50.0)), (12, kt.Rope(6, interleaved=True))],
    ids=["plain", "rope", "latent", "interleaved"],
)
def module(request):
    torch.manual_seed(0)
    q_lora, rope = request.param
    module = kt.LightningIndexer(HIDDEN, HEADS, WIDTH, q_lora, rope)
    torch.nn.init.normal_(module.k_norm.weight)
    torch.nn.init.normal_(module.k_norm.bias)
    return module


def sequences(module, *shape):
    torch.manual_seed(1)
    hidden = torch.randn(*shape, HIDDEN)
    return hidden, None if module.q_lora is None else torch.randn(*shape, module.q_lora)


@torch.no_grad()
def test_forward_padded(module):
    hidden, latent = sequences(module, 2, 7)
    q, k, w = module(hidden, latent)
    assert (q.shape, k.shape, w.shape) == ((2, 7, HEADS, WIDTH), (2, 7, 1, WIDTH), (2, 7, HEADS))
    for b in range(2):
        source = hidden[b] if latent is None else latent[b]
        expected = restated(module, hidden[b], source, range(7))
        for actual, wanted in zip((q[b], k[b], w[b]), expected, strict=True):
            torch.testing.assert_close(actual, wanted, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_forward_packed(module):
    hidden, latent = sequences(module, 9)
    cu = torch.tensor([0, 4, 4, 9], dtype=torch.int32)
    source = hidden if latent is None else latent
    positions = [0, 1, 2, 3, 0, 1, 2, 3, 4]
    expected = restated(module, hidden, source, positions)
    for options in ({"cu_seqlens": cu}, {"positions": torch.tensor(positions)}):
        for a, b in zip(module(hidden, latent, **options), expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_loss(module):
    """Against softmax cross-entropy by plain torch, gradients of every parameter included."""
    hidden, latent = sequences(module, 9)
    cu = torch.tensor([0, 4, 9], dtype=torch.int32)
    p = torch.zeros(9, 1, 5)
    expected = torch.zeros(())
    q, k, w = module(hidden, latent, cu_seqlens=cu)
    for begin, end in ((0, 4), (4, 9)):
        length = end - begin
        seen = torch.ones(length, length, dtype=torch.bool).tril()
        target = torch.rand(length, length).masked_fill(~seen, 0)
        target /= target.sum(-1, keepdim=True)
        p[begin:end, 0, :length] = target
        logits = logits_of(q[begin:end], k[begin:end], w[begin:end])
        logits = logits.masked_fill(~seen, -torch.inf).log_softmax(-1).masked_fill(~seen, 0)
        expected = expected + (torch.xlogy(target, target) - target * logits).sum() / 9
    loss = module.loss(hidden, p, latent, cu_seqlens=cu)
    torch.testing.assert_close(loss, expected, rtol=1e-4, atol=1e-6)
    wanted = torch.autograd.grad(expected, list(module.parameters()))
    actual = torch.autograd.grad(loss, list(module.parameters()))
    for a, b in zip(actual, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("as_rows", [False, True])
def test_one_row_of_packed_tokens(module, as_rows):
    """(1, T, hidden) with cu_seqlens: bit by bit the packed call, in the shapes of one batch."""
    hidden, latent = sequences(module, 9)
    row, latent_row = hidden[None], None if latent is None else latent[None]
    cu = torch.tensor([0, 4, 4, 9], dtype=torch.int32)
    options = {"cu_seqlens": cu}
    if as_rows:
        packed = {"cu_seqlens_q": cu, "cu_seqlens_k": cu, "layout_q": "TND", "layout_k": "TND"}
        options = {"rows": kindling.Rows(**packed, mask_mode=3)}
    p = kt.attention_teacher(
        *(torch.randn(9, 2, 8) for _ in range(2)),
        **kindling.Rows(
            cu_seqlens_q=cu, cu_seqlens_k=cu, layout_q="TND", layout_k="TND", causal=True
        ),
    )
    for reduction in ("mean", "sum", "none"):
        expected = module.loss(hidden, p, latent, reduction=reduction, **options)
        wanted = torch.autograd.grad(expected.sum(), list(module.parameters()))
        for teacher in (p, p[None]):
            loss = module.loss(row, teacher, latent_row, reduction=reduction, **options)
            assert loss.shape == ((1, 1, 9) if reduction == "none" else ())
            assert torch.equal(loss.reshape(expected.shape), expected)
            actual = torch.autograd.grad(loss.sum(), list(module.parameters()))
            for a, b in zip(actual, wanted, strict=True):
                torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    padded = module.loss(row, torch.rand(1, 9, 1, 9), latent_row, reduction="none")
    assert padded.shape == (1, 1, 9)

    inputs = module(row, latent_row, cu_seqlens=cu)
    for a, b in zip(inputs, module(hidden, latent, cu_seqlens=cu), strict=True):
        torch.testing.assert_close(a[0], b, rtol=1e-5, atol=1e-6)
    scores = module.scores(row, latent_row, **options)
    assert scores.shape == (1, 9, 5)
    expected = module.scores(hidden, latent, **options)[None]
    torch.testing.assert_close(scores, expected, rtol=1e-5, atol=1e-6)
    best = module.topk(row, 3, latent_row, **options)
    expected = module.topk(hidden, 3, latent, **options)
    assert best.values.shape == best.indices.shape == (1, 9, 3)
    assert torch.equal(best.indices[0], expected.indices)
    torch.testing.assert_close(best.values[0], expected.values, rtol=1e-5, atol=1e-6)


def test_one_row_of_packed_tokens_takes_its_lse(module):
    hidden, latent = sequences(module, 9)
    row, latent_row = hidden[None], None if latent is None else latent[None]
    cu = torch.tensor([0, 4, 9], dtype=torch.int32)
    p = torch.full((9, 1, 5), 0.2)
    rows = kindling.Rows(
        cu_seqlens_q=cu, cu_seqlens_k=cu, layout_q="TND", layout_k="TND", causal=True
    )
    with torch.no_grad():
        q, k, w = (x[0] for x in module(row, latent_row, cu_seqlens=cu))
        lse = kindling.softmax_lse(q, k, w, rows=rows)
    expected = module.loss(row, p, latent_row, cu_seqlens=cu)
    for given in (lse, lse[None]):
        assert torch.equal(module.loss(row, p, latent_row, cu_seqlens=cu, lse=given), expected)
    shifted = module.loss(row, p, latent_row, cu_seqlens=cu, lse=lse[None] + 1)
    mass = 0.2 * (sum(range(1, 5)) + sum(range(1, 6))) / 9  # of a row's visible keys, on average
    torch.testing.assert_close(shifted, expected + mass, rtol=1e-5, atol=1e-5)


def test_packed_lengths_of_padded_sequences_are_refused(module):
    hidden, latent = sequences(module, 2, 7)
    cu = torch.tensor([0, 5, 14], dtype=torch.int32)
    p = torch.full((2, 7, 1, 7), 1 / 7)
    calls = (
        lambda **o: module.loss(hidden, p, latent, **o),
        lambda **o: module.scores(hidden, latent, **o),
        lambda **o: module.topk(hidden, 2, latent, **o),
    )
    for call in calls:
        with pytest.raises(ValueError, match=r"^cu_seqlens: expected packed .*\(1, T, 24\)"):
            call(cu_seqlens=cu)
        with pytest.raises(ValueError, match='^cu_seqlens_k: expected layout_k "TND"'):
            call(cu_seqlens_k=cu)
        with pytest.raises(ValueError, match="^cu_seqlens_k: expected none beside cu_seqlens"):
            call(cu_seqlens=cu, cu_seqlens_k=cu)
        with pytest.raises(ValueError, match="^seqused_q: expected none beside seqused"):
            call(seqused=cu, seqused_q=cu)
        with pytest.raises(TypeError, match="^cu_seqlens: expected a torch.Tensor, got ndarray"):
            call(cu_seqlens=cu.numpy())
        call(cu_seqlens=cu[:0])
    with pytest.raises(ValueError, match="^cu_seqlens: expected packed hidden states"):
        module(hidden, latent, cu_seqlens=cu)
    row, latent_row = hidden[:1], None if latent is None else latent[:1]
    cu = torch.tensor([0, 3, 7], dtype=torch.int32)
    with pytest.raises(ValueError, match='^cu_seqlens_q: expected layout_q "TND"'):
        module.loss(row, p[:1], latent_row, cu_seqlens=cu, layout_q="BSND")
    with pytest.raises(ValueError, match='^cu_seqlens_k: expected layout_k "TND"'):
        module.loss(row, p[:1], latent_row, cu_seqlens_k=cu)
    with pytest.raises(ValueError, match=r"^positions: expected shape \(7,\)"):
        module(row, latent_row, positions=torch.arange(3))


def test_one_row_of_packed_tokens_compiles():
    torch.manual_seed(0)
    module = kt.LightningIndexer(HIDDEN, HEADS, WIDTH, rope=8)
    hidden, cu = torch.randn(1, 9, HIDDEN), torch.tensor([0, 4, 9], dtype=torch.int32)
    p = torch.full((1, 9, 1, 5), 0.2)
    expected = module.loss(hidden, p, cu_seqlens=cu)
    torch._dynamo.reset()
    compiled = torch.compile(module.loss, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(hidden, p, cu_seqlens=cu), expected)


def test_state_dict_has_the_published_names():
    state = kt.LightningIndexer(7168, 64, 128, q_lora=1536, rope=64, device="meta").state_dict()
    assert {name: tuple(tensor.shape) for name, tensor in state.items()} == {
        "wq_b.weight": (8192, 1536),
        "wk.weight": (128, 7168),
        "k_norm.weight": (128,),
        "k_norm.bias": (128,),
        "weights_proj.weight": (64, 7168),
    }


def test_given_frequencies_are_used():
    rope = kt.Rope(8, 100.0)
    given = kt.Rope(8, frequencies=rope.rates().tolist())
    x = torch.randn(5, 2, 16)
    assert torch.equal(given.turn(x, torch.arange(5)), rope.turn(x, torch.arange(5)))
    torch.testing.assert_close(rope.turn(x, torch.arange(5)).norm(dim=-1), x.norm(dim=-1))


def test_low_precision_and_autocast(module):
    hidden, latent = sequences(module, 2, 7)
    p = kt.attention_teacher(*(torch.randn(2, 7, 2, 8) for _ in range(2)), mask_mode=3)
    full = module.loss(hidden, p, latent)
    with torch.autocast("cpu", torch.bfloat16):
        q, k, w = module(hidden, latent)
        loss = module.loss(hidden, p, latent)
    assert (q.dtype, k.dtype, w.dtype) == (torch.bfloat16, torch.bfloat16, torch.float32)
    torch.testing.assert_close(loss, full, rtol=0.05, atol=0.02)
    loss.backward()
    assert all(parameter.grad.isfinite().all() for parameter in module.parameters())
    low = module.to(torch.bfloat16)
    latent = None if latent is None else latent.bfloat16()
    torch.testing.assert_close(low.loss(hidden.bfloat16(), p, latent), full, rtol=0.05, atol=0.02)


def test_module_compiles_without_graph_breaks():
    torch.manual_seed(0)
    module = kt.LightningIndexer(HIDDEN, HEADS, WIDTH, rope=8)
    hidden = torch.randn(2, 7, HIDDEN)
    p = kt.attention_teacher(*(torch.randn(2, 7, 2, 8) for _ in range(2)), mask_mode=3)
    expected = module.loss(hidden, p)
    torch._dynamo.reset()
    compiled = torch.compile(module.loss, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(hidden, p), expected)


def test_module_errors():
    module = kt.LightningIndexer(HIDDEN, HEADS, WIDTH, q_lora=12, rope=8)
    hidden = torch.randn(3, HIDDEN)
    with pytest.raises(ValueError, match=r"hidden: expected shape .* got \(3, 5\)"):
        module(torch.randn(3, 5))
    with pytest.raises(ValueError, match=r"q_latent: expected shape \(3, 12\), got none"):
        module(hidden)
    with pytest.raises(ValueError, match="positions: expected positions or cu_seqlens"):
        module(hidden, torch.randn(3, 12))
    with pytest.raises(ValueError, match=r"positions: expected shape \(3,\) or \(3,\), got \(2,\)"):
        module(hidden, torch.randn(3, 12), positions=torch.arange(2))
    with pytest.raises(ValueError, match="q_latent: expected none"):
        kt.LightningIndexer(HIDDEN, HEADS, WIDTH)(hidden, hidden)
    with pytest.raises(ValueError, match="rope: expected dim <= head_dim = 16, got 32"):
        kt.LightningIndexer(HIDDEN, HEADS, WIDTH, rope=32)
    with pytest.raises(ValueError, match="rope: expected an even dim"):
        kt.Rope(7)
    with pytest.raises(ValueError, match="rope: expected 4 frequencies, got 1"):
        kt.Rope(8, frequencies=[1.0])
    with pytest.raises(ValueError, match="rope: expected theta > 0, got 0"):
        kt.Rope(8, theta=0.0)
    with pytest.raises(TypeError, match="rope: expected a Rope, an int or None, got float"):
        kt.LightningIndexer(HIDDEN, HEADS, WIDTH, rope=4.0)
    with pytest.raises(ValueError, match="q_lora: expected >= 1, got 0"):
        kt.LightningIndexer(HIDDEN, HEADS, WIDTH, q_lora=0)
    with pytest.raises(TypeError, match="hidden: expected an int, got float"):
        kt.LightningIndexer(16.5, HEADS, WIDTH)
    with pytest.raises(ValueError, match="num_heads: expected >= 1, got 0"):
        kt.LightningIndexer(HIDDEN, 0, WIDTH)


class Index:
    """An integer of somebody else's."""

    def __init__(self, value):
        self.value = value

    def __index__(self):
        return self.value


@pytest.mark.parametrize("integer", [np.int64, np.uint8, Index, torch.tensor], ids=str)
def test_integers_of_other_libraries(integer):
    def results(of):
        torch.manual_seed(0)
        module = kt.LightningIndexer(*map(of, (HIDDEN, HEADS, WIDTH, 12)), rope=of(8))
        assert type(module.num_heads) is int and type(module.rope.dim) is int
        hidden, latent = torch.randn(2, 7, HIDDEN), torch.randn(2, 7, 12)
        attn = torch.randn(2, 7, 2, 8)
        options = {"mask_mode": of(3), "cmp_ratio": of(1)}
        p = kt.attention_teacher(attn, attn, softmax_scale=of(1), max_seqlen_k=of(7), **options)
        return [
            p,
            module.loss(hidden, p, latent, **options),
            module.scores(hidden, latent, max_seqlen_k=of(7), **options),
            *module.topk(hidden, of(3), latent, **options),
        ]

    for a, b in zip(results(int), results(integer), strict=True):
        assert torch.equal(a, b)


def test_numbers_that_are_no_integers():
    attn = torch.ones(1, 2, 2, 8)
    for wrong in (3.0, True, np.float64(3), np.array([3, 3]), torch.tensor(3.0)):
        with pytest.raises(TypeError, match="^mask_mode: expected an int, got "):
            kt.attention_teacher(attn, attn, mask_mode=wrong)
    for same in (np.float32(0.5), np.float16(0.5)):
        p = kt.attention_teacher(attn, attn, softmax_scale=same)
        assert torch.equal(p, kt.attention_teacher(attn, attn, softmax_scale=0.5))
    for wrong in ("1", True, None, 1j, torch.tensor(0.5)):
        with pytest.raises(TypeError, match="^softmax_scale: expected a real number, got "):
            kt.attention_teacher(attn, attn, softmax_scale=wrong)


@pytest.mark.filterwarnings("ignore:.*nested tensors is in prototype")
@pytest.mark.parametrize("layout", [torch.jagged, torch.strided], ids=str)
def test_nested_tensors_are_told_how_to_pack(layout):
    def nested(*shape):
        return torch.nested.nested_tensor(
            [torch.ones(rows, *shape) for rows in (3, 2)], layout=layout
        )

    q, k, w, p = nested(HEADS, 8), nested(1, 8), nested(HEADS), torch.ones(5, 1, 3)
    hidden, module = nested(HIDDEN), kt.LightningIndexer(HIDDEN, HEADS, WIDTH)
    for name, call in (
        ("q", lambda: kt.indexer_kl_loss(q, k, w, p)),
        ("k", lambda: kt.attention_teacher(torch.ones(5, 2, 8), k)),
        ("w", lambda: kt.index_topk(torch.ones(5, 2, 8), torch.ones(5, 1, 8), w, 2)),
        ("hidden", lambda: module(hidden)),
        ("hidden", lambda: module.loss(hidden, p)),
        ("q", lambda: kindling.softmax_lse(q, k, w)),
        ("q", lambda: kindling.reference.softmax_lse(q, k, w)),
    ):
        with pytest.raises(TypeError, match=rf"^{name}: .*nested.*\.values\(\).*\.offsets\(\)"):
            call()
    # What the error says to do.
    if layout is torch.jagged:
        cu = q.offsets().int()
        packed = {f"cu_seqlens_{side}": cu for side in "qk"} | {
            "layout_q": "TND",
            "layout_k": "TND",
        }
        loss = kt.indexer_kl_loss(q.values(), k.values(), w.values(), p, **packed)
        assert loss.isfinite()


# Scores and best keys.

SWEEP = [tc.RAGGED, tc.PADDED, tc.COMPRESSED, tc.MIXED, *cases.sweep(12, "torch scores")]


@pytest.mark.parametrize("tile", [1, 500, 1 << 20])
@pytest.mark.parametrize("case", SWEEP, ids=str)
def test_scores_and_best_keys(case, tile, monkeypatch):
    monkeypatch.setattr(scores_module, "_TILE_SCORES", tile)
    (q, k, w, *_), lengths = tc.tensors(case)
    width = max([case.teacher_stride(), *case.num_keys])
    expected = torch.full((*w.shape[:-1], width), -torch.inf)
    for batch in range(case.num_batches):
        queries, keys = q[case.row_slot(batch)].float(), k[case.key_slot(batch)].float()
        seen = torch.arange(len(keys)) < torch.from_numpy(case.visible(batch))[:, None]
        logits = logits_of(queries, keys, w[case.row_slot(batch)])
        expected[case.row_slot(batch)][:, : len(keys)] = logits.masked_fill(~seen, -torch.inf)
    scores = kt.index_scores(q, k, w, max_seqlen_k=width, **lengths)
    torch.testing.assert_close(scores, expected, rtol=1e-4, atol=1e-4)

    for topk in (1, 3, 500):
        values, indices = kt.index_topk(q, k, w, topk, **lengths)
        assert values.shape == indices.shape == (*w.shape[:-1], topk)
        found = min(topk, width)
        assert torch.equal(values[..., found:], torch.full_like(values[..., found:], -torch.inf))
        if found > 0:
            wanted = scores.topk(found, dim=-1).values
            torch.testing.assert_close(values[..., :found], wanted, rtol=1e-5, atol=1e-5)
        assert torch.equal(indices == -1, values == -torch.inf)
        if width > 0:
            read = scores.gather(-1, indices.clamp(min=0)).masked_fill(indices < 0, -torch.inf)
            torch.testing.assert_close(read, values, rtol=1e-5, atol=1e-5)


def test_scores_are_those_of_the_loss():
    (q, k, w, *_), lengths = tc.tensors(tc.RAGGED)
    lse = kindling.softmax_lse(q, k, w, **lengths)
    scores = kt.index_scores(q, k, w, **lengths)
    torch.testing.assert_close(scores.logsumexp(-1)[None], lse)


def test_scores_of_the_module(module):
    hidden, latent = sequences(module, 2, 7)
    q, k, w = module(hidden, latent)
    scores = module.scores(hidden, latent)
    assert torch.equal(scores, kt.index_scores(q, k, w, mask_mode=3))
    assert not scores.requires_grad
    best = module.topk(hidden, 3, latent)
    assert torch.equal(best.indices, kt.index_topk(q, k, w, 3, mask_mode=3).indices)


def test_scores_errors():
    (q, k, w, *_), lengths = tc.tensors(tc.RAGGED)
    with pytest.raises(ValueError, match="topk: expected >= 1, got 0"):
        kt.index_topk(q, k, w, 0, **lengths)
    with pytest.raises(TypeError, match="^topk: expected an int, got float"):
        kt.index_topk(q, k, w, 2.5, **lengths)
    with pytest.raises(TypeError, match="^w: expected a torch.Tensor, got ndarray"):
        kt.index_scores(q, k, w.numpy(), **lengths)
    with pytest.raises(ValueError, match="max_seqlen_k: expected >= .* = 9, got 5"):
        kt.index_scores(q, k, w, max_seqlen_k=5, **lengths)
    with pytest.raises(ValueError, match=r"cu_seqlens_k\[2\]: expected the number of tokens"):
        kt.index_scores(q, k[:-1], w, **lengths)
    with pytest.raises(ValueError, match="^w: expected shape"):
        kt.index_scores(q, k, w[..., :1], **lengths)
    with pytest.raises(ValueError, match="^q: expected shape"):
        kt.index_scores(q[0], k, w, **lengths)
    with pytest.raises(ValueError, match="^k: expected shape .*N2=1, D=8"):
        kt.index_scores(q, k[..., :1], w, **lengths)
    with pytest.raises(TypeError, match="^k: expected dtype float32, got bfloat16"):
        kt.index_topk(q, k.bfloat16(), w, 1, **lengths)
    with pytest.raises(TypeError, match="^w: expected dtype float32, got bfloat16"):
        kt.index_topk(q, k, w.bfloat16(), 1, **lengths)
    q, k, w = torch.zeros(2, 0, 3, 8), torch.zeros(3, 4, 1, 8), torch.zeros(2, 0, 3)
    with pytest.raises(
        ValueError, match=r"^k.shape\[0\]: expected the batch count of q.shape\[0\], 2 .*, got 3"
    ):
        kt.index_topk(q, k, w, 1)
    with pytest.raises(ValueError, match='^layout_q: expected "BSND" or "TND", got "BNSD"'):
        kt.index_scores(q, k, w, layout_q="BNSD")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_scores_do_not_depend_on_the_surroundings(dtype):
    (q, k, w, *_), lengths = tc.tensors(tc.RAGGED)
    scores, best = kt.index_scores(q, k, w, **lengths), kt.index_topk(q, k, w, 3, **lengths)
    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype(dtype)
        with torch.autocast("cpu", torch.bfloat16), torch.device("meta"):
            again = kt.index_scores(q, k, w, **lengths)
            best_again = kt.index_topk(q, k, w, 3, **lengths)
    finally:
        torch.set_default_dtype(before)
    assert again.dtype == torch.float32 and torch.equal(again, scores)
    assert all(torch.equal(a, b) for a, b in zip(best_again, best, strict=True))


def test_head_weights_are_computed_by_their_module():
    module = kt.LightningIndexer(HIDDEN, HEADS, WIDTH, dtype=torch.bfloat16)
    calls = []
    module.weights_proj.register_forward_hook(lambda *_: calls.append(1))
    hidden = torch.randn(1, 3, HIDDEN)
    with torch.autocast("cpu", torch.bfloat16):
        w = module(hidden.bfloat16()).w
    expected = hidden.bfloat16().float() @ module.weights_proj.weight.float().T
    torch.testing.assert_close(w, expected * HEADS**-0.5 * WIDTH**-0.5)
    assert calls == [1]


def test_module_without_memory():
    module = kt.LightningIndexer(HIDDEN, HEADS, WIDTH, rope=8, device="meta")
    q, k, w = module(torch.empty(2, 3, HIDDEN, device="meta"))
    assert q.is_meta and q.shape == (2, 3, HEADS, WIDTH)
    assert k.shape == (2, 3, 1, WIDTH) and w.shape == (2, 3, HEADS) and w.dtype == torch.float32


def test_index_of_a_key_that_a_row_does_not_choose():
    q, k = torch.ones(1, 1, 1, 4), torch.ones(1, 2, 1, 4)
    k[0, 0] = torch.inf
    best = kt.index_topk(q, k, -torch.ones(1, 1, 1), 2)
    assert best.values.tolist() == [[[-4, -torch.inf]]]
    assert best.indices.tolist() == [[[1, -1]]]
