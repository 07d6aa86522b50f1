"""The operators of kindling.torch: schemas, results, errors, opcheck, autocast, compile, export."""

from __future__ import annotations

import subprocess
import sys
import timeit
from dataclasses import replace

import cases
import kindling
import pytest

torch = pytest.importorskip("torch")

import kindling.torch as kt  # noqa: E402
import torch_cases as tc  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402
from torch.library import opcheck  # noqa: E402

OPS = torch.ops.kindling
NAMES = (
    "dense_lightning_indexer_kl_loss_grad_metadata",
    "dense_lightning_indexer_kl_loss_grad",
    "dense_lightning_indexer_softmax_lse_metadata",
    "dense_lightning_indexer_softmax_lse",
    "sparse_flash_mla_softmax_l1_norm_metadata",
    "sparse_flash_mla_softmax_l1_norm",
)
LENGTHS = (
    "Tensor? cu_seqlens_q=None, Tensor? cu_seqlens_k=None, Tensor? seqused_q=None, "
    "Tensor? seqused_k=None, Tensor? cmp_residual_k=None"
)
VARIETY = [tc.RAGGED, tc.PADDED, tc.COMPRESSED, tc.MIXED]
SWEEP = VARIETY + cases.sweep(12, "torch operators")


def grad_arguments(case):
    return tc.tensors(case)


def teacher_arguments(case, num_heads=6):
    (q, k, *_), lengths = tc.tensors(case)
    q = q[..., :1, :].repeat(*[1] * (q.dim() - 2), num_heads, 1) * torch.rand(num_heads, 1)
    lse = torch.rand((*case.lse_shape(), num_heads)) + 3
    return (q.to(k.dtype), k, lse), {**lengths, "max_seqlen_k": max(case.teacher_stride(), 1)}


# What is registered.


def test_importing_kindling_does_not_import_torch():
    code = "import sys, kindling; assert 'torch' not in sys.modules; import kindling.torch"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("namespace", ["kindling", "cann_ops_transformer"])
def test_schemas_are_the_vendors(namespace):
    schemas = [str(getattr(getattr(torch.ops, namespace), name).default._schema) for name in NAMES]
    plan = (
        "(int num_heads_q, int num_heads_k, int head_dim, *, " + LENGTHS + ", {}"
        "int? batch_size=None, int? max_seqlen_q=None, int? max_seqlen_k=None, "
        "str? layout_q=None, str? layout_k=None, int? mask_mode=None, int? cmp_ratio=None)"
        " -> Tensor"
    )
    rows = 'str layout_q="BSND", str layout_k="BSND", int mask_mode=0, int cmp_ratio=1) -> Tensor'
    arguments = (
        plan.format(""),
        "(Tensor q, Tensor k, Tensor w, Tensor attn_softmax_l1_norm, Tensor softmax_lse, *, "
        + LENGTHS
        + ', Tensor? metadata=None, str layout_q="TND", str layout_k="TND", int mask_mode=3, '
        "int cmp_ratio=1) -> (Tensor dq, Tensor dk, Tensor dw, Tensor softmax_out)",
        plan.format(""),
        f"(Tensor query_index, Tensor key_index, Tensor weight, *, {LENGTHS}, "
        f"Tensor? metadata=None, {rows}",
        plan.format("Tensor? topk_length=None, int? topk=None, "),
        f"(Tensor q, Tensor k, Tensor softmax_lse, *, Tensor? sparse_indices=None, {LENGTHS}, "
        "Tensor? topk_length=None, Tensor? metadata=None, float softmax_scale=1., "
        f"int max_seqlen_k=0, {rows}",
    )
    expected = [f"{namespace}::{name}{a}" for name, a in zip(NAMES, arguments, strict=True)]
    assert schemas == expected


