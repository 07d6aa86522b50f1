"""The command ``kindling plan``: lengths in, a plan and its loads out."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

import kindling

WORD_NAMES = (
    "totalSize",
    "formerCoreSize",
    "remainCoreSize",
    "remainCoreNum",
    "usedCoreNum",
    "maxSeqK",
    "extensionTag",
    "extensionVersion",
    "law",
    "pairCost",
    "rowOverhead",
)
"""Vendor's names of words 0 to 5, ours of the extension; the words after them are reserved."""

MAX_LISTED_CORES = 4096
"""Above that many cores, ``per_core`` lists those that have rows only."""

_DOCS = {argument.name: argument.doc for argument in kindling.describe_metadata()}


def read_array(text: str, name: str, entry: str | None = None) -> np.ndarray:
    """Integers from ``1,2,3`` or from a file, ``FILE`` or ``FILE:ENTRY``.

    Parameters
    ----------
    text
        A list of integers with commas, or the path of a ``.json``, ``.npy`` or ``.safetensors``
        file; an entry of a JSON object or a safetensors file is chosen by ``:ENTRY``.
    name
        What messages call the argument.
    entry
        The entry to take where the file has several and none is named.

    Returns
    -------
    numpy.ndarray, int32 for lists and JSON, else as the file has it

    Raises
    ------
    ValueError, TypeError
        ``<name>: expected ..., got ...``
    """
    path, _, chosen = text.partition(":")
    suffix = Path(path).suffix.lower()
    if suffix not in (".json", ".npy", ".safetensors"):
        return _to_int32(text.split(",") if text.strip() else [], name)
    chosen = chosen or None
    try:
        if suffix == ".npy":
            return np.load(path, allow_pickle=False)
        if suffix == ".json":
            content = json.loads(Path(path).read_text(encoding="utf-8"))
            if isinstance(content, dict):
                content = content[_entry(content, chosen or entry, name, path)]
            return _to_int32(content, name)
        from safetensors import safe_open

        with safe_open(path, framework="numpy") as file:
            return file.get_tensor(_entry(file.keys(), chosen or entry, name, path))
    except (OSError, UnicodeDecodeError, EOFError) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise ValueError(f"{name}: expected a readable file, got {path}: {reason}") from None
    except (TypeError, ValueError) as error:
        if str(error).startswith(f"{name}:"):
            raise
        raise ValueError(f"{name}: expected a {suffix} file, got {path}: {error}") from None
    except Exception as error:  # safetensors has errors of its own kind
        raise ValueError(f"{name}: expected a {suffix} file, got {path}: {error}") from None


def _entry(entries: Any, wanted: str | None, name: str, path: str) -> str:
    found = sorted(entries)
    if wanted in found:
        return wanted
    if wanted is None and len(found) == 1:
        return found[0]
    got = "none" if wanted is None else repr(wanted)
    raise ValueError(f"{name}: expected one of the entries {found} of {path}, got {got}")


def _to_int32(values: Any, name: str) -> np.ndarray:
    if not isinstance(values, list):
        raise ValueError(f"{name}: expected a list of integers, got {type(values).__name__}")
    out = np.empty(len(values), np.int32)
    for i, value in enumerate(values):
        if isinstance(value, str):
            try:
                value = int(value)
            except ValueError:
                raise ValueError(f"{name}[{i}]: expected an integer, got {value!r}") from None
        if not isinstance(value, int) or isinstance(value, bool):
            raise ValueError(f"{name}[{i}]: expected an integer, got {value!r}")
        if not -(2**31) <= value < 2**31:
            raise ValueError(f"{name}[{i}]: expected a 32-bit integer, got {value}")
        out[i] = value
    return out


