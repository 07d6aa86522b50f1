"""The chain from latent attention to gradients in a padded batch. Written for the device."""

import torch
import torch_npu
from cann_ops_transformer import ops

device = torch.device("npu")
with device:
    q = torch.randn(2, 6, 4, 512, dtype=torch.float16)
    k = torch.randn(2, 6, 1, 512, dtype=torch.float16)
used = torch.tensor([6, 4], dtype=torch.int32, device=device)
scale = 512**-0.5
scores = scale * torch.einsum("bsgd,btd->bsgt", q.float(), k[:, :, 0].float())
seen = torch.arange(6) < used[:, None]
lse = scores.masked_fill(~seen[:, None, None], -torch.inf).logsumexp(-1)[:, None]

lengths = dict(seqused_q=used, seqused_k=used, mask_mode=0)
plan = ops.sparse_flash_mla_softmax_l1_norm_metadata(
    4, 1, 512, max_seqlen_q=6, max_seqlen_k=6, **lengths
)
p = ops.sparse_flash_mla_softmax_l1_norm(q, k, lse, softmax_scale=scale, metadata=plan, **lengths)
assert p.shape == (2, 6, 1, 6)
sums = p.sum(-1)[:, :, 0]
assert torch.allclose(sums, (torch.arange(6) < used[:, None]).float(), atol=1e-4), sums

indexer = [torch.randn(*shape).npu() for shape in ((2, 6, 8, 128), (2, 6, 1, 128), (2, 6, 8))]
layouts = dict(layout_q="BSND", layout_k="BSND")
student = ops.dense_lightning_indexer_softmax_lse(*indexer, **lengths)
grads = torch.ops.cann_ops_transformer.dense_lightning_indexer_kl_loss_grad(
    *indexer, p, student, **layouts, **lengths
)
torch_npu.npu.synchronize()
assert all(torch.isfinite(grad).all() for grad in grads)
assert not grads[0][1, 4:].any() and grads[0][1, :4].any()
print("teacher ok", torch.npu.device_count(), torch.npu.is_available())
