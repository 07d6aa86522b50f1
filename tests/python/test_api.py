"""The package's face: signatures, kinds of arrays, buffers, errors, threads, imports."""

from __future__ import annotations

import ast
import doctest
import inspect
import subprocess
import sys
import threading
import time
from importlib import resources
from pathlib import Path

import cases
import kindling
import numpy as np
import pytest
from calls import METADATA
from cases import LENGTHS, Case, make_inputs
from exchange import to_numpy, to_torch
from kindling import _core, _operators, _rows, _runtime, reference

LAYOUTS = {
    "layout_q": "BSND",
    "layout_k": "BSND",
    "mask_mode": 0,
    "cmp_ratio": 1,
    "causal": None,
    "rows": None,
}
SHARED = {**dict.fromkeys(LENGTHS), "metadata": None, **LAYOUTS}
SIGNATURES = {
    "make_metadata": (
        ["num_heads_q", "num_heads_k", "head_dim"],
        {},
        {
            **dict.fromkeys(LENGTHS),
            "batch_size": 0,
            "max_seqlen_q": 0,
            "max_seqlen_k": 0,
            **LAYOUTS,
            "num_cores": None,
            "policy": "rows",
            "soc_version": None,
            "out": None,
        },
    ),
    "softmax_lse": (
        ["q", "k", "w"],
        {},
        {**SHARED, "p": None, "out": None, "num_threads": None},
    ),
    "kl_loss_grad": (
        ["q", "k", "w", "p", "lse"],
        {},
        {
            **SHARED,
            "row_scale": None,
            "return_softmax": True,
            "return_loss": False,
            "grad_dtype": None,
            "out": None,
            "num_threads": None,
        },
    ),
    "attention_l1_norm": (
        ["q", "k"],
        {"lse": None},
        {"softmax_scale": 1.0, "max_seqlen_k": 0, **SHARED, "out": None, "num_threads": None},
    ),
}
SIGNATURES["attention_teacher"] = SIGNATURES["attention_l1_norm"]


def run(code: str, **environment: str) -> subprocess.CompletedProcess:
    """Run a program in a fresh interpreter."""
    import os

    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        check=False,
    )


# The package.


@pytest.mark.parametrize("module", [kindling, reference], ids=["kindling", "reference"])
@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures(name, module):
    required, optional, keywords = SIGNATURES[name]
    parameters = inspect.signature(getattr(module, name)).parameters
    positional = [p for p in parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert [p.name for p in positional if p.default is p.empty] == required
    assert {p.name: p.default for p in positional if p.default is not p.empty} == optional
    assert list(
        (p.name, p.default) for p in parameters.values() if p.kind is p.KEYWORD_ONLY
    ) == list(keywords.items())
    assert all(p.annotation is not p.empty for p in parameters.values())
    assert len(parameters) == len(positional) + len(keywords)


def test_docstrings_name_every_argument():
    for name, (required, optional, keywords) in SIGNATURES.items():
        text = inspect.getdoc(getattr(kindling, name))
        for argument in [*required, *optional, *keywords]:
            assert any(
                argument in line.split(" : ")[0].split(", ")
                for line in text.splitlines()
                if " : " in line
            ), (name, argument)


def test_docstring_examples():
    for module in (_operators, _rows, _runtime):
        result = doctest.testmod(module)
        assert result.attempted > 0 and result.failed == 0


def test_types_ship_with_the_package():
    package = resources.files("kindling")
    assert (package / "py.typed").is_file()
    stubs = ast.parse((package / "_core.pyi").read_text())
    names = set()
    for node in stubs.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.AnnAssign):
            names.add(node.target.id)
        elif isinstance(node, ast.Assign):
            names.update(target.id for target in node.targets)
    bound = {name for name in dir(_core) if not name.startswith("__")} | {"__version__"}
    assert names == bound


def test_version():
    assert kindling.__version__ == _core.__version__
    assert len(kindling.__version__.split(".")) == 3
    for name in kindling.__all__:
        assert hasattr(kindling, name)


def test_import_is_quick_and_light():
    code = (
        "import time, sys; start = time.perf_counter(); import kindling; "
        "print(time.perf_counter() - start); "
        "print([m for m in ('torch', 'numpy', 'ml_dtypes', 'typer', 'rich', 'matplotlib') "
        "if m in sys.modules])"
    )
    best = np.inf
    for _ in range(5):
        seconds, modules = run(code).stdout.splitlines()
        assert modules == "[]"
        best = min(best, float(seconds))
    assert best < 0.2


