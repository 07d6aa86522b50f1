"""Warm-up: one indexer for every layer of a real transformer, with checkpoints that resume.

Every layer of all-MiniLM-L6-v2 gets a LightningIndexer of its own, which learns to imitate that
layer's attention over the same text as in first_light. Layers are trained one after the other. The
state is written every few steps; a run that is stopped and started again ends in the same bits as
one that was not.

    python examples/warm_up/warm_up.py --out warm-up --steps 100 --seed 0
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "first_light"))

import corpus
import kindling
import minilm
import torch
import typer
from kindling.torch import LightningIndexer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

NUM_HEADS, HEAD_DIM, ROPE_DIM = 8, 64, 32
MAX_SLOTS = 2048
"""Slots of one minibatch: about six documents."""
LEARNING_RATE = 1e-3
CHECKPOINT = "state.pt"
FORMAT = 1


class LayerRun:
    """Training of one layer's indexer: everything that a step reads or writes."""

    def __init__(self, hidden_size: int, steps: int, seed: int, layer: int) -> None:
        torch.manual_seed(1000 * seed + layer)
        self.indexer = LightningIndexer(hidden_size, NUM_HEADS, HEAD_DIM, rope=ROPE_DIM)
        self.optimizer = torch.optim.AdamW(self.indexer.parameters(), lr=LEARNING_RATE)
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, T_max=steps)
        self.generator = torch.Generator().manual_seed(seed)
        self.losses: list[float] = []  # one per step, nats per token

    @property
    def step(self) -> int:
        return len(self.losses)

    def train_step(self, pack: minilm.Pack) -> float:
        """One step on documents drawn anew, up to MAX_SLOTS of them."""
        batch = pack.select(self._draw(pack))
        loss = self.indexer.loss(
            batch.hidden,
            batch.p,
            mask_mode=0,  # BERT looks both ways
            cu_seqlens=batch.cu_seqlens,
            seqused=batch.seqused,
        )
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.schedule.step()
        self.losses.append(loss.item())
        return self.losses[-1]

    def _draw(self, pack: minilm.Pack) -> list[int]:
        slots = pack.cu_seqlens.diff().tolist()
        chosen: list[int] = []
        for document in torch.randperm(pack.num_documents, generator=self.generator).tolist():
            if chosen and sum(slots[d] for d in chosen) + slots[document] > MAX_SLOTS:
                break
            chosen.append(document)
        return chosen

    def state(self) -> dict[str, Any]:
        return {
            "indexer": self.indexer.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "generator": self.generator.get_state(),
            "losses": self.losses,
        }

    def load(self, state: dict[str, Any]) -> None:
        self.indexer.load_state_dict(state["indexer"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])
        self.generator.set_state(state["generator"])
        self.losses = list(state["losses"])


@torch.no_grad()
def divergence(indexer: LightningIndexer, pack: minilm.Pack) -> float:
    """KL per token in nats."""
    lengths = {"cu_seqlens": pack.cu_seqlens, "seqused": pack.seqused}
    return indexer.loss(pack.hidden, pack.p, mask_mode=0, **lengths).item()


def save(path: Path, state: dict[str, Any]) -> None:
    """Write a checkpoint so that a stop at any time leaves the old one or the new one."""
    partial = path.with_suffix(".partial")
    torch.save(state, partial)
    os.replace(partial, path)


