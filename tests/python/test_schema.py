"""Doors, stubs, docstrings and documentation against the operators' description.

An argument that is added to the description and forgotten in one of these places fails here.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import kindling
import numpy as np
import pytest
from kindling import _core, _rows, _schema, reference
from kindling._rows import DEFAULTS

DOCS = Path(__file__).parents[2] / "docs"
HEADER = Path(__file__).parents[2] / "include/kindling/operators.h"
# What NumPy's functions have beside what is described.
GRAD_OPTIONS = {"return_softmax", "return_loss", "grad_dtype"}
OWN_OF_DOORS = {
    "make_metadata": {"out"},
    "softmax_lse": {"out", "num_threads"},
    "kl_loss_grad": {"out", "num_threads"} | GRAD_OPTIONS,
    "attention_teacher": {"out", "num_threads", "max_seqlen_k"},
}
ROWS = set(DEFAULTS)


def python_default(argument):
    if argument.default in ("none", "required"):
        return None
    return {"int": int, "float": float, "str": str}[argument.type](argument.default)


def inputs(operator):
    return {n: a for n, a in _schema.OPERATORS[operator].items() if a.kind != "output"}


def jax_module():
    pytest.importorskip("jax")
    return pytest.importorskip("kindling.jax", exc_type=ImportError)


def torch_module():
    pytest.importorskip("torch")
    return pytest.importorskip("kindling.torch")


class Door(NamedTuple):
    """A function, the operator that it stands for, and how it differs from that."""

    module: Callable[[], Any]
    name: str
    operator: str
    more: set[str] = set()
    without: set[str] = set()


RECORD = {"metadata"}
LOSS = {"p", "lse", "reduction"}
DOORS = [
    Door(lambda module=module: module, name, name, own)
    for module in (kindling, reference)
    for name, own in OWN_OF_DOORS.items()
] + [
    Door(
        lambda: kindling,
        "Plan",
        "make_metadata",
        RECORD,
        {"num_heads_q", "num_heads_k", "head_dim", "num_cores", "policy", "soc_version"},
    ),
    Door(torch_module, "indexer_kl_loss", "softmax_lse", LOSS | {"grads_in_forward"}),
    Door(torch_module, "attention_teacher", "attention_teacher", {"max_seqlen_k"}),
    Door(torch_module, "index_scores", "softmax_lse", {"max_seqlen_k"}, {"p"} | RECORD),
    Door(torch_module, "index_topk", "softmax_lse", {"topk"}, {"p"} | RECORD),
    Door(jax_module, "softmax_lse", "softmax_lse", set(), RECORD),
    Door(jax_module, "kl_loss_grad", "kl_loss_grad", GRAD_OPTIONS, RECORD),
    Door(jax_module, "indexer_kl_loss", "softmax_lse", LOSS, RECORD),
    Door(jax_module, "attention_teacher", "attention_teacher", {"max_seqlen_k"}, RECORD),
]


@pytest.mark.parametrize("door", DOORS, ids=lambda door: door.name)
def test_signatures_are_the_description(door):
    parameters = inspect.signature(getattr(door.module(), door.name)).parameters
    described = inputs(door.operator)
    assert set(parameters) == set(described) - door.without | {"causal", "rows"} | door.more
    for argument in described.values():
        if argument.name in door.without | door.more:
            continue
        default = parameters[argument.name].default
        if argument.default == "required":
            assert default is inspect.Parameter.empty, argument.name
        else:
            assert default == python_default(argument), argument.name
            if argument.name in ROWS:
                assert parameters[argument.name].kind is inspect.Parameter.KEYWORD_ONLY


def shape_text(argument):
    """How docstrings spell a shape: "(B, S1, N1, D) or (T1, N1, D)", "of lse"."""
    text = argument.shape.replace("as ", "of ").replace("+", " + ")
    text = text.replace(">= max n", ">= most visible keys")
    return text.replace(",", ", ").replace(", )", ",)").replace("; ", " or ")


def documented(function):
    """Argument name to the rest of its line in a numpydoc docstring."""
    found = {}
    for line in (inspect.getdoc(function) or "").splitlines():
        names, colon, rest = line.partition(" : ")
        if colon and re.fullmatch(r"[\w, ]+", names):
            for name in names.split(", "):
                found.setdefault(name, rest)
    return found


@pytest.mark.parametrize("operator", OWN_OF_DOORS)
def test_docstrings_give_described_shapes_and_dtypes(operator):
    lines = documented(getattr(kindling, operator))
    for argument in inputs(operator).values():
        line = lines[argument.name]
        if argument.shape:
            assert f"shape {shape_text(argument)}" in line, argument
        if argument.type.startswith("bf16"):
            assert "bfloat16, float16 or float32" in line
        elif argument.type.endswith("tensor"):
            word = argument.type.removesuffix(" tensor").replace("fp32", "float32")
            assert line.endswith(word.replace("as q", "dtype of q")), argument
        if argument.default == "none" and argument.kind == "input":
            assert line.startswith("array or None"), argument


def test_rows_are_those_that_are_described():
    """The class, its docstring, the TypedDict and the defaults."""
    described = {argument["name"] for argument in _core.describe_rows()} | {"metadata"}
    parameters = inspect.signature(kindling.Rows).parameters
    assert set(parameters) == described | {"causal"}
    assert set(documented(kindling.Rows)) == set(parameters)
    assert set(_rows.RowArguments.__annotations__) == described == set(DEFAULTS)
    for name, default in DEFAULTS.items():
        assert parameters[name].default == default
    assert {*_rows.TENSORS, *_rows.ATTRIBUTES} == described


@pytest.mark.parametrize("operator", ["softmax_lse", "kl_loss_grad", "attention_teacher"])
def test_core_takes_exactly_what_is_described(operator):
    own, rows = _schema.own(operator), dict(DEFAULTS)
    call = getattr(_core, operator)
    for name in own:
        short = {key: value for key, value in own.items() if key != name}
        with pytest.raises(TypeError, match="^arguments: expected"):
            call(short, rows, None)
    own |= {"q": np.ones((1, 1, 1, 8), "f4"), "k": np.ones((1, 1, 1, 8), "f4")}
    own |= {name: np.ones((1, 1, 1), "f4") for name in ("w", "lse") if own.get(name, 1) is None}
    own |= {"p": np.ones((1, 1, 1, 1), "f4")} if operator == "kl_loss_grad" else {}
    for name in rows:
        short = {key: value for key, value in rows.items() if key != name}
        with pytest.raises(TypeError, match="^rows: expected"):
            call(own, short, None)
        with pytest.raises(TypeError, match=f"^rows: expected {name}, got none"):
            call(own, {**short, "another": None}, None)


def test_core_takes_exactly_the_rows_of_metadata():
    own = (8, 1, 128, 1, 4, 4, 2, None, "rows", None)
    rows = {name: default for name, default in DEFAULTS.items() if name != "metadata"}
    record = _core.make_metadata(*own, **rows).tolist()
    assert record[:2] == [4, 2]
    assert _core.make_metadata(*own, **dict(reversed(rows.items()))).tolist() == record
    for name in rows:
        short = {key: value for key, value in rows.items() if key != name}
        with pytest.raises(TypeError, match="^arguments: expected 10 and 9 by name, got 10 and 8"):
            _core.make_metadata(*own, **short)
        with pytest.raises(TypeError, match=f"^arguments: expected {name}, got none"):
            _core.make_metadata(*own, **short, another=None)
    with pytest.raises(TypeError, match="^arguments: expected 10 and 9 by name, got 9 and 9"):
        _core.make_metadata(*own[:-1], **rows)
    with pytest.raises(TypeError, match="^arguments: expected 10 and 9 by name, got 10 and 0"):
        _core.make_metadata(*own)


def test_stubs_have_a_function_for_every_operator():
    stubs = ast.parse((resources.files("kindling") / "_core.pyi").read_text())
    names = {node.name for node in stubs.body if isinstance(node, ast.FunctionDef)}
    names |= {t.id for node in stubs.body if isinstance(node, ast.Assign) for t in node.targets}
    for operator in _schema.OPERATORS:
        assert operator in names and hasattr(_core, operator)
        if operator != "make_metadata":
            assert {f"reference_{operator}", f"describe_{operator}"} <= names


# torch.


OPERATOR_OF_SCHEMA = {
    "dense_lightning_indexer_kl_loss_grad_metadata": "make_metadata",
    "dense_lightning_indexer_softmax_lse_metadata": "make_metadata",
    "sparse_flash_mla_softmax_l1_norm_metadata": "make_metadata",
    "dense_lightning_indexer_kl_loss_grad": "kl_loss_grad",
    "dense_lightning_indexer_kl_loss_grad_loss": "kl_loss_grad",
    "dense_lightning_indexer_softmax_lse": "softmax_lse",
    "sparse_flash_mla_softmax_l1_norm": "attention_teacher",
    "attention_teacher": "attention_teacher",
    "indexer_kl_loss": "kl_loss_grad",
    "indexer_kl_loss_backward": "kl_loss_grad",
    "indexer_kl_loss_with_grads": "kl_loss_grad",
}
# Of the vendor's schemas beside what is described, and of ours.
MORE = {"sparse_indices", "topk_length", "topk", "max_seqlen_k", "reduction", "grad"}
LACKING = {"num_cores", "policy", "soc_version", "row_scale", "p"}


def test_torch_schemas_have_what_is_described():
    torch_module()
    import torch
    from kindling.torch import _ops

    assert set(OPERATOR_OF_SCHEMA) == {*_ops.VENDOR_OPERATORS, *_ops._OUR_OPERATORS}
    types = {"int": "int", "str": "str", "float": "float"}
    for name, operator in OPERATOR_OF_SCHEMA.items():
        schema = getattr(torch.ops.kindling, name).default._schema
        described = inputs(operator)
        given = {_ops._OUR_NAMES.get(a.name, a.name): a for a in schema.arguments}
        assert set(given) - set(described) <= MORE, name
        assert set(described) - set(given) <= LACKING, name
        for row in _core.describe_rows():
            argument = given[row["name"]]
            assert argument.kwarg_only, (name, row["name"])
            kind = str(argument.type)
            assert ("Tensor" in kind) == (row["kind"] == "input"), (name, row["name"])
            assert row["kind"] == "input" or types[row["type"]] in kind
            if name == "softmax_lse" or name in _ops._OUR_OPERATORS and "_grad_loss" not in name:
                assert argument.default_value == DEFAULTS[row["name"]], (name, row["name"])


def extents_of(shape, symbols, packed):
    parts = shape.split("; ")
    text = parts[1 if packed and len(parts) == 2 else 0].strip("()")
    words = [word for word in text.split(",") if word]
    return tuple(int(w) if w.isdigit() else symbols[w] for w in words)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("operator", ["softmax_lse", "kl_loss_grad", "attention_teacher"])
def test_results_and_fake_results_have_the_described_shapes(operator, packed):
    """NumPy's results and those of torch's fake kernels, from tensors of the described shapes."""
    torch_module()
    import torch

    symbols = {"B": 2, "S1": 3, "S2": 4, "N1": 2, "D": 8, "T1": 6, "T2": 8, "G": 4, "Gk": 2}
    symbols |= {"Dm": 8, ">= max n": 5}
    described = _schema.OPERATORS[operator]

    def shape_of(argument):
        text = argument.shape
        if text.startswith("as "):
            return shape_of(described[text.removeprefix("as ")])
        return extents_of(text, symbols, packed)

    tensors = {
        name: np.ones(shape_of(argument), "f4")
        for name, argument in inputs(operator).items()
        if argument.kind == "input" and name not in ROWS
    }
    rows = {}
    if packed:
        cu = np.array([0, 3, 6], np.int32), np.array([0, 4, 8], np.int32)
        rows = {"cu_seqlens_q": cu[0], "cu_seqlens_k": cu[1], "layout_q": "TND", "layout_k": "TND"}
    wanted = {n: shape_of(a) for n, a in described.items() if a.kind == "output"}
    more = {"max_seqlen_k": 5} if operator == "attention_teacher" else {}
    if operator == "kl_loss_grad":
        more = {"return_loss": True}
    results = getattr(kindling, operator)(**tensors, **rows, **more)
    if operator == "kl_loss_grad":
        results = results._asdict()
    else:
        results = results if isinstance(results, tuple) else (results,)
        results = dict(zip(wanted, results, strict=True))
    assert {name: array.shape for name, array in results.items()} == wanted

    names = {
        "softmax_lse": "dense_lightning_indexer_softmax_lse",
        "kl_loss_grad": "dense_lightning_indexer_kl_loss_grad_loss",
        "attention_teacher": "attention_teacher",
    }
    call = getattr(torch.ops.kindling, names[operator])
    meta = {name: torch.from_numpy(array).to("meta") for name, array in tensors.items()}
    rows = {n: torch.from_numpy(x) if isinstance(x, np.ndarray) else x for n, x in rows.items()}
    more.pop("return_loss", None)
    if operator == "softmax_lse":
        meta.pop("p"), wanted.pop("loss_rows")
    if operator == "kl_loss_grad":
        rows = {"layout_q": "BSND", "layout_k": "BSND", "mask_mode": 0} | rows
    row_scale = {"row_scale": meta.pop("row_scale")} if "row_scale" in meta else {}
    fake = call(*meta.values(), **row_scale, **rows, **more)
    fake = fake if isinstance(fake, tuple) else (fake,)
    assert [tuple(tensor.shape) for tensor in fake] == list(wanted.values())
    for name, tensor in meta.items():
        wrong = {**meta, name: torch.empty((1, *tensor.shape), device="meta")}
        with pytest.raises(ValueError, match=f"^{name}: expected shape "):
            call(*wrong.values(), **row_scale, **rows, **more)


# Documentation.


def rows_of_table(text, first):
    """The rows of the Markdown table whose head begins with `first`."""
    lines = text[text.index(f"| {first} ") :].splitlines()[2:]
    for line in lines:
        if not line.startswith("|"):
            return
        yield [cell.strip() for cell in line.strip("|").split("|")]


def test_the_glossary_has_every_tensor():
    text = (DOCS / "glossary.md").read_text().replace("≥", ">=")
    begin = text.index("| ours | vendor's | paper's | dtype | shape |")
    cells = {}
    for name, _, _, dtype, shape in rows_of_table(text[begin:], "ours"):
        teacher = name.endswith(" of the teacher")
        names = name.removesuffix(" of the teacher").split(", ")
        shapes = re.split(r"(?<=\)), (?=\()|, (?=as)", shape) if len(names) > 1 else [shape]
        if teacher and len(names) > 1:  # "(q), (k); (q), (k)"
            halves = [re.findall(r"\([^)]*\)", half) for half in shape.split(";")]
            shapes = [f"{halves[0][i]}; {halves[1][i]}" for i in range(len(names))]
        for i, one in enumerate(names):
            cells[one, teacher] = (dtype, shapes[min(i, len(shapes) - 1)])
    for operator, arguments in _schema.OPERATORS.items():
        for argument in arguments.values():
            if not argument.shape:
                continue
            is_teacher = operator == "attention_teacher" and argument.name in ("q", "k", "lse")
            dtype, shape = cells[argument.name, is_teacher]
            wanted = argument.type.removesuffix(" tensor")
            if not (is_teacher and argument.name == "k"):
                assert dtype == wanted, argument
            assert shape == argument.shape, argument


def test_the_header_has_every_argument_of_its_own():
    """The tables beside the declarations in kindling/operators.h."""
    text = HEADER.read_text()
    blocks = re.findall(r"((?://.*\n)+)struct (\w+)Args", text)
    names = dict(SoftmaxLse="softmax_lse", KLLossGrad="kl_loss_grad")
    names["AttentionL1Norm"] = "attention_teacher"
    assert {name for _, name in blocks} == set(names)
    for comment, name in blocks:
        listed = {
            argument
            for row in re.findall(r"// \| ([\w, ]+?) *\|", comment)
            for argument in row.split(", ")
        } - {"argument"}
        described = _schema.OPERATORS[names[name]]
        rows = {argument["name"] for argument in _core.describe_rows()}
        assert listed == {n for n, a in described.items() if n not in rows and a.shape}


def test_describe_operator():
    assert [a.name for a in kindling.describe_operator("softmax_lse")][:3] == ["q", "k", "w"]
    assert kindling.describe_metadata() == kindling.describe_operator("make_metadata")
    with pytest.raises(ValueError, match="^name: expected one of make_metadata, softmax_lse"):
        kindling.describe_operator("another")


def test_every_door_gathers_all_row_arguments():
    """Each under its own name: one that is left out would silently have its default."""
    package = Path(str(resources.files("kindling")))
    num_gathers = 0
    for path in package.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(node, ast.Call) and len(node.args) == 3):
                continue
            if not ast.unparse(node.func).endswith("gather") or not isinstance(
                node.args[2], ast.Dict
            ):
                continue
            keys = [ast.literal_eval(key) for key in node.args[2].keys]
            where = f"{path.name}:{node.lineno}"
            assert [ast.unparse(value) for value in node.args[2].values] == keys, where
            assert set(keys) | {"metadata"} == set(DEFAULTS), where
            num_gathers += 1
    doors = {(door.module, door.name) for door in DOORS}
    assert num_gathers == len(doors)


def test_nothing_reads_row_arguments_by_position():
    package = Path(str(resources.files("kindling")))
    for path in package.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
                if node.value.id in ("rows", "shared", "rest", "lengths", "options", "attributes"):
                    assert not re.search(r"\[-?\d|:", ast.unparse(node).split("[", 1)[1]), (
                        path.name,
                        ast.unparse(node),
                    )