def test_a_vendor_that_came_first_keeps_what_it_has():
    code = """
import torch
name = "dense_lightning_indexer_softmax_lse"
vendor = torch.library.Library("cann_ops_transformer", "DEF")
vendor.define(name + "(Tensor query_index, Tensor key_index, Tensor weight, *, Tensor? "
    "cu_seqlens_q=None, Tensor? cu_seqlens_k=None, Tensor? seqused_q=None, Tensor? seqused_k=None, "
    "Tensor? cmp_residual_k=None, Tensor? metadata=None, str layout_q='BSND', "
    "str layout_k='BSND', int mask_mode=0, int cmp_ratio=1) -> Tensor")
vendor.impl(name, lambda *a, **k: "the vendor's", "PrivateUse1")
vendor.define("sparse_flash_mla_softmax_l1_norm_metadata(int num_heads_q) -> int")
vendor.impl("sparse_flash_mla_softmax_l1_norm_metadata", lambda n: 7, "CompositeExplicitAutograd")
import kindling.torch
ops = torch.ops.cann_ops_transformer
q = torch.ones(1, 1, 1, 128)
assert ops.dense_lightning_indexer_softmax_lse(q, q, q[..., 0]).tolist() == [[[128.0]]]
assert ops.sparse_flash_mla_softmax_l1_norm_metadata(1) == 7
assert ops.dense_lightning_indexer_kl_loss_grad.default
"""
    subprocess.run([sys.executable, "-c", code], check=True)


# Results are the library's.


@pytest.mark.parametrize("case", SWEEP, ids=str)
def test_results_are_the_librarys(case):
    (q, k, w, p, lse), lengths = grad_arguments(case)
    assert torch.equal(
        OPS.dense_lightning_indexer_softmax_lse(q, k, w, **lengths),
        kindling.softmax_lse(q, k, w, **lengths),
    )
    scale = torch.rand(lse.shape)
    expected = kindling.kl_loss_grad(q, k, w, p, lse, return_loss=True, row_scale=scale, **lengths)
    actual = OPS.dense_lightning_indexer_kl_loss_grad_loss(
        q, k, w, p, lse, row_scale=scale, **lengths
    )
    assert all(torch.equal(a, b) for a, b in zip(actual, expected, strict=True))
    expected = kindling.kl_loss_grad(q, k, w, p, lse, **lengths)
    actual = OPS.dense_lightning_indexer_kl_loss_grad(q, k, w, p, lse, **lengths)
    assert all(torch.equal(a, b) for a, b in zip(actual, expected[:4], strict=True))

    (q, k, lse), options = teacher_arguments(case)
    p = OPS.sparse_flash_mla_softmax_l1_norm(q, k, lse, softmax_scale=0.3, **options)
    assert torch.equal(p, kindling.attention_l1_norm(q, k, lse, softmax_scale=0.3, **options))
    p = kt.attention_teacher(q, k, softmax_scale=0.3, **options)
    assert torch.equal(p, kindling.attention_l1_norm(q, k, softmax_scale=0.3, **options))


def test_defaults_are_the_schemas():
    (q, k, w, p, lse), lengths = grad_arguments(tc.RAGGED)
    rows = {name: lengths[name] for name in cases.LENGTHS if name in lengths}
    expected = kindling.kl_loss_grad(q, k, w, p, lse, **lengths)
    actual = OPS.dense_lightning_indexer_kl_loss_grad(q, k, w, p, lse, **rows)
    assert all(torch.equal(a, b) for a, b in zip(actual, expected[:4], strict=True))
    (q, k, w, *_), _ = grad_arguments(tc.PADDED)
    assert torch.equal(
        OPS.dense_lightning_indexer_softmax_lse(q, k, w), kindling.softmax_lse(q, k, w)
    )


@pytest.mark.parametrize("dtype", cases.DTYPES)
def test_strided_inputs(dtype):
    case = cases.Case((5, 3), (9, 4), num_heads=3, head_dim=8, dtype=dtype)
    dense, lengths = grad_arguments(case)
    strided = []
    for tensor in dense:
        wide = torch.full((*tensor.shape[:-1], 2 * tensor.shape[-1]), torch.nan).to(tensor.dtype)
        wide[..., ::2] = tensor
        strided.append(wide[..., ::2])
        assert not strided[-1].is_contiguous()
    transposed = [tensor.transpose(0, 1).contiguous().transpose(0, 1) for tensor in dense]
    assert not transposed[0].is_contiguous()
    expected = OPS.dense_lightning_indexer_kl_loss_grad(*dense, **lengths)
    for inputs in (strided, transposed):
        actual = OPS.dense_lightning_indexer_kl_loss_grad(*inputs, **lengths)
        for a, b in zip(actual, expected, strict=True):
            assert torch.equal(a, b) and a.is_contiguous()


