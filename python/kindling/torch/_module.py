"""The indexer as a module, in the form that DeepSeek-V3.2 publishes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from kindling._rows import CAUSAL, DEFAULTS, Rows, mask_of
from kindling._schema import index_of
from kindling.torch._loss import indexer_kl_loss, refuse_nested
from kindling.torch._scores import TopK, index_scores, index_topk

_MASK_MODE = CAUSAL  # of the module: self-attention of a decoder

# Devices that autocast does not know, Apple's in old releases. Asked here, since the tracer of
# torch 2.4 cannot follow the question.
_WITHOUT_AUTOCAST = tuple(
    device for device in ("meta", "mps") if not torch.amp.is_autocast_available(device)
)


@dataclass(frozen=True)
class Rope:
    """Rotary position embedding of the first `dim` elements of every head.

    Attributes
    ----------
    dim : int
        Even, at most the head width.
    theta : float
        Base of the frequencies ``theta ** (-2 i / dim)``.
    interleaved : bool
        Whether element 2i turns with 2i + 1, or i with i + dim / 2. The published indexer does the
        latter, although the main attention beside it does the former.
    frequencies : sequence of float or None
        In place of theta's, dim / 2 of them in radians per token, such as YaRN's.
    """

    dim: int
    theta: float = 10000.0
    interleaved: bool = False
    frequencies: Sequence[float] | None = None

    def __post_init__(self) -> None:
        if self.dim < 2 or self.dim % 2:
            raise ValueError(f"rope: expected an even dim >= 2, got {self.dim}")
        if not self.theta > 0:
            raise ValueError(f"rope: expected theta > 0, got {self.theta}")
        if self.frequencies is not None and len(self.frequencies) != self.dim // 2:
            raise ValueError(
                f"rope: expected {self.dim // 2} frequencies, got {len(self.frequencies)}"
            )

    def rates(self) -> Tensor:
        """Radians per token, float32 (dim / 2,)."""
        if self.frequencies is not None:
            return torch.tensor(self.frequencies, dtype=torch.float32)
        return self.theta ** (-torch.arange(0, self.dim, 2, dtype=torch.float32) / self.dim)

    def turn(self, x: Tensor, positions: Tensor) -> Tensor:
        """Turn x (..., heads, D) at positions (...)."""
        angles = positions.to(torch.float32)[..., None, None] * self.rates().to(x.device)
        cos, sin = angles.cos(), angles.sin()
        turned, rest = x[..., : self.dim].float(), x[..., self.dim :]
        if self.interleaved:
            a, b = turned[..., 0::2], turned[..., 1::2]
            turned = torch.stack((a * cos - b * sin, a * sin + b * cos), dim=-1).flatten(-2)
        else:
            a, b = turned.chunk(2, dim=-1)
            turned = torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1)
        return torch.cat((turned.to(x.dtype), rest), dim=-1)


class IndexerInputs(NamedTuple):
    """What :meth:`LightningIndexer.forward` returns: arguments of the operators.

    Attributes
    ----------
    q : Tensor, shape (B, S, N1, D) or (T, N1, D)
    k : Tensor, shape (B, S, 1, D) or (T, 1, D), dtype of q
    w : Tensor, shape (B, S, N1) or (T, N1), float32
        Scaled by ``N1 ** -0.5 * D ** -0.5``.
    """

    q: Tensor
    k: Tensor
    w: Tensor


class Float32Linear(nn.Linear):
    """A Linear that computes in float32 whatever its weight's dtype is, under autocast too."""

    def forward(self, x: Tensor) -> Tensor:
        device = x.device.type
        with torch.autocast("cpu" if device in _WITHOUT_AUTOCAST else device, enabled=False):
            bias = None if self.bias is None else self.bias.float()
            return functional.linear(x.float(), self.weight.float(), bias)


def _has_elements(tensor: Tensor | None) -> bool:
    return tensor is not None and tensor.numel() > 0


def _without_row_dim(tensor: Any, rank: int) -> Any:
    """One row's tensor of that rank without its leading dim; the operators judge all others."""
    if isinstance(tensor, Tensor) and tensor.dim() == rank and tensor.shape[0] == 1:
        return tensor[0]
    return tensor


