"""The command ``kindling plan``: lengths in, a plan and its loads out.

Rich, matplotlib, safetensors and NumPy are imported where they are used, not above: each takes
longer than the rest of the command.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import kindling

if TYPE_CHECKING:
    import numpy as np

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

MAX_LOADED_CORES = 2**20
"""Above that many cores with rows, their loads are left out."""

MAX_PRINTED_CORES = 64
"""Above that many, the table on the terminal has the costliest cores only."""

_DOCS = {argument.name: argument.doc for argument in kindling.describe_metadata()}
_FILE = re.compile(r"(.+?\.(?:json|npy|safetensors))(?::(.+))?", re.IGNORECASE | re.DOTALL)
_INTEGER = re.compile(r"\s*[+-]?[0-9]{1,4000}\s*")


def _one_line(text: object, limit: int = 200) -> str:
    """Text of others, fit for a message of one line."""
    line = " ".join(str(text).split())
    return line if len(line) <= limit else f"{line[:limit]}..."


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
    ValueError
        ``<name>: expected ..., got ...``
    """
    file = _FILE.fullmatch(text)
    if file is None:
        return _to_int32(text.split(",") if text.strip() else [], name)
    path, chosen = file.groups()
    suffix = Path(path).suffix.lower()
    try:
        content = _READERS[suffix](path)
        if isinstance(content, dict):
            content = content[_entry(content, chosen, entry, name, path)]()
        elif chosen is not None:
            raise _Unfit(f"{name}: expected a file with entries, got {path} and {chosen!r}")
    except _Unfit as error:
        raise ValueError(str(error)) from None
    except OSError as error:
        reason = _one_line(error.strerror or error)
        raise ValueError(f"{name}: expected a readable file, got {path}: {reason}") from None
    except Exception as error:  # whatever the readers of three formats make of broken files
        reason = _one_line(error) or type(error).__name__
        raise ValueError(f"{name}: expected a {suffix} file, got {path}: {reason}") from None
    return _to_int32(content, name) if suffix == ".json" else content


class _Unfit(Exception):
    """A file that can be read, but does not have what is asked for."""


def _read_json(path: str) -> Any:
    content = json.loads(Path(path).read_text(encoding="utf-8"))
    if isinstance(content, dict):
        return {key: lambda key=key: content[key] for key in content}
    return content


def _read_npy(path: str) -> np.ndarray:
    import numpy as np

    with open(path, "rb") as file:
        return np.lib.format.read_array(file, allow_pickle=False)


def _read_safetensors(path: str) -> dict[str, Callable[[], np.ndarray]]:
    from safetensors import safe_open

    # The library has one error for everything, missing files included.
    open(path, "rb").close()
    file = safe_open(path, framework="numpy")
    return {key: lambda key=key: file.get_tensor(key) for key in file.keys()}


_READERS: dict[str, Callable[[str], Any]] = {
    ".json": _read_json,
    ".npy": _read_npy,
    ".safetensors": _read_safetensors,
}


def _entry(
    entries: Iterable[str], chosen: str | None, likely: str | None, name: str, path: str
) -> str:
    found = sorted(entries)
    if chosen is None:
        if likely in found:
            return likely
        if len(found) == 1:
            return found[0]
    elif chosen in found:
        return chosen
    raise _Unfit(
        f"{name}: expected one of the entries {_one_line(found)} of {path}, "
        f"got {'none' if chosen is None else repr(chosen)}"
    )


