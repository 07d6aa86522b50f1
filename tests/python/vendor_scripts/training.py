"""A training loop with modules, autocast, events and a checkpoint. Written for the device."""

import io

import torch
import torch_npu  # noqa: F401
from cann_ops_transformer.ops import (
    dense_lightning_indexer_kl_loss_grad,
    dense_lightning_indexer_softmax_lse,
)

torch.npu.manual_seed(0)
torch.set_default_device("npu:0")
torch.npu.set_device("npu:0")


class Indexer(torch.nn.Module):
    def __init__(self, device=None):
        super().__init__()
        self.q = torch.nn.Linear(32, 4 * 128, device=device)
        self.k = torch.nn.Linear(32, 128, device=device)
        self.w = torch.nn.Linear(32, 4, device=device)

    def forward(self, hidden):
        q, k = self.q(hidden), self.k(hidden)
        return q.view(1, -1, 4, 128), k.view(1, -1, 1, 128), self.w(hidden).float() * 512**-0.5


indexer = Indexer(device="npu:0").npu().to("npu:0")
optimizer = torch.optim.Adam(indexer.parameters(), lr=1e-3)
hidden = torch.randn(1, 24, 32)
p = torch.softmax(4 * torch.randn(1, 24, 1, 24), dim=-1)
layouts = dict(layout_q="BSND", layout_k="BSND", mask_mode=0)

start, stop = (torch.npu.Event(enable_timing=True) for _ in range(2))
start.record()
divergences = []
for _ in range(30):
    with torch.autocast("npu", dtype=torch.bfloat16):
        q, k, w = indexer(hidden)
    assert q.dtype == torch.bfloat16
    inputs = [x.detach() for x in (q, k, w)]
    lse = dense_lightning_indexer_softmax_lse(*inputs)
    *grads, student = dense_lightning_indexer_kl_loss_grad(*inputs, p, lse, **layouts)
    divergences.append((p * (p.log() - student.log())).sum().item() / 24)
    optimizer.zero_grad()
    torch.autograd.backward([q, k, w], grads)
    optimizer.step()
stop.record()
torch.npu.synchronize()
assert start.elapsed_time(stop) > 0
assert divergences[-1] < 0.8 * divergences[0], divergences

file = io.BytesIO()
torch.save(indexer.state_dict(), file)
file.seek(0)
again = Indexer()
again.load_state_dict(torch.load(file, map_location="npu:0"))
for name, tensor in indexer.state_dict().items():
    assert torch.equal(tensor, again.state_dict()[name])
print("training ok")