def test_calls_import_no_other_library():
    code = """
import sys, numpy as np, kindling
q = np.ones((1, 2, 1, 8), np.float32)
lse = kindling.softmax_lse(q, q, q[..., 0])
p = kindling.attention_l1_norm(q, q)
kindling.kl_loss_grad(q, q, q[..., 0], p, lse)
kindling.make_metadata(64, 1, 128, batch_size=1, max_seqlen_q=1, max_seqlen_k=1)
print([m for m in ('torch', 'ml_dtypes', 'typer', 'rich', 'matplotlib') if m in sys.modules])
"""
    result = run(code)
    assert result.stdout == "[]\n", result.stderr


# Threads and instruction sets.


def test_num_threads():
    before = kindling.get_num_threads()
    try:
        kindling.set_num_threads(3)
        assert kindling.get_num_threads() == 3 == kindling.cpu_info()["num_threads"]
        for wrong in (0, -1, 1025, 2**70):
            with pytest.raises(ValueError, match="^num_threads: "):
                kindling.set_num_threads(wrong)
        for wrong in (True, 2.0, "2", None):
            with pytest.raises(TypeError, match="^num_threads: "):
                kindling.set_num_threads(wrong)
        assert kindling.get_num_threads() == 3
    finally:
        kindling.set_num_threads(before)


def test_cpu_info_and_isa():
    info = kindling.cpu_info()
    assert set(info) == {"processor", "isas", "isa", "num_processors", "num_threads"}
    assert info["isas"][0] == "portable" and info["isa"] in info["isas"]
    assert info["processor"] and info["num_processors"] >= 1
    try:
        for isa in info["isas"]:
            kindling.set_isa(isa)
            assert kindling.cpu_info()["isa"] == isa
    finally:
        kindling.set_isa(info["isa"])
    for wrong in ("sse9", "", "AVX2", None):
        with pytest.raises(ValueError, match="^isa: .*'portable'"):
            kindling.set_isa(wrong)
    with pytest.raises(TypeError, match="^isa: expected a str, got int"):
        kindling.set_isa(2)


def test_environment():
    show = "import kindling; i = kindling.cpu_info(); print(i['isa'], i['num_threads'])"
    result = run(show, KINDLING_NUM_THREADS="5", KINDLING_ISA="portable")
    assert result.stdout == "portable 5\n"
    assert run(show, KINDLING_NUM_THREADS="", KINDLING_ISA="").returncode == 0
    for name, wrong in (
        ("KINDLING_NUM_THREADS", "two"),
        ("KINDLING_NUM_THREADS", "0"),
        ("KINDLING_NUM_THREADS", "99999999999999999999"),
        ("KINDLING_ISA", "sse9"),
    ):
        result = run(show, **{name: wrong})
        assert result.returncode != 0
        assert f"ValueError: {name}: expected " in result.stderr and wrong in result.stderr


def test_gil_is_released():
    """While one thread computes, this one is never held up for a large part of that time."""
    case = Case((600,), (3000,), mask_mode=0, num_heads=8, head_dim=64)
    random = np.random.default_rng(0)
    q = random.standard_normal((600, 8, 64), dtype="f4")
    k = random.standard_normal((3000, 1, 64), dtype="f4")
    w = random.standard_normal((600, 8), dtype="f4")
    seconds = []

    def compute() -> None:
        start = time.perf_counter()
        kindling.softmax_lse(q, k, w, num_threads=1, **case.lengths())
        seconds.append(time.perf_counter() - start)

    worker = threading.Thread(target=compute)
    worker.start()
    longest_gap, before = 0.0, time.perf_counter()
    while worker.is_alive():
        now = time.perf_counter()
        longest_gap, before = max(longest_gap, now - before), now
    worker.join()
    assert longest_gap < 0.6 * seconds[0]


def test_callers_on_many_threads(inputs):
    expected = kindling.kl_loss_grad(*inputs.tensors(), **inputs.lengths)
    wrong = []

    def work() -> None:
        for _ in range(20):
            result = kindling.kl_loss_grad(*inputs.tensors(), num_threads=2, **inputs.lengths)
            if any(
                a.tobytes() != b.tobytes() for a, b in zip(result[:4], expected[:4], strict=True)
            ):
                wrong.append(result)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# The tuple and the reference.


def test_kl_loss_grad_tuple(inputs):
    assert kindling.KLLossGrad._fields == ("dq", "dk", "dw", "softmax_out", "loss_rows")
    result = kindling.kl_loss_grad(
        *inputs.tensors(), return_softmax=False, grad_dtype=np.float32, **inputs.lengths
    )
    assert isinstance(result, tuple) and len(result) == 5
    assert result.softmax_out is None and result.loss_rows is None and result.loss is None
    strided_rows = np.repeat(np.arange(6, dtype="f4"), 2)[::2].reshape(1, 6)
    with pytest.raises(ValueError, match="^loss_rows: .*dense"):
        _ = result._replace(loss_rows=strided_rows).loss