def load(path: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """Read a checkpoint of the same settings; a fresh state where there is none.

    Raises
    ------
    ValueError
        For a checkpoint of other settings, which this run could not continue.
    """
    if not path.exists():
        return {"settings": settings, "finished": {}, "current": None}
    state = torch.load(path, weights_only=True)
    if state["settings"] != settings:
        raise ValueError(f"{path}: expected settings {settings}, got {state['settings']}")
    return state


def run(
    out: Path,
    *,
    steps: int = 100,
    seed: int = 0,
    every: int = 20,
    threads: int | None = None,
    layers: int | None = None,
    max_documents: int | None = None,
    stop_after: int | None = None,
    console: Console | None = None,
) -> dict[str, Any]:
    """Warm up, or go on from the checkpoint in `out`.

    Parameters
    ----------
    out
        Folder of the checkpoint and, in the end, one file of weights per layer.
    steps
        Steps per layer.
    seed
        Decides documents, the indexers' start and the order of minibatches.
    every
        Steps between checkpoints.
    threads
        Threads for torch and Kindling; by default the cores this process may use. Torch's bits
        depend on them, Kindling's do not.
    layers, max_documents
        Fewer layers, fewer documents on either side: for quick tests.
    stop_after
        Stop, as if killed, after so many steps of this call.

    Returns
    -------
    dict
        The checkpoint's content: settings, finished layers, the layer at work.
    """
    console = console or Console()
    threads = threads or len(os.sched_getaffinity(0))
    torch.set_num_threads(threads)
    kindling.set_num_threads(threads)
    settings = {
        "format": FORMAT,
        "steps": steps,
        "seed": seed,
        "threads": threads,
        "max_documents": max_documents,
    }
    out.mkdir(parents=True, exist_ok=True)
    state = load(out / CHECKPOINT, settings)

    model, tokenizer = minilm.load(None)
    split = corpus.build_split(tokenizer, seed)
    num_layers = min(layers or len(model.encoder.layer), len(model.encoder.layer))
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[loss]} nats/token"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress:
        bars = [
            progress.add_task(f"layer {layer}", total=steps, loss="-", start=False)
            for layer in range(num_layers)
        ]
        for layer in range(num_layers):
            if layer in state["finished"]:
                done = state["finished"][layer]
                progress.update(bars[layer], completed=steps, loss=f"{done['heldout_last']:.3f}")
                continue
            train, difference = minilm.build_pack(model, split.train[:max_documents], layer)
            minilm.check_teacher(difference)
            heldout, _ = minilm.build_pack(model, split.heldout[:max_documents], layer)
            layer_run = LayerRun(model.config.hidden_size, steps, seed, layer)
            heldout_first = divergence(layer_run.indexer, heldout)
            if state["current"] is not None:
                layer_run.load(state["current"])
            progress.start_task(bars[layer])
            while layer_run.step < steps:
                if stop_after is not None:
                    if stop_after == 0:
                        return state
                    stop_after -= 1
                loss = layer_run.train_step(train)
                progress.update(bars[layer], completed=layer_run.step, loss=f"{loss:.3f}")
                if layer_run.step % every == 0:
                    state["current"] = layer_run.state()
                    save(out / CHECKPOINT, state)
            state["finished"][layer] = {
                "indexer": layer_run.indexer.state_dict(),
                "losses": layer_run.losses,
                "heldout_first": heldout_first,
                "heldout_last": divergence(layer_run.indexer, heldout),
            }
            state["current"] = None
            save(out / CHECKPOINT, state)
            torch.save(layer_run.indexer.state_dict(), out / f"layer{layer}.pt")
    for layer, result in state["finished"].items():
        console.print(
            f"layer {layer}  held-out divergence {result['heldout_first']:.3f} -> "
            f"{result['heldout_last']:.3f} nats/token",
            highlight=False,
        )
    return state


def main(
    out: Annotated[Path, typer.Option(help="Folder of checkpoint and weights.")] = Path("warm-up"),
    steps: Annotated[int, typer.Option(min=1, help="Steps per layer.")] = 100,
    seed: Annotated[int, typer.Option(min=0, help="Seed of everything random.")] = 0,
    every: Annotated[int, typer.Option(min=1, help="Steps between checkpoints.")] = 20,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads; by default all usable cores.")
    ] = None,
) -> None:
    """Warm up an indexer for every layer of a real transformer; resumes where it stopped."""
    run(out, steps=steps, seed=seed, every=every, threads=threads)


if __name__ == "__main__":
    typer.run(main)
