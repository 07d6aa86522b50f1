"""Packed batch: metadata, log-sum-exp and gradients, against autograd. Written for the device."""

import argparse

import torch
import torch_npu
from cann_ops_transformer.ops import (
    dense_lightning_indexer_kl_loss_grad,
    dense_lightning_indexer_kl_loss_grad_metadata,
    dense_lightning_indexer_softmax_lse,
    dense_lightning_indexer_softmax_lse_metadata,
)

parser = argparse.ArgumentParser()
parser.add_argument("--heads", type=int, default=8)
heads = parser.parse_args().heads

torch_npu.npu.set_device(0)
torch.manual_seed(0)
lengths = [5, 11]
total = sum(lengths)
cu = torch.tensor([0, 5, 16], dtype=torch.int32).npu()
q = torch.randn(total, heads, 128, dtype=torch.bfloat16).npu() * 0.1
k = torch.randn(total, 1, 128, dtype=torch.bfloat16, device="npu:0")
w = torch.randn(total, heads, device=torch.device("npu:0"))
p = torch.rand(total, 1, max(lengths)).to("npu")

rows = dict(cu_seqlens_q=cu, cu_seqlens_k=cu, layout_q="TND", layout_k="TND", mask_mode=3)
lse_plan = dense_lightning_indexer_softmax_lse_metadata(heads, 1, 128, **rows)
lse = dense_lightning_indexer_softmax_lse(q, k, w, metadata=lse_plan, **rows)
plan = dense_lightning_indexer_kl_loss_grad_metadata(heads, 1, 128, **rows)
dq, dk, dw, softmax = dense_lightning_indexer_kl_loss_grad(
    q, k, w, p, lse, cu_seqlens_q=cu, cu_seqlens_k=cu, metadata=plan
)
torch.npu.synchronize()

exact = [x.double().requires_grad_() for x in (q, k, w)]
loss = torch.zeros((), dtype=torch.float64)
for begin, end in ((0, 5), (5, 16)):
    a, b, c = exact[0][begin:end], exact[1][begin:end, 0], exact[2][begin:end]
    logits = (torch.einsum("thd,jd->htj", a, b).relu() * c.T[:, :, None]).sum(0)
    seen = torch.ones_like(logits, dtype=torch.bool).tril()
    target = p[begin:end, 0, : end - begin].double().masked_fill(~seen, 0)
    ln_y = logits.masked_fill(~seen, -torch.inf).log_softmax(-1).masked_fill(~seen, 0)
    loss = loss - (target * ln_y).sum()
loss.backward()
for ours, wanted in zip((dq, dk, dw), exact, strict=True):
    error = (ours.double() - wanted.grad).abs().max() / wanted.grad.abs().max()
    assert error < 0.02, error
assert softmax.is_npu and abs(softmax.sum().item() - total) < 1e-3
print("gradients ok", heads)