@pytest.mark.parametrize("dtype", cases.DTYPES)
def test_grad_dtype(dtype, torch):
    x = make_inputs(Case((5, 3), (9, 4), num_heads=3, head_dim=8, dtype=dtype))
    wide = kindling.kl_loss_grad(*x.tensors(), grad_dtype=torch.float32, **x.lengths)
    rounded = kindling.kl_loss_grad(*x.tensors(), grad_dtype=x.q.dtype, **x.lengths)
    assert wide.dq.dtype == wide.dk.dtype == np.float32
    for name in ("dq", "dk"):
        assert getattr(rounded, name).dtype == x.q.dtype
        again = getattr(wide, name).astype(x.q.dtype)
        assert again.tobytes() == getattr(rounded, name).tobytes()
    if dtype != "float32":
        with pytest.raises(TypeError, match=f"^dq: expected dtype {dtype}, got float32"):
            kindling.kl_loss_grad(*x.tensors(), out={"dq": wide.dq}, **x.lengths)


def test_reference_takes_anything_and_returns_double(torch):
    x = make_inputs(Case((5, 3), (9, 4), num_heads=3, head_dim=8, dtype="bfloat16"))
    expected = reference.kl_loss_grad(*x.tensors(), return_loss=True, **x.lengths)
    assert all(a.dtype == np.float64 for a in expected)
    assert isinstance(expected.loss, float) and expected.loss == sum(expected.loss_rows[0].tolist())

    lists = [item.astype("f8").tolist() for item in x.tensors()]
    lengths = {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in x.lengths.items()}
    result = reference.kl_loss_grad(*lists, return_loss=True, **lengths)
    assert all(a.tobytes() == b.tobytes() for a, b in zip(result, expected, strict=True))

    tensors = [to_torch(item).requires_grad_() for item in x.tensors()]
    longs = {
        k: to_torch(v).long() if isinstance(v, np.ndarray) else v for k, v in x.lengths.items()
    }
    result = reference.kl_loss_grad(*tensors, return_loss=True, **longs)
    assert all(isinstance(a, torch.Tensor) and a.dtype == torch.float64 for a in result)
    assert all(to_numpy(a).tobytes() == b.tobytes() for a, b in zip(result, expected, strict=True))

    out = np.zeros_like(expected.dq)
    assert reference.kl_loss_grad(*x.tensors(), out={"dq": out}, **x.lengths).dq is out
    record = reference.make_metadata(64, 1, 128, **lengths, num_cores=2)
    fast = kindling.make_metadata(64, 1, 128, **x.lengths, num_cores=2)
    assert record.tolist() == fast.tolist()
    lse = reference.softmax_lse(*lists[:3], metadata=record.tolist(), num_threads=3, **lengths)
    assert lse.dtype == np.float64
    assert reference.attention_l1_norm(*lists[:2], **lengths).dtype == np.float64

    for name, wrong in (("q", ["a"]), ("q", object()), ("w", np.zeros(3, "c8"))):
        arguments = dict(zip(("q", "k", "w"), lists[:3], strict=True)) | lengths | {name: wrong}
        with pytest.raises(TypeError, match=f"^{name}: expected "):
            reference.softmax_lse(**arguments)
    for wrong, error in (([0, 5.0, 8], TypeError), ([0, 5, 2**31], ValueError)):
        with pytest.raises(error, match="^cu_seqlens_q: expected "):
            reference.softmax_lse(*lists[:3], **{**lengths, "cu_seqlens_q": wrong})


@pytest.mark.slow
def test_metadata_call_overhead():
    """Under 5 µs with NumPy lengths, on a machine that does little else."""
    call = {**METADATA, "mask_mode": 3, "seqused_q": np.array([4, 3], np.int32)}
    best = np.inf
    for _ in range(200):
        start = time.perf_counter()
        for _ in range(100):
            kindling.make_metadata(**call)
        best = min(best, (time.perf_counter() - start) / 100)
    assert best < 5e-6


def test_package_imports_only_its_own_and_numpy():
    """`kindling` without extras: the standard library, and NumPy where an array is made."""
    allowed = {"kindling", "numpy", *sys.stdlib_module_names}
    folder = Path(str(resources.files("kindling")))
    for path in folder.glob("*.py"):
        if path.name in ("cli.py", "_plan_command.py", "_plan_pictures.py"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                roots = {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                roots = {(node.module or "").split(".")[0]}
            else:
                continue
            assert roots <= allowed, (path.name, roots)