def _to_int32(values: Any, name: str) -> np.ndarray:
    import numpy as np

    if not isinstance(values, list):
        raise ValueError(f"{name}: expected a list of integers, got {type(values).__name__}")
    out = np.empty(len(values), np.int32)
    for i, value in enumerate(values):
        if isinstance(value, str) and _INTEGER.fullmatch(value):
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool):
            got = _one_line(repr(value), 40)
            raise ValueError(f"{name}[{i}]: expected an integer, got {got}")
        if not -(2**31) <= value < 2**31:
            got = _one_line(value, 40)
            raise ValueError(f"{name}[{i}]: expected an integer of 32 bits, got {got}")
        out[i] = value
    return out


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file beside ``path`` and move it there when it is whole.

    What is there and no regular file, such as a pipe or a device, is written to as it is.
    """
    if path.exists() and not path.is_file():
        path.write_bytes(content)
        return
    path = path.resolve()  # a link stays one
    handle, name = tempfile.mkstemp(prefix=f".{path.name[:200]}.", dir=path.parent)
    temporary = Path(name)
    try:
        with open(handle, "wb") as file:
            file.write(content)
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def summarize(words: Sequence[int], plan: kindling.Plan) -> dict[str, Any]:
    """What ``--json`` prints; keys may be added, these stay.

    Returns
    -------
    dict
        ``words`` : list of 64 int.
        ``names`` : list of str, those of the first words.
        ``law`` : str, "cyclic", "snake" or "levelled".
        ``num_cores`` : int, cores of the plan; 1 for a plan without rows, which does not tell.
        ``per_core`` : list of {"rows": a count, "cost": int} for cores 0, 1, ...: all cores of
        the plan, or those that have rows where there are more than :data:`MAX_LISTED_CORES`;
        None where more than :data:`MAX_LOADED_CORES` have rows.
        ``imbalance`` : float, largest cost / mean cost over all cores of the plan; 1 for a plan
        without rows; None with ``per_core``.
    """
    summary = {
        "words": [int(word) for word in words],
        "names": list(WORD_NAMES),
        "law": plan.law,
        "num_cores": plan.num_cores,
        "per_core": None,
        "imbalance": None,
    }
    if plan.num_used_cores > MAX_LOADED_CORES:
        return summary
    rows, costs = plan.num_rows_of_cores().tolist(), plan.cost_of_cores().tolist()
    if plan.num_cores <= MAX_LISTED_CORES:
        idle = [0] * (plan.num_cores - len(rows))
        rows, costs = rows + idle, costs + idle
    total = sum(costs)
    summary["per_core"] = [{"rows": r, "cost": c} for r, c in zip(rows, costs, strict=True)]
    summary["imbalance"] = max(costs) * plan.num_cores / total if total > 0 else 1.0
    return summary


def explain(plan: kindling.Plan, row: int) -> dict[str, int]:
    """Everything about one row: what ``--json --explain-row`` adds as ``row``."""
    at = plan.locate(row)
    return {
        "row": row,
        **at._asdict(),
        "core": plan.core_of_row(row),
        "cost": plan.cost_of_row(row),
    }


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _print_words(console: Any, summary: dict[str, Any]) -> None:
    from rich.table import Table

    cores = _counted(summary["num_cores"], "core")
    table = Table(title=f"{summary['law']} plan on {cores}")
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
    if loads is None:
        console.print(f"load per core: not listed for more than {MAX_LOADED_CORES} cores with rows")
        return
    title, shown = "load per core", range(len(loads))
    if len(loads) > MAX_PRINTED_CORES:
        shown = sorted(shown, key=lambda core: -loads[core]["cost"])[:MAX_PRINTED_CORES]
        title = f"load of the {MAX_PRINTED_CORES} costliest cores, --json lists all"
    largest = max(load["cost"] for load in loads)
    block = "█" if console.encoding.startswith("utf") else "#"
    table = Table(title=title)
    table.add_column("core", justify="right")
    table.add_column("rows", justify="right")
    table.add_column("cost", justify="right")
    table.add_column("")
    for core in shown:
        load = loads[core]
        bar = block * round(40 * load["cost"] / largest) if largest else ""
        table.add_row(str(core), str(load["rows"]), str(load["cost"]), bar)
    console.print(table)
    mean = sum(load["cost"] for load in loads) / summary["num_cores"]
    console.print(
        f"max {largest}, mean {mean:.1f}, max/mean {summary['imbalance']:.4f}", highlight=False
    )


def _print_explanation(console: Any, about: dict[str, int], plan: kindling.Plan) -> None:
    keys, begin = about["num_visible_keys"], about["key_begin"]
    if keys > 0:
        seen = f"sees {_counted(keys, 'key')}, rows {begin} to {begin + keys - 1} of k"
    else:
        seen = "sees no key"
    console.print(
        f"Row {about['row']} is position {about['position']} of sequence {about['batch']}, "
        f"row {about['storage_row']} of q, and {seen}. Core {about['core']} takes it at cost "
        f"{plan.pair_cost} * {keys} + {plan.row_overhead} = {about['cost']}.",
        highlight=False,
        soft_wrap=True,
    )


def _refuse(message: str) -> typer.Exit:
    typer.echo(message, err=True)
    return typer.Exit(2)


def _option(flag: str, argument: str, metavar: str | None = None) -> Any:
    return typer.Option(flag, help=_DOCS[argument], metavar=metavar)


def _lengths(flag: str, argument: str) -> Any:
    return _option(flag, argument, "LIST|FILE")


def _integer(flag: str, argument: str, doc: str | None = None) -> Any:
    def parse(text: str | int) -> int:
        if isinstance(text, str) and not _INTEGER.fullmatch(text):
            raise _refuse(f"{argument}: expected an integer, got {_one_line(repr(text), 40)}")
        return int(text)

    return typer.Option(flag, help=doc or _DOCS[argument], metavar="INT", parser=parse)


def plan(
    layout_q: Annotated[str, _option("--layout-q", "layout_q")] = "BSND",
    layout_k: Annotated[str, _option("--layout-k", "layout_k")] = "BSND",
    heads: Annotated[int, _integer("--heads", "num_heads_q")] = 64,
    head_dim: Annotated[int, _integer("--head-dim", "head_dim")] = 128,
    batch_size: Annotated[int, _integer("--batch-size", "batch_size")] = 0,
    max_seqlen_q: Annotated[int, _integer("--max-seqlen-q", "max_seqlen_q")] = 0,
    max_seqlen_k: Annotated[int, _integer("--max-seqlen-k", "max_seqlen_k")] = 0,
    cu_seqlens_q: Annotated[str | None, _lengths("--cu-seqlens-q", "cu_seqlens_q")] = None,
    cu_seqlens_k: Annotated[str | None, _lengths("--cu-seqlens-k", "cu_seqlens_k")] = None,
    seqused_q: Annotated[str | None, _lengths("--seqused-q", "seqused_q")] = None,
    seqused_k: Annotated[str | None, _lengths("--seqused-k", "seqused_k")] = None,
    cmp_residual_k: Annotated[str | None, _lengths("--cmp-residual-k", "cmp_residual_k")] = None,
    mask: Annotated[int, _integer("--mask", "mask_mode")] = 0,
    cmp_ratio: Annotated[int, _integer("--cmp-ratio", "cmp_ratio")] = 1,
    cores: Annotated[int | None, _integer("--cores", "num_cores")] = None,
    policy: Annotated[str, _option("--policy", "policy")] = "rows",
    soc: Annotated[str | None, _option("--soc", "soc_version")] = None,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="Print JSON: words (64), names, law, num_cores, per_core (a list with rows, a "
            "count, and cost, for cores 0, 1, ...; without idle cores where there are more than "
            f"{MAX_LISTED_CORES}, null for more than {MAX_LOADED_CORES} with rows), imbalance "
            "(largest / mean cost); with --explain-row also row.",
        ),
    ] = False,
    explain_row: Annotated[
        int | None,
        _integer("--explain-row", "row", "Say where this row lies, what it sees, who takes it."),
    ] = None,
    svg: Annotated[
        Path | None, typer.Option("--svg", help="Draw rows x cores, coloured by cost, as SVG.")
    ] = None,
    png: Annotated[Path | None, typer.Option("--png", help="The same picture as PNG.")] = None,
    check: Annotated[
        str | None,
        typer.Option(
            "--check",
            metavar="LIST|FILE",
            help="Validate this record, made for any number of cores, instead of making one; in "
            "files with entries it is the one called words.",
        ),
    ] = None,
) -> None:
    """Split the rows of a ragged batch over cores, and show the plan.

    Lengths are lists such as 0,123,230, or files: .json, .npy or .safetensors, with FILE:ENTRY to
    choose an entry; without, it is the one with the option's name (cu_seqlens_q), or the only one.

    Exit status 0, or 2 for bad input with the reason on stderr.
    """
    texts = {
        "cu_seqlens_q": cu_seqlens_q,
        "cu_seqlens_k": cu_seqlens_k,
        "seqused_q": seqused_q,
        "seqused_k": seqused_k,
        "cmp_residual_k": cmp_residual_k,
    }
    try:
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
        # With --check it is made all the same: that checks the arguments, the record's reader
        # only those that it needs.
        words = kindling.make_metadata(
            heads, 1, head_dim, **lengths, num_cores=cores, policy=policy, soc_version=soc
        )
        if check is not None:
            words = read_array(check, "metadata", "words")
        decoded = kindling.Plan(words, **lengths)
        about = None if explain_row is None else explain(decoded, explain_row)
        summary = summarize(words, decoded)
        for path, file_format in ((svg, "svg"), (png, "png")):
            if path is not None:
                _draw(decoded, path, file_format)
    except (ValueError, TypeError, MemoryError) as error:
        raise _refuse(str(error) or "memory: expected enough for this plan, got less") from None

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
        _print_explanation(console, about, decoded)


def _draw(decoded: kindling.Plan, path: Path, file_format: str) -> None:
    if decoded.num_used_cores > MAX_LOADED_CORES:
        raise ValueError(
            f"{file_format}: expected a plan with rows on at most {MAX_LOADED_CORES} cores, "
            f"got {decoded.num_used_cores}"
        )
    from kindling._plan_pictures import draw_plan

    picture = draw_plan(decoded, file_format)
    try:
        write_atomically(path, picture)
    except OSError as error:
        reason = _one_line(error.strerror or error)
        raise ValueError(
            f"{file_format}: expected a file that can be written, got {path}: {reason}"
        ) from None