def test_deterministic_mode_is_satisfied():
    args, lengths = grad_arguments(tc.RAGGED)
    torch.use_deterministic_algorithms(True)
    try:
        OPS.dense_lightning_indexer_kl_loss_grad(*args, **lengths)
    finally:
        torch.use_deterministic_algorithms(False)


# Metadata.


def test_metadata_operator_without_tensors():
    lengths = {"batch_size": 3, "max_seqlen_q": 7, "max_seqlen_k": 9}
    record = OPS.dense_lightning_indexer_kl_loss_grad_metadata(8, 1, 128, **lengths)
    assert record.tolist() == kindling.make_metadata(8, 1, 128, **lengths).tolist()


def vendor_words(num_rows, num_cores):
    """The three records, word by word."""
    t, c = num_rows, num_cores
    if t == 0:
        return [0] * 5, [0] * 4
    u = min(t, c, 36)
    teacher = [t, -(-t // u), t // u, (u - t % u) % u, u]
    if t < c:
        return teacher, [t, 0, 1, 0]
    return teacher, [c, 0, t // c, 0] if t % c == 0 else [t % c, c - t % c, t // c + 1, t // c]


@pytest.mark.parametrize("num_rows", [0, 1, 2, 3, 35, 36, 37, 64, 100])
@pytest.mark.parametrize("num_cores", [1, 2, 3, 40])
def test_records_of_the_companions(num_rows, num_cores):
    cu = torch.tensor([0, num_rows], dtype=torch.int32)
    lengths = {
        "cu_seqlens_q": cu,
        "cu_seqlens_k": cu,
        "layout_q": "TND",
        "layout_k": "TND",
    }
    before = kindling.get_num_threads()
    kindling.set_num_threads(num_cores)
    try:
        lse_record = OPS.dense_lightning_indexer_softmax_lse_metadata(2, 1, 128, **lengths)
        p_record = OPS.sparse_flash_mla_softmax_l1_norm_metadata(2, 1, 512, **lengths)
        kl_record = OPS.dense_lightning_indexer_kl_loss_grad_metadata(2, 1, 128, **lengths)
    finally:
        kindling.set_num_threads(before)
    teacher, lse = vendor_words(num_rows, num_cores)
    assert p_record.tolist() == teacher + [0] * (64 - len(teacher))
    assert lse_record.tolist() == lse + [0] * (64 - len(lse))

    # Each operator takes its own, and no other that says something else.
    q, k, w = torch.rand(num_rows, 2, 128), torch.rand(num_rows, 1, 128), torch.rand(num_rows, 2)
    calls = {
        "lse": lambda record: OPS.dense_lightning_indexer_softmax_lse(
            q, k, w, metadata=record, **lengths
        ),
        "p": lambda record: OPS.sparse_flash_mla_softmax_l1_norm(
            q, k, torch.rand(1, num_rows, 2), metadata=record, max_seqlen_k=100, **lengths
        ),
    }
    own = {"lse": lse_record, "p": p_record}
    for name, call in calls.items():
        call(own[name])
        for other in (lse_record, p_record, kl_record):
            if not torch.equal(other, own[name]):
                with pytest.raises(ValueError, match="^metadata"):
                    call(other)
        if num_rows > 0:
            with pytest.raises(ValueError, match="^metadata"):
                call(torch.zeros(64, dtype=torch.int32))
        spoilt = own[name].clone()
        spoilt[63] = 1
        with pytest.raises(ValueError, match="^metadata: expected a record of .*_metadata, got"):
            call(spoilt)


def test_metadata_of_the_wrong_kind():
    (q, k, w, *_), lengths = grad_arguments(tc.RAGGED)
    call = OPS.dense_lightning_indexer_softmax_lse
    with pytest.raises(ValueError, match=r"metadata: expected shape \(64,\), got \(63,\)"):
        call(q, k, w, metadata=torch.zeros(63, dtype=torch.int32), **lengths)
    with pytest.raises(TypeError, match="metadata: expected dtype int32, got int64"):
        call(q, k, w, metadata=torch.zeros(64, dtype=torch.int64), **lengths)
    call(q, k, w, metadata=torch.zeros(0, dtype=torch.int32), **lengths)  # counts as absent


def test_head_dim_of_the_companions():
    with pytest.raises(ValueError, match="head_dim: expected 512, got 128"):
        OPS.sparse_flash_mla_softmax_l1_norm_metadata(8, 1, 128, batch_size=-1)
    with pytest.raises(ValueError, match="num_heads_q: expected in"):
        OPS.sparse_flash_mla_softmax_l1_norm_metadata(0, 1, 128)
    with pytest.raises(ValueError, match="head_dim: expected 128, got 512"):
        OPS.dense_lightning_indexer_softmax_lse_metadata(8, 1, 512)


# Errors.


def test_errors_are_the_cores():
    (q, k, w, p, lse), lengths = grad_arguments(tc.RAGGED)
    call = OPS.dense_lightning_indexer_kl_loss_grad
    for changed, error, message in (
        ((q[0], k, w, p, lse), ValueError, r"q: expected shape \(T1, N1, D\), got \(3, 8\)"),
        ((q, k.double(), w, p, lse), TypeError, "k: expected dtype float32, got float64"),
        ((q, k, w.bfloat16(), p, lse), TypeError, "w: expected dtype float32, got bfloat16"),
        ((q, k, w, p[..., :2], lse), ValueError, "^p: expected"),
        ((q, k, w, p, lse[0]), ValueError, r"lse: expected shape \(N2=1, T1=10\)"),
    ):
        with pytest.raises(error, match=message):
            call(*changed, **lengths)
    bad = {**lengths, "seqused_k": torch.tensor([100, 1], dtype=torch.int32)}
    with pytest.raises(ValueError, match=r"seqused_k\[0\]: expected .* got 100"):
        call(q, k, w, p, lse, **bad)


def test_sparse_features_are_not_there():
    (q, k, lse), options = teacher_arguments(tc.RAGGED)
    indices = torch.zeros(4, dtype=torch.int32)
    call = OPS.sparse_flash_mla_softmax_l1_norm
    for name in ("sparse_indices", "topk_length"):
        with pytest.raises(NotImplementedError, match=f"{name}: expected none"):
            call(q, k, lse, **{name: indices}, **options)
        call(q, k, lse, **{name: indices[:0]}, **options)
    with pytest.raises(NotImplementedError, match="topk: expected none"):
        OPS.sparse_flash_mla_softmax_l1_norm_metadata(8, 1, 512, topk=16)


def test_packed_teacher_needs_its_width():
    (q, k, lse), options = teacher_arguments(tc.RAGGED)
    with pytest.raises(ValueError, match="max_seqlen_k: expected > 0"):
        OPS.sparse_flash_mla_softmax_l1_norm(q, k, lse, **{**options, "max_seqlen_k": 0})
    # Outside torch.compile the wrapper finds it out.
    p = kt.attention_teacher(q, k, lse, **{**options, "max_seqlen_k": 0})
    assert p.shape[-1] == max(tc.RAGGED.allocated_k())


def test_the_vendors_limits_hold_under_its_name():
    vendor = torch.ops.cann_ops_transformer
    q, k, w = torch.rand(1, 2, 1, 64), torch.rand(1, 2, 1, 64), torch.rand(1, 2, 1)
    OPS.dense_lightning_indexer_softmax_lse(q, k, w)
    with pytest.raises(ValueError, match="q: expected a head width of 128, got 64"):
        vendor.dense_lightning_indexer_softmax_lse(q, k, w)
    q, k, w = torch.rand(1, 2, 129, 128), torch.rand(1, 2, 1, 128), torch.rand(1, 2, 129)
    with pytest.raises(ValueError, match="q: expected 1 to 128 heads, got 129"):
        vendor.dense_lightning_indexer_softmax_lse(q, k, w)
    q, k = torch.rand(1, 2, 4, 512), torch.rand(1, 2, 2, 512)
    with pytest.raises(ValueError, match="k: expected 1 key head, got 2"):
        vendor.sparse_flash_mla_softmax_l1_norm(q, k, torch.rand(1, 1, 2, 4))


def test_vmap_is_refused_readably():
    (q, k, w, *_), _ = grad_arguments(tc.PADDED)
    with pytest.raises(NotImplementedError, match="softmax_lse: expected a call outside .*vmap"):
        torch.vmap(lambda q: OPS.dense_lightning_indexer_softmax_lse(q, k, w))(q[None])


# Meta tensors, opcheck.


def test_meta_tensors_have_the_shapes():
    for case in VARIETY:
        args, lengths = grad_arguments(case)
        real = OPS.dense_lightning_indexer_kl_loss_grad_loss(*args, **lengths)
        meta = OPS.dense_lightning_indexer_kl_loss_grad_loss(
            *(tensor.to("meta") for tensor in args), **lengths
        )
        for a, b in zip(real, meta, strict=True):
            assert b.device.type == "meta"
            assert (a.shape, a.dtype, a.stride()) == (b.shape, b.dtype, b.stride())


@pytest.mark.parametrize("case", [*VARIETY, replace(tc.RAGGED, dtype="bfloat16")], ids=str)
def test_opcheck(case):
    args, lengths = grad_arguments(case)
    opcheck(OPS.dense_lightning_indexer_softmax_lse.default, tuple(args[:3]), lengths)
    opcheck(OPS.dense_lightning_indexer_kl_loss_grad.default, tuple(args), lengths)
    scaled = {**lengths, "row_scale": torch.rand(args[4].shape)}
    opcheck(OPS.dense_lightning_indexer_kl_loss_grad_loss.default, tuple(args), scaled)
    q_k_lse, options = teacher_arguments(case)
    opcheck(OPS.sparse_flash_mla_softmax_l1_norm.default, q_k_lse, options)


@pytest.mark.parametrize("case", [tc.RAGGED, tc.PADDED], ids=str)
def test_opcheck_metadata(case):
    attributes = tc.metadata_arguments(case)
    for name, width in (
        ("dense_lightning_indexer_kl_loss_grad_metadata", 128),
        ("dense_lightning_indexer_softmax_lse_metadata", 128),
        ("sparse_flash_mla_softmax_l1_norm_metadata", 512),
    ):
        opcheck(getattr(OPS, name).default, (4, 1, width), attributes)


@pytest.mark.parametrize(
    ("case", "reduction"),
    [(tc.RAGGED, "sum"), (tc.PADDED, "mean"), (tc.COMPRESSED, "none"), (tc.MIXED, "mean")],
    ids=str,
)
def test_opcheck_differentiable(case, reduction):
    (q, k, w, p, lse), lengths = grad_arguments(case)
    rest = {**lengths, "reduction": reduction}
    opcheck(OPS.indexer_kl_loss.default, (*tc.leaves(q, k, w), p, None), rest)
    if reduction != "none":
        opcheck(OPS.indexer_kl_loss_with_grads.default, (*tc.leaves(q, k, w), p, lse), rest)
        grad = torch.tensor(0.5)
    else:
        grad = torch.rand(lse.shape)
    opcheck(OPS.indexer_kl_loss_backward.default, (grad, q, k, w, p, lse), rest)


def test_opcheck_teacher():
    for case in VARIETY:
        (q, k, lse), options = teacher_arguments(case)
        opcheck(OPS.attention_teacher.default, (q, k, lse), {**options, "softmax_scale": 0.5})


def test_fake_kernels_refuse_what_has_no_shape():
    (q, k, w, *_), _ = grad_arguments(tc.PADDED)
    call = OPS.dense_lightning_indexer_softmax_lse
    with pytest.raises(ValueError, match=r"q: expected shape \(B, S1, N1, D\), got \(6, 2, 16\)"):
        call(q[0].to("meta"), k.to("meta"), w.to("meta"))
    with pytest.raises(TypeError, match="w: expected dtype float32, got bfloat16"):
        call(q.to("meta"), k.to("meta"), w.bfloat16().to("meta"))
    with pytest.raises(ValueError, match='layout_q: expected "BSND" or "TND", got "SBH"'):
        call(q.to("meta"), k.to("meta"), w.to("meta"), layout_q="SBH")


# Autocast.


def test_autocast_rule():
    (q, k, w, p, lse), lengths = grad_arguments(tc.PADDED)
    expected = OPS.dense_lightning_indexer_kl_loss_grad(
        q.bfloat16(), k.bfloat16(), w, p, lse, **lengths
    )
    with torch.autocast("cpu", torch.bfloat16):
        actual = OPS.dense_lightning_indexer_kl_loss_grad(
            q, k.bfloat16(), w.double().float(), p, lse, **lengths
        )
        low = OPS.dense_lightning_indexer_softmax_lse(q, k, w.bfloat16())
    assert all(torch.equal(a, b) for a, b in zip(actual, expected, strict=True))
    assert torch.equal(
        low,
        kindling.softmax_lse(q.bfloat16(), k.bfloat16(), w.bfloat16().float()),
    )


# Compile and export.


def teacher_and_loss(q, k, w, attn_q, attn_k, cu):
    rows = {
        "cu_seqlens_q": cu,
        "cu_seqlens_k": cu,
        "layout_q": "TND",
        "layout_k": "TND",
        "mask_mode": 3,
    }
    p = kt.attention_teacher(attn_q, attn_k, softmax_scale=0.2, max_seqlen_k=8, **rows)
    record = OPS.dense_lightning_indexer_kl_loss_grad_metadata(2, 1, 128, **rows)
    return kt.indexer_kl_loss(q * 2, k, w, p, metadata=record, reduction="mean", **rows)


def packed():
    torch.manual_seed(0)
    q, k, w = torch.randn(12, 2, 16), torch.randn(12, 1, 16), torch.randn(12, 2)
    attn = torch.randn(12, 4, 8), torch.randn(12, 2, 8)
    return q, k, w, *attn, torch.tensor([0, 5, 12], dtype=torch.int32)


@pytest.mark.parametrize("dynamic", [False, True])
def test_compile_without_graph_breaks(dynamic):
    q, k, w, *rest = packed()
    expected, actual = tc.leaves(q, k, w), tc.leaves(q, k, w)
    loss = teacher_and_loss(*expected, *rest)
    loss.backward()
    torch._dynamo.reset()
    compiled = torch.compile(teacher_and_loss, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    compiled_loss = compiled(*actual, *rest)
    compiled_loss.backward()
    assert torch.equal(compiled_loss, loss)
    for a, b in zip(actual, expected, strict=True):
        assert torch.equal(a.grad, b.grad)


@pytest.mark.slow
def test_compile_by_inductor():
    q, k, w, *rest = packed()
    expected, actual = tc.leaves(q, k, w), tc.leaves(q, k, w)
    teacher_and_loss(*expected, *rest).backward()
    torch._dynamo.reset()
    torch.compile(teacher_and_loss, fullgraph=True)(*actual, *rest).backward()
    for a, b in zip(actual, expected, strict=True):
        torch.testing.assert_close(a.grad, b.grad)


def test_compile_says_what_it_needs():
    q, k, w, attn_q, attn_k, cu = packed()

    def teacher(q, k):
        return kt.attention_teacher(
            q, k, cu_seqlens_q=cu, cu_seqlens_k=cu, layout_q="TND", layout_k="TND"
        )

    torch._dynamo.reset()
    with pytest.raises(Exception, match="max_seqlen_k: expected > 0 where a layout is TND"):
        torch.compile(teacher, fullgraph=True, backend="eager")(attn_q, attn_k)


@pytest.mark.parametrize("name", ["q", "k", "w", "p", "lse", "seqused_q", "metadata"])
def test_tensors_on_other_devices_are_refused(name):
    """Where one has no memory, the fake kernel answers, and must not do so for the others."""
    (q, k, w, p, lse), _ = grad_arguments(tc.PADDED)
    rows = {
        "seqused_q": torch.ones(q.shape[0], dtype=torch.int32),
        "metadata": torch.ones(64).int(),
    }
    tensors = {"q": q, "k": k, "w": w, "p": p, "lse": lse, **rows}
    tensors[name] = tensors[name].to("meta")
    message = f"^{name}: expected a tensor on cpu, got one on meta"
    if name == "q":
        message = "^k: expected a tensor on meta, got one on cpu"
    with pytest.raises(ValueError, match=message):
        kt.indexer_kl_loss(**tensors)
    positional = [tensors.pop(each) for each in ("q", "k", "w", "p", "lse")]
    with pytest.raises(ValueError, match=message):
        OPS.dense_lightning_indexer_kl_loss_grad(*positional, **tensors)


def test_teacher_of_symbolic_width():
    def teacher(q, k, cu):
        rows = {"cu_seqlens_q": cu, "cu_seqlens_k": cu, "layout_q": "TND", "layout_k": "TND"}
        return kt.attention_teacher(q, k, max_seqlen_k=q.shape[0], **rows)

    *_, q, k, cu = packed()
    traced = make_fx(teacher, tracing_mode="symbolic")(q, k, cu)
    longer = torch.cat((q, q)), torch.cat((k, k)), cu * 2
    assert torch.equal(traced(*longer), teacher(*longer))


def test_record_of_too_many_rows_is_refused():
    record = torch.zeros(64, dtype=torch.int32)
    record[:4] = torch.tensor([2**31 - 1, 2**31 - 1, 2**31 - 1, 2**31 - 2])
    (q, k, w, *_), lengths = grad_arguments(tc.PADDED)
    with pytest.raises(ValueError, match="^metadata: expected a record of"):
        OPS.dense_lightning_indexer_softmax_lse(q, k, w, **{**lengths, "metadata": record})


def test_traced_teacher_names_what_it_needs():
    def teacher(q, k, cu):
        rows = {"cu_seqlens_q": cu, "cu_seqlens_k": cu, "layout_q": "TND", "layout_k": "TND"}
        return kt.attention_teacher(q, k, **rows)

    *_, q, k, cu = packed()
    with pytest.raises(ValueError, match="^max_seqlen_k: expected > 0 where a layout is TND"):
        make_fx(teacher, tracing_mode="fake")(q, k, cu)


def test_export():
    class Loss(torch.nn.Module):
        def forward(self, *inputs):
            return teacher_and_loss(*inputs)

    inputs = packed()
    program = torch.export.export(Loss(), inputs)
    targets = {str(node.target) for node in program.graph.nodes}
    assert {"kindling.attention_teacher.default", "kindling.indexer_kl_loss.default"} <= targets
    assert torch.equal(program.module()(*inputs), teacher_and_loss(*inputs))


@pytest.mark.slow
def test_call_overhead():
    """Under 20 us over the same call on NumPy arrays, on a machine that does little else."""
    q, k, w = torch.randn(1, 4, 2, 8), torch.randn(1, 4, 1, 8), torch.randn(1, 4, 2)
    p = torch.full((1, 4, 1, 4), 0.25)
    lse = kindling.softmax_lse(q, k, w)
    rows = {"layout_q": "BSND", "layout_k": "BSND", "mask_mode": 0}

    def microseconds(function, *tensors):
        return 1e6 * min(
            timeit.timeit(lambda: function(*tensors, **rows), number=100) / 100 for _ in range(300)
        )

    for function, operator, tensors in (
        (kindling.softmax_lse, OPS.dense_lightning_indexer_softmax_lse, (q, k, w)),
        (kindling.kl_loss_grad, OPS.dense_lightning_indexer_kl_loss_grad, (q, k, w, p, lse)),
    ):
        arrays = [tensor.numpy() for tensor in tensors]
        assert microseconds(operator, *tensors) < microseconds(function, *arrays) + 20
