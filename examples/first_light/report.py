"""The demo's table and pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import PowerNorm
from minilm import Pack
from rich.table import Table
from torch import Tensor

BLUE, ORANGE, GREY = "#1f5fa8", "#d9731a", "#8a8a8a"
HELDOUT_SHARE = 0.6
"""The held-out loss should fall below this share of its start."""
RANDOM_FACTOR = 1.3
"""The trained recall should exceed both random's and the untrained indexer's by this factor."""

plt.rcParams.update(
    {
        "figure.dpi": 110,
        "font.size": 12,
        "axes.titlesize": 13,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "figure.constrained_layout.use": True,
    }
)


def _save(figure: plt.Figure, path: Path) -> None:
    figure.savefig(path)
    plt.close(figure)


def draw_loss(path: Path, curve: list[float], heldout: list[tuple[int, float]]) -> None:
    """KL per token of each minibatch, and of the held-out documents now and then."""
    figure, axes = plt.subplots(figsize=(8, 4.5))
    axes.plot(curve, color=BLUE, linewidth=1, alpha=0.8, label="training minibatch")
    axes.plot(*zip(*heldout, strict=True), "o-", color=ORANGE, label="held-out documents")
    goal = HELDOUT_SHARE * heldout[0][1]
    axes.axhline(goal, color=GREY, linestyle="--", linewidth=1)
    axes.annotate(
        f"{HELDOUT_SHARE} of the held-out start", (1, goal), xycoords=("axes fraction", "data"),
        xytext=(0, 4), textcoords="offset points", ha="right", color=GREY,
    )  # fmt: skip
    axes.set(xlabel="Adam step", ylabel="KL(teacher || student), nats per token")
    axes.set_ylim(bottom=0)
    axes.set_title(f"Held-out loss {heldout[0][1]:.2f} -> {heldout[-1][1]:.2f} nats per token")
    axes.legend(frameon=False)
    _save(figure, path)


def attention_of(pack: Pack, matrix: Tensor, document: int) -> np.ndarray:
    """One document's (n, n) block of a (T, 1, max_seqlen_k) tensor."""
    return matrix[pack.rows(document), 0, : int(pack.seqused[document])].numpy()


def draw_attention(
    path: Path, teacher: np.ndarray, untrained: np.ndarray, trained: np.ndarray, *, source: str
) -> None:
    """Teacher beside student, all (n, n) and on one colour scale."""
    n = len(teacher)
    norm = PowerNorm(0.4, vmin=0, vmax=float(np.quantile(teacher, 0.999)))
    figure, axes = plt.subplots(1, 3, figsize=(14, 5.2), sharey=True)
    panels = {"teacher": teacher, "student, trained": trained, "student, untrained": untrained}
    for axis, (title, matrix) in zip(axes, panels.items(), strict=True):
        image = axis.imshow(matrix, cmap="magma", norm=norm, interpolation="antialiased")
        axis.set(title=title, xlabel="key")
    axes[0].set_ylabel("query")
    figure.colorbar(image, ax=axes, label="probability", shrink=0.8, extend="max")
    figure.suptitle(f"A held-out document ({source}, {n} tokens)")
    _save(figure, path)


class Plan(NamedTuple):
    """Rows and visible keys per core; int64 (C,) each."""

    rows: np.ndarray
    cost: np.ndarray


def read_plan(metadata: Any, seqused: Tensor) -> Plan:
    """Read a metadata record, int32 (64,): core c serves rows c, c + used, c + 2 used, ...

    Parameters
    ----------
    metadata
        int32 (64,); words 0..4 are rows, former size, remaining size, remaining cores, used cores.
    seqused
        int32 (B,): mask 0, so every row of a document sees all of its tokens.
    """
    num_rows, former, remain, num_remain, used = np.asarray(metadata)[:5].tolist()
    num_cores = (num_rows + num_remain) // former
    visible_keys = np.repeat(seqused.numpy(), seqused.numpy()).astype(np.int64)
    rows = np.full(num_cores, former)
    rows[num_cores - num_remain :] = remain
    rows[used:] = 0
    dealt = [visible_keys[core::used] for core in range(used)]
    if num_rows != len(visible_keys) or rows[:used].tolist() != [len(d) for d in dealt]:
        raise RuntimeError(f"plan: expected {len(visible_keys)} rows dealt, got {rows.tolist()}")
    cost = np.zeros(num_cores, np.int64)
    cost[:used] = [d.sum() for d in dealt]
    return Plan(rows, cost)


def draw_plan(path: Path, plan: Plan) -> None:
    """Rows and cost per core, as two rows of bars."""
    figure, axes = plt.subplots(2, 1, figsize=(9, 5.5), sharex=True)
    names = ("rows", "cost: visible keys of its rows")
    for axis, values, color, name in zip(axes, plan, (BLUE, ORANGE), names, strict=True):
        axis.bar(np.arange(len(values)), values, color=color)
        axis.axhline(values.mean(), color="black", linestyle="--", linewidth=1)
        axis.set_title(
            f"{name}: {values.min()} to {values.max()}, busiest core "
            f"{100 * (values.max() / values.mean() - 1):.1f} % above the mean (dashed)",
            loc="left",
        )
        axis.margins(x=0.01)
    axes[1].set(xlabel="core", xticks=range(len(plan.rows)))
    figure.suptitle(f"Plan of one minibatch: {plan.rows.sum()} rows on {len(plan.rows)} cores")
    _save(figure, path)


def table(m: dict[str, Any]) -> Table:
    """The metrics as a table, with what was expected of them."""

    def verdict(text: str, reached: bool) -> str:
        return f"{text} {'[green]ok' if reached else '[red]missed'}[/]"

    share = m["heldout_kl_last"] / m["heldout_kl_first"]
    factor = m["recall_last"] / max(m["recall_random"], m["recall_first"])
    speedup = m["torch_step_ms"] / m["kindling_step_ms"]
    rows = (
        ("training KL, nats/token", m["kl_first"], m["kl_last"], f"{m['steps']} steps"),
        (
            "held-out KL, nats/token",
            m["heldout_kl_first"],
            m["heldout_kl_last"],
            verdict(f"{share:.3f} of start (< {HELDOUT_SHARE})", share < HELDOUT_SHARE),
        ),
        (
            "held-out recall of top 32",
            m["recall_first"],
            m["recall_last"],
            verdict(f"{factor:.2f} x better (> {RANDOM_FACTOR})", factor > RANDOM_FACTOR),
        ),
        ("  32 random keys", None, m["recall_random"], ""),
        ("  32 nearest keys", None, m["recall_nearest"], ""),
        ("  teacher's own top 32", None, m["recall_teacher"], "the ceiling"),
        (
            "step by Kindling, ms",
            None,
            m["kindling_step_ms"],
            f"{m['compared_rows']} rows, {m['threads']} threads",
        ),
        (
            "step by torch autograd, ms",
            None,
            m["torch_step_ms"],
            verdict(f"{speedup:.2f} x Kindling (> 1)", speedup > 1),
        ),
        (
            "gradients differ by",
            None,
            m["max_abs_grad_difference"],
            f"{m['max_rel_grad_difference']:.1e} of the largest",
        ),
        ("seconds in all", None, m["seconds"], f"training {m['train_seconds']:.1f}"),
    )
    result = Table(title="First light", title_justify="left")
    for name, justify in (("", "left"), ("start", "right"), ("end", "right"), ("", "left")):
        result.add_column(name, justify=justify)
    for name, first, last, note in rows:
        result.add_row(name, "" if first is None else f"{first:.4f}", f"{last:.4g}", note)
    return result
