"""Names in documentation and comments: what stands between backticks exists in the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

DOCUMENTS = sorted([*ROOT.glob("docs/*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"])
SOURCES = sorted(
    path for room in ("src", "include") for path in (ROOT / room).rglob("*") if path.is_file()
)

CODE = {".cc", ".h", ".c", ".py", ".pyi", ".txt", ".cmake", ".toml", ".json", ".map", ".in", ".sh"}
FOLDERS = ("src", "include", "capi", "python", "tests", "bench", "examples", "cmake", "scripts")

ELSEWHERE = {
    # The vendor's names for operators and cores; ours stand beside them.
    *("DenseLightningIndexer", "DenseLightningIndexerKLLossGrad", "KLLossGradMetadata"),
    *("DenseLightningIndexerKLLossGradMetadata", "DenseLightningIndexerSoftmaxLse"),
    *("DenseLightningIndexerSoftmaxLseV2", "SoftmaxLseV2", "SparseFlashMlaSoftmaxL1Norm"),
    *("aic_core_num", "aiv_core_num"),
    # Of libraries and programs that are not ours.
    *("expf", "logf", "libm", "record_stream", "shard_map"),
    # What the build makes: the program of tests/plan/split_test.cc.
    "plan_split_test",
    "p_j",  # in formulas
}


def code_of(text: str) -> str:
    """The text without what stands in comments of C++ and Python, which proves nothing."""
    text = re.sub(r"/\*.*?\*/", " ", text, flags=re.DOTALL)
    return re.sub(
        r"(?m)(?<![:\"'])//.*$|^\s*#(?!\s*(define|include|if|ifdef|ifndef)).*$", " ", text
    )


def words_of_code() -> set[str]:
    words: set[str] = set()
    this = Path(__file__).resolve()
    for path in [*ROOT.glob("*"), *(p for f in FOLDERS for p in (ROOT / f).rglob("*"))]:
        if path.resolve() == this or "__pycache__" in path.parts or not path.is_file():
            continue
        words |= set(re.findall(r"\w+", path.name))
        if path.suffix in CODE or path.name == "Makefile" or not path.suffix:
            words |= set(re.findall(r"\w+", code_of(path.read_text(errors="replace"))))
    return words | {p.name for f in FOLDERS for p in (ROOT / f).rglob("*") if p.is_dir()}


WORDS = words_of_code()


def prose(path: Path) -> str:
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return re.sub(r"(?ms)^```.*?^```", "", text)  # snippets are run by tests of their own
    return "\n".join(re.findall(r"//(.*)", text))


def unknown_names(text: str) -> list[str]:
    """Identifiers between backticks of which a part is nowhere in the code.

    A part is a whole word: `a::b`, `a.b()`, `a[3]` are looked at word by word. Words of one or two
    letters are formulas; what has spaces, slashes or operators is an expression or a command.
    """
    unknown = []
    for quoted in re.findall(r"`([^`\n]+)`", text):
        if not re.fullmatch(r"[A-Za-z_][\w:.]*(\(\)|\[\w*\])?(, [A-Za-z_][\w:.]*)*", quoted):
            continue
        for word in re.findall(r"[A-Za-z_]\w{2,}", quoted):
            if word not in WORDS and word not in ELSEWHERE:
                unknown.append(f"`{quoted}`: {word}")
    return unknown


def unknown_in_comments(text: str) -> list[str]:
    """The same, and words that only an identifier looks like, `snake_case` and `CamelCase`."""
    looks_named = r"\b[a-z]\w*_\w+|\b[A-Z]\w*[a-z][A-Z]\w+"
    bare = [word for word in re.findall(looks_named, text) if word not in WORDS | ELSEWHERE]
    return sorted({*unknown_names(text), *bare})


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_names_in_documents_exist(path):
    assert unknown_names(prose(path)) == []


def test_names_in_comments_exist():
    assert SOURCES
    unknown = {str(path.relative_to(ROOT)): unknown_in_comments(prose(path)) for path in SOURCES}
    assert {path: names for path, names in unknown.items() if names} == {}


def test_a_stale_name_is_found():
    gone = "Guard" + "Allocation"
    assert unknown_names(f"jobs run inside `{gone}`") == [f"`{gone}`: {gone}"]
    assert unknown_names(f"`kindling::{gone}()`") != []
    assert unknown_names("`RunJob` and `kindling::Problem`, `S + 1`, `make test`") == []
    tail = "is_" + "tail"
    assert unknown_in_comments(f"calls function(j, mask, {tail})") == [tail]
    assert unknown_in_comments("calls RunJob(launch) for every row_begin") == []
    assert code_of("int a; // was b\n# c\n/* d\n e */").split() == ["int", "a;"]


def test_the_allowed_names_are_needed():
    texts = "\n".join(prose(path) for path in [*DOCUMENTS, *SOURCES])
    assert {name for name in ELSEWHERE if not re.search(rf"\b{name}\b", texts)} == set()
    assert ELSEWHERE & WORDS == set()