class LightningIndexer(nn.Module):
    """Query and key projections, key LayerNorm, partial rotary embedding, head weights.

    ==========================  ==================================================================
    state dict                  what it is; the names of the published checkpoint's
                                ``model.layers.<n>.self_attn.indexer.*``
    ==========================  ==================================================================
    ``wq_b.weight``             queries, (num_heads * head_dim, q_lora or hidden)
    ``wk.weight``               keys, (head_dim, hidden)
    ``k_norm.weight, .bias``    LayerNorm of the keys, (head_dim,), eps 1e-6
    ``weights_proj.weight``     head weights, (num_heads, hidden); computed in float32
    ==========================  ==================================================================

    The published code also turns q and k by a Hadamard matrix before it quantises them to fp8. That
    leaves their products as they are, and there is no quantisation here, so neither is done.

    Parameters
    ----------
    hidden : int
        Width of the hidden states.
    num_heads, head_dim : int
        Heads and head width of the indexer; published: 64 and 128.
    q_lora : int or None
        Width of the main attention's query latent, if queries are made of that; published: 1536.
        None: they are made of the hidden states.
    rope : Rope, int or None
        Rotary embedding, or its dim; published: 64 with YaRN's frequencies. None: there is none.
    device, dtype
        Of the parameters.
    """

    def __init__(
        self,
        hidden: int,
        num_heads: int,
        head_dim: int,
        q_lora: int | None = None,
        rope: Rope | int | None = None,
        *,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        widths = {"hidden": hidden, "num_heads": num_heads, "head_dim": head_dim}
        if q_lora is not None:
            widths["q_lora"] = q_lora
        for name, value in widths.items():
            index = index_of(value)
            if index is None:
                raise TypeError(f"{name}: expected an int, got {type(value).__name__}")
            if index < 1:
                raise ValueError(f"{name}: expected >= 1, got {index}")
            widths[name] = index
        if not isinstance(rope, (bool, Rope)) and index_of(rope) is not None:
            rope = index_of(rope)
        if not (rope is None or isinstance(rope, (int, Rope))):
            raise TypeError(f"rope: expected a Rope, an int or None, got {type(rope).__name__}")
        hidden, num_heads, head_dim = list(widths.values())[:3]
        q_lora = widths.get("q_lora")
        self.hidden, self.num_heads, self.head_dim, self.q_lora = (
            hidden,
            num_heads,
            head_dim,
            q_lora,
        )
        self.rope = Rope(rope) if isinstance(rope, int) else rope
        if self.rope is not None and self.rope.dim > head_dim:
            raise ValueError(f"rope: expected dim <= head_dim = {head_dim}, got {self.rope.dim}")
        where = {"device": device, "dtype": dtype}
        self.wq_b = nn.Linear(q_lora or hidden, num_heads * head_dim, bias=False, **where)
        self.wk = nn.Linear(hidden, head_dim, bias=False, **where)
        self.k_norm = nn.LayerNorm(head_dim, eps=1e-6, **where)
        self.weights_proj = Float32Linear(hidden, num_heads, bias=False, **where)

    def forward(
        self,
        hidden: Tensor,
        q_latent: Tensor | None = None,
        *,
        positions: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
    ) -> IndexerInputs:
        """Project hidden states to q, k and w.

        Parameters
        ----------
        hidden : Tensor, shape (B, S, hidden) or (T, hidden)
            Padded or packed hidden states, as the main attention gets them.
        q_latent : Tensor or None, shape (B, S, q_lora) or (T, q_lora)
            The main attention's query latent after its norm; required where there is a q_lora.
        positions : Tensor or None, shape (S,), (B, S) or (T,), integers
            For the rotary embedding, without which they have no effect; None: counted from 0 in
            every sequence.
        cu_seqlens : Tensor or None, shape (B + 1,), int32
            First token of each packed sequence, read where positions are needed and not given.
            Hidden states of shape (1, T, hidden) beside it are one row of packed tokens; those of
            several padded sequences are refused.

        Returns
        -------
        IndexerInputs
            ``(q, k, w)``.
        """
        refuse_nested("hidden", hidden)
        if hidden.dim() not in (2, 3) or hidden.shape[-1] != self.hidden:
            raise ValueError(
                f"hidden: expected shape (B, S, {self.hidden}) or (T, {self.hidden}), "
                f"got {tuple(hidden.shape)}"
            )
        if not (cu_seqlens is None or isinstance(cu_seqlens, Tensor)):
            raise TypeError(f"cu_seqlens: expected a torch.Tensor, got {type(cu_seqlens).__name__}")
        if not _has_elements(cu_seqlens):
            cu_seqlens = None
        if cu_seqlens is not None and hidden.dim() == 3 and hidden.shape[0] != 1:
            raise ValueError(
                f"cu_seqlens: expected packed hidden states, (T, {self.hidden}) or "
                f"(1, T, {self.hidden}), beside it, got {tuple(hidden.shape)}"
            )
        source = hidden
        if self.q_lora is not None:
            wanted = (*hidden.shape[:-1], self.q_lora)
            if q_latent is None or q_latent.shape != wanted:
                got = "none" if q_latent is None else tuple(q_latent.shape)
                raise ValueError(f"q_latent: expected shape {wanted}, got {got}")
            source = q_latent
        elif q_latent is not None:
            raise ValueError("q_latent: expected none, as the module has no q_lora, got one")
        q = self.wq_b(source).unflatten(-1, (self.num_heads, self.head_dim))
        k = self.k_norm(self.wk(hidden)).unsqueeze(-2).to(q.dtype)  # autocast norms in float32
        if positions is not None and positions.shape not in (
            hidden.shape[:-1],
            hidden.shape[-2:-1],
        ):
            raise ValueError(
                f"positions: expected shape {tuple(hidden.shape[-2:-1])} or "
                f"{tuple(hidden.shape[:-1])}, got {tuple(positions.shape)}"
            )
        if self.rope is not None:
            if positions is None:
                positions = self._positions(hidden, cu_seqlens)
            q, k = self.rope.turn(q, positions), self.rope.turn(k, positions)
        w = self.weights_proj(hidden) * (self.num_heads**-0.5 * self.head_dim**-0.5)
        return IndexerInputs(q, k, w)

    @staticmethod
    def _positions(hidden: Tensor, cu_seqlens: Tensor | None) -> Tensor:
        tokens = torch.arange(hidden.shape[-2], device=hidden.device)
        if cu_seqlens is None:
            if hidden.dim() == 3:
                return tokens
            raise ValueError(
                "positions: expected positions or cu_seqlens for packed hidden states, got neither"
            )
        sequence = torch.searchsorted(cu_seqlens.to(tokens.dtype), tokens, right=True) - 1
        return tokens - cu_seqlens.to(tokens.dtype)[sequence]

    def loss(
        self,
        hidden: Tensor,
        p: Tensor,
        q_latent: Tensor | None = None,
        *,
        positions: Tensor | None = None,
        mask_mode: int = 3,
        causal: bool | None = None,
        rows: Rows | None = None,
        reduction: str = "mean",
        **options: Any,
    ) -> Tensor:
        """KL divergence from the teacher p of these hidden states, self-attention.

        Parameters
        ----------
        hidden, q_latent, positions
            As in :meth:`forward`. The layout follows from the rank of hidden; with ``cu_seqlens``
            (1, T, hidden) is one row of packed tokens too.
        p : Tensor, shape (B, S, 1, S) or ([1,] T, 1, >= longest sequence), float32
            As :func:`kindling.torch.attention_teacher` makes it: of packed tokens, column j is key
            j of the row's own sequence.
        mask_mode : {0, 3}
            Causal (3) by default, unlike the operators.
        causal : bool or None
            True: ``mask_mode`` 3; False: 0; None: as ``mask_mode`` says.
        rows : Rows or None
            A :class:`kindling.Rows` that says all of lengths and mask; in place of both.
        reduction : {"sum", "mean", "none"}
        **options
            Length tensors and others of :func:`kindling.torch.indexer_kl_loss`. ``cu_seqlens`` and
            ``seqused`` stand for both sides.

        Returns
        -------
        Tensor, shape () or, for ``"none"``, (B, 1, S) or (1, T)
            Detach hidden and q_latent to train the indexer alone, as the dense warm-up does.
        """
        inputs, options, is_row = self._prepare(
            hidden, q_latent, positions, mask_mode, causal, rows, options
        )
        if is_row:
            p = _without_row_dim(p, 4)
            options["lse"] = _without_row_dim(options.get("lse"), 3)
        loss = indexer_kl_loss(*inputs, p, reduction=reduction, **options)
        return loss[None] if is_row and reduction == "none" else loss

    @torch.no_grad()
    def scores(
        self,
        hidden: Tensor,
        q_latent: Tensor | None = None,
        *,
        positions: Tensor | None = None,
        mask_mode: int = 3,
        causal: bool | None = None,
        rows: Rows | None = None,
        **options: Any,
    ) -> Tensor:
        """Logits of these hidden states by :func:`kindling.torch.index_scores`; no gradient.

        Hidden states and lengths as in :meth:`loss`. Of (1, T, hidden) with ``cu_seqlens`` the
        result has that leading dim.
        """
        inputs, options, is_row = self._prepare(
            hidden, q_latent, positions, mask_mode, causal, rows, options
        )
        scores = index_scores(*inputs, **options)
        return scores[None] if is_row else scores

    @torch.no_grad()
    def topk(
        self,
        hidden: Tensor,
        topk: int,
        q_latent: Tensor | None = None,
        *,
        positions: Tensor | None = None,
        mask_mode: int = 3,
        causal: bool | None = None,
        rows: Rows | None = None,
        **options: Any,
    ) -> TopK:
        """Best keys of every row by :func:`kindling.torch.index_topk`; no gradient.

        Hidden states, lengths and the leading dim as in :meth:`scores`.
        """
        inputs, options, is_row = self._prepare(
            hidden, q_latent, positions, mask_mode, causal, rows, options
        )
        best = index_topk(*inputs, topk, **options)
        return TopK(*(of_row[None] for of_row in best)) if is_row else best

    def _prepare(
        self,
        hidden: Tensor,
        q_latent: Tensor | None,
        positions: Tensor | None,
        mask_mode: int,
        causal: bool | None,
        rows: Rows | None,
        options: dict[str, Any],
    ) -> tuple[IndexerInputs, dict[str, Any], bool]:
        """The operators' arguments, and whether they are one row of packed tokens, (1, T, hidden)
        with cu_seqlens, whose leading dim the operators do not have."""
        options = dict(options)
        for name in ("cu_seqlens", "seqused"):
            both = options.pop(name, None)
            if both is not None:
                for one in (f"{name}_q", f"{name}_k"):
                    if options.get(one) is not None:
                        raise ValueError(
                            f"{one}: expected none beside {name}, which is both sides', got one"
                        )
                    options[one] = both
        if rows is not None:
            for name in options:
                if name in DEFAULTS:
                    raise ValueError(f"{name}: expected none beside rows, which holds it, got one")
            if mask_mode not in (_MASK_MODE, rows.mask_mode):
                raise ValueError(f"mask_mode: expected none beside rows, got {mask_mode}")
            options.update(rows)
            mask_mode = mask_of(causal, rows.mask_mode)
        else:
            mask_mode = mask_of(causal, mask_mode, _MASK_MODE)
        cu_seqlens = options.get("cu_seqlens_q")
        inputs = self(hidden, q_latent, positions=positions, cu_seqlens=cu_seqlens)
        is_row = hidden.dim() == 3 and hidden.shape[0] == 1 and _has_elements(cu_seqlens)
        if is_row:
            inputs = IndexerInputs(*(tensor[0] for tensor in inputs))
        layout = "BSND" if hidden.dim() == 3 and not is_row else "TND"
        options = {"layout_q": layout, "layout_k": layout, **options, "mask_mode": mask_mode}
        return inputs, options, is_row

    def extra_repr(self) -> str:
        return (
            f"hidden={self.hidden}, num_heads={self.num_heads}, head_dim={self.head_dim}, "
            f"q_lora={self.q_lora}, rope={self.rope}"
        )
