"""Prose for the demo: licence texts and the project's own docs, cut into documents.

The split is by source file: the files in ``HELD_OUT`` are only ever held out. Licences quote one
another, so a training paragraph that shares a run of ``RUN`` tokens with held-out text is left out,
and so is one that mostly repeats earlier training text (GPL-2 and LGPL-2.1 are near twins).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

REPO = Path(__file__).resolve().parents[2]
LICENSES = Path("/usr/share/common-licenses")
HELD_OUT = ("Apache-2.0", "Artistic", "BSD", "CC0-1.0")
RUN = 10
"""Tokens in a row that two texts must have in common to count as sharing text."""
MIN_TOKENS, MAX_TOKENS = 96, 512
"""Document length with [CLS] and [SEP]: three times the top-32 at least, BERT's limit at most."""


class Document(NamedTuple):
    """A passage of one source file; ``ids`` starts with [CLS] and ends with [SEP]."""

    source: str
    ids: list[int]


@dataclass(frozen=True)
class Split:
    """Training and held-out documents, and how many training passages were left out and why."""

    train: list[Document]
    heldout: list[Document]
    num_shared: int
    num_repeated: int


def read_sources() -> dict[str, str]:
    """Read every source file; the key is the file's name.

    Symbolic links in the licence folder (``GPL`` -> ``GPL-3``) are skipped. A machine without that
    folder still has the repository's own LICENSE, which is the Apache licence, and docs.
    """
    paths = {"Apache-2.0": REPO / "LICENSE", "README.md": REPO / "README.md"}
    paths |= {path.name: path for path in sorted((REPO / "docs").glob("*.md"))}
    if LICENSES.is_dir():
        files = [path for path in sorted(LICENSES.iterdir()) if not path.is_symlink()]
        paths |= {path.name: path for path in files if path.is_file()}
    texts = {
        name: path.read_text(encoding="utf-8", errors="replace")
        for name, path in sorted(paths.items())
        if path.is_file()
    }
    if not texts.keys() & set(HELD_OUT) or not texts.keys() - set(HELD_OUT):
        raise FileNotFoundError(
            f"sources: expected licence texts in {LICENSES} or LICENSE and docs in {REPO}, "
            f"got {sorted(texts)}"
        )
    return texts


def runs(ids: list[int]) -> set[tuple[int, ...]]:
    """All runs of ``RUN`` consecutive tokens."""
    return {tuple(ids[i : i + RUN]) for i in range(len(ids) - RUN + 1)}


def shared_runs(train: Iterable[Document], heldout: Iterable[Document]) -> int:
    """Count the token runs that occur on both sides of a split."""
    sides = [
        set[tuple[int, ...]]().union(*(runs(d.ids[1:-1]) for d in s)) for s in (train, heldout)
    ]
    return len(sides[0] & sides[1])


def _paragraphs(tokenizer: Any, text: str) -> list[list[int]]:
    """Token ids of each paragraph (blank lines divide), without special tokens."""
    blocks = [block for block in re.split(r"\n\s*\n", text) if block.strip()]
    return tokenizer(blocks, add_special_tokens=False, verbose=False)["input_ids"]


def _cut(
    source: str, paragraphs: list[list[int]], rng: np.random.Generator, ends: tuple[int, int]
) -> Iterator[Document]:
    """Join paragraphs into documents of random target lengths; a short remainder is dropped."""
    stream = [token for paragraph in paragraphs for token in paragraph]
    stops = set(np.cumsum([len(paragraph) for paragraph in paragraphs]).tolist())
    begin = 0
    while len(stream) - begin >= MIN_TOKENS - 2:
        target = int(rng.integers(MIN_TOKENS, MAX_TOKENS + 1)) - 2
        # Prefer to end with a paragraph, unless that makes the document much shorter than drawn.
        fitting = [
            s for s in stops if begin + max(MIN_TOKENS - 2, target // 2) <= s <= begin + target
        ]
        end = max(fitting, default=min(begin + target, len(stream)))
        yield Document(source, [ends[0], *stream[begin:end], ends[1]])
        begin = end


def build_split(tokenizer: Any, seed: int) -> Split:
    """Read, filter and cut all sources.

    Parameters
    ----------
    tokenizer
        A Hugging Face tokenizer with ``cls_token_id`` and ``sep_token_id``.
    seed
        Decides the document lengths.
    """
    rng = np.random.default_rng(seed)
    ends = (tokenizer.cls_token_id, tokenizer.sep_token_id)
    sources = {name: _paragraphs(tokenizer, text) for name, text in read_sources().items()}
    heldout = [d for name in HELD_OUT for d in _cut(name, sources.get(name, []), rng, ends)]
    forbidden = set[tuple[int, ...]]().union(*(runs(document.ids[1:-1]) for document in heldout))

    train: list[Document] = []
    seen: set[tuple[int, ...]] = set()
    num_shared = num_repeated = 0
    for name in sorted(sources.keys() - set(HELD_OUT), key=_newest_first):
        kept = []
        for paragraph in sources[name]:
            paragraph_runs = runs(paragraph)
            if paragraph_runs & forbidden:
                num_shared += 1
            elif 2 * len(paragraph_runs & seen) > len(paragraph_runs):
                num_repeated += 1
            else:
                kept.append(paragraph)
                seen |= paragraph_runs
        for document in _cut(name, kept, rng, ends):
            # A run may also arise where two paragraphs meet.
            if runs(document.ids[1:-1]) & forbidden:
                num_shared += 1
            else:
                train.append(document)
    return Split(train, heldout, num_shared, num_repeated)


def _newest_first(name: str) -> tuple[str, float]:
    """Order ``GPL-3`` before ``GPL-2``, so that the longest version of a licence is kept whole."""
    match = re.fullmatch(r"(.+)-([\d.]+)", name)
    return (match[1], -float(match[2])) if match else (name, 0.0)