def write_atomically(path: Path, write: Callable[[Path], None]) -> None:
    """Let ``write`` fill a file beside ``path`` and move it there when it is whole."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=path.suffix, dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        write(temporary)
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def summarize(words: Sequence[int], plan: kindling.Plan) -> dict[str, Any]:
    """What ``--json`` prints.

    Returns
    -------
    dict
        ``words`` (64 ints), ``names`` (of the first words), ``law``, ``num_cores``,
        ``per_core`` (a list with ``rows``, a count, and ``cost``, for cores 0, 1, ...; idle cores
        included up to :data:`MAX_LISTED_CORES`), ``imbalance`` (largest cost / mean cost over all
        cores of the plan; 1 where there is nothing to do).
    """
    rows, costs = plan.num_rows_of_cores().tolist(), plan.cost_of_cores().tolist()
    if plan.num_rows > 0 and plan.num_cores <= MAX_LISTED_CORES:
        idle = [0] * (plan.num_cores - len(rows))
        rows, costs = rows + idle, costs + idle
    total = sum(costs)
    return {
        "words": [int(word) for word in words],
        "names": list(WORD_NAMES),
        "law": plan.law,
        "num_cores": plan.num_cores,
        "per_core": [{"rows": r, "cost": c} for r, c in zip(rows, costs, strict=True)],
        "imbalance": max(costs) * plan.num_cores / total if total > 0 else 1.0,
    }


def explain(plan: kindling.Plan, row: int) -> dict[str, int]:
    """Everything about one row."""
    at = plan.locate(row)
    return {
        "row": row,
        **at._asdict(),
        "core": plan.core_of_row(row),
        "cost": plan.cost_of_row(row),
    }


def _print_words(console: Any, summary: dict[str, Any]) -> None:
    from rich.table import Table

    table = Table(title=f"{summary['law']} plan on {summary['num_cores']} cores")
    table.add_column("word", justify="right")
    table.add_column("name")
    table.add_column("value", justify="right")
    for word, name in enumerate(WORD_NAMES):
        if word < 6 or summary["words"][6] != 0:
            table.add_row(str(word), name, str(summary["words"][word]))
    console.print(table)


def _print_loads(console: Any, summary: dict[str, Any]) -> None:
    from rich.table import Table

    loads = summary["per_core"]
    shown = loads if len(loads) <= 64 else loads[:64]
    largest = max((load["cost"] for load in loads), default=0)
    table = Table(title="load per core")
    table.add_column("core", justify="right")
    table.add_column("rows", justify="right")
    table.add_column("cost", justify="right")
    table.add_column("")
    for core, load in enumerate(shown):
        bar = "█" * round(40 * load["cost"] / largest) if largest else ""
        table.add_row(str(core), str(load["rows"]), str(load["cost"]), bar)
    console.print(table)
    if len(shown) < len(loads):
        console.print(f"... and {len(loads) - len(shown)} more cores; --json lists them")
    mean = sum(load["cost"] for load in loads) / max(summary["num_cores"], 1)
    console.print(
        f"max {largest}, mean {mean:.1f}, max/mean {summary['imbalance']:.4f}", highlight=False
    )


def _print_explanation(console: Any, about: dict[str, int]) -> None:
    keys = about["num_visible_keys"]
    seen = (
        f"sees {keys} keys, storage rows {about['key_begin']} to {about['key_begin'] + keys - 1}"
        if keys
        else "sees no key"
    )
    console.print(
        f"row {about['row']}: position {about['position']} of batch {about['batch']}, storage row "
        f"{about['storage_row']}, {seen}; core {about['core']}, cost {about['cost']}",
        highlight=False,
        soft_wrap=True,
    )


def _option(flag: str, argument: str) -> Any:
    return typer.Option(flag, help=_DOCS[argument], show_default=True)


def plan(
    layout_q: Annotated[str, _option("--layout-q", "layout_q")] = "BSND",
    layout_k: Annotated[str, _option("--layout-k", "layout_k")] = "BSND",
    heads: Annotated[int, _option("--heads", "num_heads_q")] = 64,
    head_dim: Annotated[int, _option("--head-dim", "head_dim")] = 128,
    batch_size: Annotated[int, _option("--batch-size", "batch_size")] = 0,
    max_seqlen_q: Annotated[int, _option("--max-seqlen-q", "max_seqlen_q")] = 0,
    max_seqlen_k: Annotated[int, _option("--max-seqlen-k", "max_seqlen_k")] = 0,
    cu_seqlens_q: Annotated[str | None, _option("--cu-seqlens-q", "cu_seqlens_q")] = None,
    cu_seqlens_k: Annotated[str | None, _option("--cu-seqlens-k", "cu_seqlens_k")] = None,
    seqused_q: Annotated[str | None, _option("--seqused-q", "seqused_q")] = None,
    seqused_k: Annotated[str | None, _option("--seqused-k", "seqused_k")] = None,
    cmp_residual_k: Annotated[str | None, _option("--cmp-residual-k", "cmp_residual_k")] = None,
    mask: Annotated[int, _option("--mask", "mask_mode")] = 0,
    cmp_ratio: Annotated[int, _option("--cmp-ratio", "cmp_ratio")] = 1,
    cores: Annotated[int | None, _option("--cores", "num_cores")] = None,
    policy: Annotated[str, _option("--policy", "policy")] = "rows",
    soc: Annotated[str | None, _option("--soc", "soc_version")] = None,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="Print JSON: words, names, law, num_cores, per_core (rows, cost), imbalance; "
            "with --explain-row also row.",
        ),
    ] = False,
    explain_row: Annotated[
        int | None, typer.Option("--explain-row", help="Say where a row lies and who takes it.")
    ] = None,
    svg: Annotated[
        Path | None, typer.Option("--svg", help="Draw rows x cores, coloured by cost, as SVG.")
    ] = None,
    png: Annotated[Path | None, typer.Option("--png", help="The same picture as PNG.")] = None,
    check: Annotated[
        str | None,
        typer.Option(
            "--check",
            help="Validate this record instead of making one: a list, or a file; in JSON a list "
            "or an object with `words`.",
        ),
    ] = None,
) -> None:
    """Split the rows of a ragged batch over cores, and show the plan.

    Lengths are lists such as 0,123,230, or files: .json, .npy or .safetensors, with FILE:ENTRY to
    choose an entry. Exit status 0, or 2 for bad input with the reason on stderr.
    """
    try:
        texts = {
            "cu_seqlens_q": cu_seqlens_q,
            "cu_seqlens_k": cu_seqlens_k,
            "seqused_q": seqused_q,
            "seqused_k": seqused_k,
            "cmp_residual_k": cmp_residual_k,
        }
        lengths: dict[str, Any] = {
            name: None if text is None else read_array(text, name, name)
            for name, text in texts.items()
        }
        lengths.update(
            batch_size=batch_size,
            max_seqlen_q=max_seqlen_q,
            max_seqlen_k=max_seqlen_k,
            layout_q=layout_q,
            layout_k=layout_k,
            mask_mode=mask,
            cmp_ratio=cmp_ratio,
        )
        if check is None:
            words = kindling.make_metadata(
                heads, 1, head_dim, **lengths, num_cores=cores, policy=policy, soc_version=soc
            )
        else:
            words = read_array(check, "metadata", "words")
        decoded = kindling.Plan(words, **lengths)
        about = None if explain_row is None else explain(decoded, explain_row)
        summary = summarize(words, decoded)
        for path, name in ((svg, "svg"), (png, "png")):
            if path is not None:
                _draw(decoded, path, name)
    except (ValueError, TypeError, MemoryError) as error:
        typer.echo(str(error) or type(error).__name__, err=True)
        raise typer.Exit(2) from None

    if as_json:
        typer.echo(json.dumps(summary if about is None else {**summary, "row": about}))
        return
    from rich.console import Console

    console = Console()
    if check is not None:
        console.print("valid: every row is on exactly one core")
    _print_words(console, summary)
    _print_loads(console, summary)
    if about is not None:
        _print_explanation(console, about)


def _draw(decoded: kindling.Plan, path: Path, file_format: str) -> None:
    from kindling._plan_pictures import draw_plan

    try:
        write_atomically(path, lambda temporary: draw_plan(decoded, temporary, file_format))
    except OSError as error:
        raise ValueError(
            f"{file_format}: expected a file that can be written, got {path}: {error.strerror}"
        ) from None
