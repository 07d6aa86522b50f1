"""First light: teach an indexer to imitate a real transformer's attention, with Kindling.

Licence texts and this project's docs go through all-MiniLM-L6-v2. Kindling turns one layer's
queries and keys into the teacher, which must equal the model's own attention, and supplies the
loss and the gradients that train an indexer of eight heads. Text that the indexer has not seen
judges it. Results go to ``metrics.json`` and three pictures.

    python examples/first_light/demo.py --out demo-report --steps 200 --seed 0 --threads 2
"""

# ruff: noqa: E402  (the clock starts before the slow imports)
from __future__ import annotations

import time

_START = time.perf_counter()

import json
import os
from pathlib import Path
from typing import Annotated, Any

import corpus
import indexer as student
import kindling
import minilm
import report
import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

MAX_SLOTS = 2048
"""Slots of one minibatch: about six documents."""
LEARNING_RATE = 1e-3
HELDOUT_EVERY = 25
"""Steps between two looks at the held-out loss. They draw the curve; nothing is chosen by it."""
PLAN_CORES = 24
"""Cores of the pictured plan, as many as the smaller of the vendor's chips has."""
GRADIENT_TOLERANCE = 1e-3
"""Relative. Both sides compute in float32 with different summation orders, some 1e-6; a score that
rounds to opposite sides of the ReLU's kink adds one key's share. Anything above is a defect."""


def run(
    out: Path,
    *,
    steps: int = 200,
    seed: int = 0,
    threads: int | None = None,
    max_documents: int | None = None,
    console: Console | None = None,
    start: float | None = None,
) -> dict[str, Any]:
    """Run the whole demo and return what ``metrics.json`` holds.

    Parameters
    ----------
    out
        Folder for the report; made if missing.
    steps
        Adam steps.
    seed
        Decides document lengths, the indexer's start and the order of minibatches.
    threads
        Threads for torch and for Kindling; by default the cores this process may use.
    max_documents
        Keep only so many documents on either side (for quick tests).
    start
        ``time.perf_counter()`` at the beginning, if that was before the call.
    """
    start = time.perf_counter() if start is None else start
    console = console or Console()
    threads = threads or len(os.sched_getaffinity(0))
    torch.set_num_threads(threads)
    kindling.set_num_threads(threads)
    torch.manual_seed(seed)

    model, tokenizer = minilm.load()
    split = corpus.build_split(tokenizer, seed)
    shared = corpus.shared_runs(split.train, split.heldout)
    if shared:
        raise RuntimeError(f"split: expected no run of tokens on both sides, got {shared}")
    train, train_difference = minilm.build_pack(model, split.train[:max_documents])
    heldout, heldout_difference = minilm.build_pack(model, split.heldout[:max_documents])
    teacher_difference = max(train_difference, heldout_difference)
    minilm.check_teacher(teacher_difference)
    console.print(
        f"training  {train.num_documents:4d} documents {train.num_rows:6d} tokens  "
        f"(left out: {split.num_shared} passages shared with held-out text, "
        f"{split.num_repeated} repeats)\n"
        f"held out  {heldout.num_documents:4d} documents {heldout.num_rows:6d} tokens  "
        f"({', '.join(sorted({d.source for d in split.heldout[:max_documents]}))})\n"
        f"teacher   layer {minilm.LAYER} of 0..{model.config.num_hidden_layers - 1}, equal to the "
        f"model's head-mean attention within {teacher_difference:.1e}",
        soft_wrap=True,
        highlight=False,
    )

    indexer = student.Indexer(model.config.hidden_size)
    kl_first = student.divergence(indexer, train)
    first = student.evaluate(indexer, heldout)
    curve: list[float] = []
    heldout_curve = [(0, first.kl)]
    columns = (
        TextColumn("training"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]:.3f}  held-out {task.fields[heldout]:.3f} nats/token"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=steps, loss=kl_first, heldout=first.kl)

        def on_step(step: int, kl: float) -> None:
            curve.append(kl)
            if step > 0 and step % HELDOUT_EVERY == 0:
                heldout_curve.append((step, student.divergence(indexer, heldout)))
            progress.update(task, advance=1, loss=kl, heldout=heldout_curve[-1][1])

        train_start = time.perf_counter()
        tokens = student.train(
            indexer,
            train,
            steps=steps,
            max_slots=MAX_SLOTS,
            seed=seed,
            learning_rate=LEARNING_RATE,
            on_step=on_step,
        )
        train_seconds = time.perf_counter() - train_start
    last = student.evaluate(indexer, heldout)
    heldout_curve.append((steps, last.kl))

    batch = train.select(
        next(student.minibatches(train, MAX_SLOTS, torch.Generator().manual_seed(seed)))
    )
    comparison = student.compare(indexer, batch)
    if not comparison.max_rel_difference <= GRADIENT_TOLERANCE:
        raise RuntimeError(
            f"gradients: expected torch autograd's within {GRADIENT_TOLERANCE:g} of the largest, "
            f"got {comparison.max_rel_difference:g}"
        )

    out.mkdir(parents=True, exist_ok=True)
    report.draw_loss(out / "loss.png", curve, heldout_curve)
    longest = int(heldout.seqused.argmax())
    report.draw_attention(
        out / "teacher_student.png",
        *(
            report.attention_of(heldout, t, longest)
            for t in (heldout.p, first.student, last.student)
        ),
        source=split.heldout[longest].source,
    )
    plan = report.read_plan(
        kindling.make_metadata(
            student.NUM_HEADS, 1, student.HEAD_DIM, num_cores=PLAN_CORES, **batch.lengths
        ),
        batch.seqused,
    )
    report.draw_plan(out / "plan.png", plan)

    metrics: dict[str, Any] = {
        "kl_first": kl_first,
        "kl_last": student.divergence(indexer, train),
        "heldout_kl_first": first.kl,
        "heldout_kl_last": last.kl,
        "recall_first": first.recall,
        "recall_last": last.recall,
        "recall_random": student.recall_random(heldout),
        "recall_nearest": student.recall_nearest(heldout),
        "recall_teacher": student.recall(heldout.p, heldout),
        "steps": steps,
        "tokens": tokens,
        "train_tokens": train.num_rows,
        "heldout_tokens": heldout.num_rows,
        "layer": minilm.LAYER,
        "seed": seed,
        "threads": threads,
        "teacher_max_abs_difference": teacher_difference,
        "kindling_step_ms": comparison.kindling_ms,
        "torch_step_ms": comparison.torch_ms,
        "compared_rows": comparison.rows,
        "max_abs_grad_difference": comparison.max_abs_difference,
        "max_rel_grad_difference": comparison.max_rel_difference,
        "train_seconds": train_seconds,
        "seconds": time.perf_counter() - start,
        "kindling_version": kindling.__version__,
        "torch_version": torch.__version__,
    }
    (out / "metrics.json").write_text(json.dumps(metrics, indent=2) + "\n", encoding="utf-8")
    console.print(report.table(metrics))
    console.print(
        f"report    {out}/metrics.json, loss.png, teacher_student.png, plan.png", soft_wrap=True
    )
    return metrics


def main(
    out: Annotated[Path, typer.Option(help="Folder for the report.")] = Path("demo-report"),
    steps: Annotated[int, typer.Option(min=1, help="Adam steps.")] = 200,
    seed: Annotated[int, typer.Option(min=0, help="Seed of everything random.")] = 0,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads; by default all usable cores.")
    ] = None,
) -> None:
    """Train an indexer on a real transformer's attention over real text, and report."""
    run(out, steps=steps, seed=seed, threads=threads, start=_START)


if __name__ == "__main__":
    typer.run(main)
