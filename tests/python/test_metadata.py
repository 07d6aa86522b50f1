"""make_metadata against the spec's section 6, written down once more in plain Python."""

from __future__ import annotations

from typing import Any

import kindling
import numpy as np
import pytest
from cases import LENGTHS
from hypothesis import example, given, settings
from hypothesis import strategies as st

# The same examples on every run.
SETTINGS = settings(derandomize=True, database=None, deadline=None)
INT32_MAX = 2**31 - 1
DEFAULTS = {
    "num_heads_q": 64,
    "num_heads_k": 1,
    "head_dim": 128,
    "batch_size": 0,
    "max_seqlen_q": 0,
    "max_seqlen_k": 0,
    "layout_q": "BSND",
    "layout_k": "BSND",
    "mask_mode": 0,
    "cmp_ratio": 1,
    "num_cores": 24,
    **dict.fromkeys(LENGTHS),
}


class Refused(Exception):
    """A failed check: which of the table, the argument that it is about, and the Python error."""

    def __init__(self, check: int, *arguments: str, error: type[Exception] = ValueError) -> None:
        super().__init__(check, arguments)
        self.arguments, self.error = arguments, error


def checked(arguments: dict[str, Any]) -> tuple[int, list[int], list[int]]:
    """Batch count and used lengths. The numbers are those of the table of checks."""
    a = {**DEFAULTS, **arguments}
    # An array without elements counts as absent.
    given = {name: a[name] for name in LENGTHS if a[name] is not None and np.size(a[name])}
    for check, name, good in (
        (3, "num_heads_q", 1 <= a["num_heads_q"] <= 128),
        (4, "num_heads_k", a["num_heads_k"] == 1),
        (5, "head_dim", a["head_dim"] == 128),
        (6, "batch_size", a["batch_size"] >= 0),
        (7, "max_seqlen_q", a["max_seqlen_q"] >= 0),
        (8, "max_seqlen_k", a["max_seqlen_k"] >= 0),
        (9, "mask_mode", a["mask_mode"] in (0, 3)),
        (10, "cmp_ratio", 1 <= a["cmp_ratio"] <= 128),
        (12, "layout_q", a["layout_q"] in ("BSND", "TND")),
        (14, "layout_k", a["layout_k"] in ("BSND", "TND")),
        (15, "num_cores", 1 <= a["num_cores"] <= INT32_MAX),
        (17, "cu_seqlens_q", a["layout_q"] == "BSND" or "cu_seqlens_q" in given),
        (18, "cu_seqlens_k", a["layout_k"] == "BSND" or "cu_seqlens_k" in given),
    ):
        if not good:
            raise Refused(check, name)
    if a["mask_mode"] == 3 and a["cmp_ratio"] != 1 and "cmp_residual_k" not in given:
        raise Refused(19, "cmp_residual_k")
    for name in LENGTHS:
        if name in given:
            if given[name].ndim != 1:
                raise Refused(21, name)
            if given[name].dtype != np.int32:
                raise Refused(21, name, error=TypeError)

    def batch_count(side: str) -> tuple[int, str]:
        if f"seqused_{side}" in given:
            return len(given[f"seqused_{side}"]), f"seqused_{side}"
        if a[f"layout_{side}"] == "TND":
            return len(given[f"cu_seqlens_{side}"]) - 1, f"cu_seqlens_{side}"
        return a["batch_size"], "batch_size"

    (batches, source_q), (batches_k, source_k) = batch_count("q"), batch_count("k")
    if batches != batches_k:
        raise Refused(23, source_k, source_q, str(batches), str(batches_k))
    for side in "qk":
        cu, used = f"cu_seqlens_{side}", f"seqused_{side}"
        if a[f"layout_{side}"] == "TND" and used in given and len(given[cu]) - 1 != batches:
            raise Refused(24, cu)
    if "cmp_residual_k" in given and len(given["cmp_residual_k"]) != batches:
        raise Refused(26, "cmp_residual_k")
    if a["layout_q"] == "BSND":
        if batches <= 0:
            raise Refused(27, source_q)
        if a["max_seqlen_q"] <= 0:
            raise Refused(27, "max_seqlen_q")
    if a["layout_k"] == "BSND" and a["max_seqlen_k"] <= 0:
        raise Refused(27, "max_seqlen_k")
    if a["batch_size"] > 0 and a["batch_size"] != batches:
        raise Refused(28, "batch_size")

    for name in LENGTHS[:2]:
        values = given[name].tolist() if name in given else []
        for i, value in enumerate(values):
            if (i == 0 and value != 0) or value < 0 or value < values[max(i - 1, 0)]:
                raise Refused(30, f"{name}[{i}]")
    used: dict[str, Any] = {}
    for side in "qk":
        name = f"seqused_{side}"
        if a[f"layout_{side}"] == "TND":
            allocated = np.diff(given[f"cu_seqlens_{side}"].astype(np.int64)).tolist()
        else:
            allocated = _Repeated(a[f"max_seqlen_{side}"], batches)
        if name not in given:
            used[side] = allocated
            continue
        used[side] = given[name].tolist()
        for i, (value, limit) in enumerate(zip(used[side], allocated, strict=True)):
            if not 0 <= value <= limit:
                raise Refused(31, f"{name}[{i}]")
    for i, value in enumerate(given.get("cmp_residual_k", np.zeros(0)).tolist()):
        if not 0 <= value < a["cmp_ratio"]:
            raise Refused(32, f"cmp_residual_k[{i}]")
    if max(max(used["q"], default=0), max(used["k"], default=0), total(used["q"])) > INT32_MAX:
        raise Refused(33)
    return batches, used["q"], used["k"]


class _Repeated:
    """The same length for every batch, however many there are."""

    def __init__(self, length: int, count: int) -> None:
        self.length, self.count = length, count

    def __iter__(self):
        return (self.length for _ in range(min(self.count, 1000)))


def total(lengths: Any) -> int:
    if isinstance(lengths, _Repeated):
        return lengths.length * lengths.count
    return sum(lengths)


def expected_words(arguments: dict[str, Any]) -> list[int]:
    """By dealing the rows out, one by one."""
    _, rows_per_batch, keys_per_batch = checked(arguments)
    num_cores = arguments.get("num_cores", DEFAULTS["num_cores"])
    rows = total(rows_per_batch)
    longest = max(keys_per_batch, default=0)
    if rows == 0:
        return [0, 0, 0, 0, 0, longest] + [0] * 58
    if rows <= 10_000 and num_cores <= 1000:
        loads = [0] * num_cores
        for row in range(rows):
            loads[row % num_cores] += 1
        most = max(loads)
        words = [rows, most, most - 1, loads.count(most - 1), sum(load > 0 for load in loads)]
        if most == 1:
            assert words[3] == loads.count(0)
    else:
        most = -(-rows // num_cores)
        words = [rows, most, most - 1, most * num_cores - rows, min(rows, num_cores)]
    return [*words, longest] + [0] * 58


def call(arguments: dict[str, Any], **more: Any) -> Any:
    a = {**DEFAULTS, **arguments, **more}
    return kindling.make_metadata(
        a.pop("num_heads_q"), a.pop("num_heads_k"), a.pop("head_dim"), **a
    )


def agrees(arguments: dict[str, Any]) -> None:
    """The call returns the words, or raises what the first failing check says."""
    try:
        words = expected_words(arguments)
    except Refused as refused:
        out = np.full(64, -7, np.int32)
        with pytest.raises(refused.error) as caught:
            call(arguments, out=out)
        message = str(caught.value)
        assert (out == -7).all(), "written on failure"
        if refused.arguments:
            assert message.startswith(refused.arguments[0] + ":"), (message, refused)
        for word in refused.arguments[1:]:
            assert word in message, (message, refused)
        return
    record = call(arguments)
    assert record.dtype == np.int32 and record.shape == (64,)
    assert record.tolist() == words


small = st.integers(0, 6)
int32s = st.one_of(st.integers(-2, 6), st.integers(-(2**31), INT32_MAX))
int64s = st.one_of(st.integers(-1, 130), st.integers(-(2**63), 2**63 - 1))


def arrays(elements: st.SearchStrategy[int], max_size: int = 5) -> st.SearchStrategy[Any]:
    return st.lists(elements, max_size=max_size).map(lambda values: np.array(values, np.int32))


@st.composite
def good_calls(draw: st.DrawFn) -> dict[str, Any]:
    """Calls that pass all checks, but for totals beyond int32."""
    batches = draw(st.integers(0, 5))
    layouts = {side: draw(st.sampled_from(["BSND", "TND"])) for side in "qk"}
    if "BSND" in layouts.values():
        batches = max(batches, 1)
    ratio = draw(st.one_of(st.integers(1, 4), st.just(128)))
    mask = draw(st.sampled_from([0, 3]))
    length = draw(st.sampled_from([small, st.integers(0, 400), st.integers(0, INT32_MAX)]))
    arguments: dict[str, Any] = {
        "layout_q": layouts["q"],
        "layout_k": layouts["k"],
        "mask_mode": mask,
        "cmp_ratio": ratio,
        "num_heads_q": draw(st.integers(1, 128)),
        "num_cores": draw(st.one_of(st.integers(1, 48), st.integers(1, INT32_MAX))),
    }
    needs_batch_size = False
    for side, layout in layouts.items():
        if layout == "TND":
            budget, allocated = INT32_MAX, []
            for _ in range(batches):
                allocated.append(min(draw(length), budget))
                budget -= allocated[-1]
            arguments[f"cu_seqlens_{side}"] = np.cumsum([0, *allocated]).astype(np.int32)
            arguments[f"max_seqlen_{side}"] = draw(small)  # ignored
        else:
            allocated = [max(draw(length), 1)] * batches
            arguments[f"max_seqlen_{side}"] = allocated[0]
        if draw(st.booleans()):
            used = [draw(st.integers(0, limit)) for limit in allocated]
            arguments[f"seqused_{side}"] = np.array(used, np.int32)
        elif layout == "BSND":
            needs_batch_size = True
    if needs_batch_size or draw(st.booleans()):
        arguments["batch_size"] = batches
    if (mask == 3 and ratio != 1) or draw(st.booleans()):
        residual = [draw(st.integers(0, ratio - 1)) for _ in range(batches)]
        arguments["cmp_residual_k"] = np.array(residual, np.int32)
    if mask == 3 and ratio != 1 and batches == 0:
        arguments["cmp_ratio"] = 1  # an empty residual counts as absent
    return arguments


@given(good_calls())
@settings(SETTINGS, max_examples=300)
def test_words(arguments):
    agrees(arguments)


@given(
    good_calls(),
    st.dictionaries(
        st.sampled_from(sorted(DEFAULTS)),
        st.one_of(int64s, arrays(int32s), st.sampled_from(["BSND", "TND", "bsnd", ""])),
        min_size=1,
        max_size=3,
    ),
)
@settings(SETTINGS, max_examples=500)
@example({}, {"batch_size": 2**60, "max_seqlen_q": 1, "max_seqlen_k": 1})
@example({}, {"batch_size": 1, "max_seqlen_q": 2**62, "max_seqlen_k": 1})
@example({}, {"batch_size": 2**62, "max_seqlen_q": 2**62, "max_seqlen_k": 2**62})
def test_first_failing_check_decides(arguments, changes):
    """Good calls with some arguments replaced by others of the same type."""
    for name, value in changes.items():
        default = DEFAULTS[name]
        if isinstance(value, np.ndarray) == (default is None) and (
            default is None or isinstance(value, str) == isinstance(default, str)
        ):
            arguments = {**arguments, name: value}
    agrees(arguments)


@given(
    good_calls(), st.sampled_from(LENGTHS), st.sampled_from(["rank", "int64", "float32", "empty"])
)
@settings(SETTINGS, max_examples=200)
def test_wrong_arrays(arguments, name, fault):
    array = arguments.get(name)
    if array is None:
        array = np.zeros(2, np.int32)
    changed = {
        "rank": lambda: array[:, None],
        "int64": lambda: array.astype(np.int64),
        "float32": lambda: array.astype(np.float32),
        "empty": lambda: np.zeros((3, 0), np.int64),
    }[fault]()
    agrees({**arguments, name: changed})


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


PACKED = {
    "layout_q": "TND",
    "layout_k": "TND",
    "cu_seqlens_q": ints(0, 3, 5),
    "cu_seqlens_k": ints(0, 3, 9),
}
PADDED = {"batch_size": 2, "max_seqlen_q": 5, "max_seqlen_k": 6}
ONE_OF_EACH = [
    (3, PACKED, {"num_heads_q": 129}),
    (4, PACKED, {"num_heads_k": 2}),
    (5, PACKED, {"head_dim": 64}),
    (6, PACKED, {"batch_size": -1}),
    (7, PACKED, {"max_seqlen_q": -1}),
    (8, PACKED, {"max_seqlen_k": -1}),
    (9, PACKED, {"mask_mode": 1}),
    (10, PACKED, {"cmp_ratio": 0}),
    (10, PACKED, {"cmp_ratio": 129}),
    (12, PACKED, {"layout_q": "BSND "}),
    (14, PACKED, {"layout_k": "tnd"}),
    (15, PACKED, {"num_cores": 0}),
    (17, PACKED, {"cu_seqlens_q": None}),
    (18, PACKED, {"cu_seqlens_k": None}),
    (19, PACKED, {"mask_mode": 3, "cmp_ratio": 2}),
    (21, PACKED, {"cu_seqlens_q": ints(0, 3, 5)[None]}),
    (21, PACKED, {"seqused_k": np.zeros(2)}),
    (23, PACKED, {"cu_seqlens_k": ints(0, 3)}),
    (24, PACKED, {"seqused_q": ints(1, 1, 1), "seqused_k": ints(1, 1, 1)}),
    (24, PADDED, {"seqused_k": ints(1, 1), "layout_k": "TND", "cu_seqlens_k": ints(0, 1)}),
    (26, PACKED, {"cmp_residual_k": ints(0)}),
    (27, PADDED, {"batch_size": 0}),
    (27, PADDED, {"max_seqlen_q": 0}),
    (27, PADDED, {"max_seqlen_k": 0}),
    (28, PACKED, {"batch_size": 3}),
    (30, PACKED, {"cu_seqlens_q": ints(1, 3, 5)}),
    (30, PACKED, {"cu_seqlens_q": ints(0, -1, 5)}),
    (30, PACKED, {"cu_seqlens_k": ints(0, 3, 2)}),
    (31, PACKED, {"seqused_q": ints(3, 3)}),
    (31, PADDED, {"seqused_k": ints(-1, 3)}),
    (32, PACKED, {"cmp_residual_k": ints(0, 1)}),
    (32, PACKED, {"cmp_residual_k": ints(0, -1), "mask_mode": 3}),
    (33, PADDED, {"max_seqlen_q": 2**30}),
    (33, PADDED, {"max_seqlen_k": 2**31}),
]


@pytest.mark.parametrize("check, base, changes", ONE_OF_EACH)
def test_each_check(check, base, changes):
    arguments = {**base, **changes}
    agrees(base)
    with pytest.raises(Refused) as refused:
        checked(arguments)
    assert refused.value.args[0] == check
    agrees(arguments)


SPLITS = {  # words 1 to 4 by the number of rows, for these numbers of cores
    (8, 20, 24, 25, 32, 36): {
        0: [(0, 0, 0, 0)] * 6,
        1: [
            (1, 0, 7, 1),
            (1, 0, 19, 1),
            (1, 0, 23, 1),
            (1, 0, 24, 1),
            (1, 0, 31, 1),
            (1, 0, 35, 1),
        ],
        16: [
            (2, 1, 0, 8),
            (1, 0, 4, 16),
            (1, 0, 8, 16),
            (1, 0, 9, 16),
            (1, 0, 16, 16),
            (1, 0, 20, 16),
        ],
        24: [
            (3, 2, 0, 8),
            (2, 1, 16, 20),
            (1, 0, 0, 24),
            (1, 0, 1, 24),
            (1, 0, 8, 24),
            (1, 0, 12, 24),
        ],
        25: [
            (4, 3, 7, 8),
            (2, 1, 15, 20),
            (2, 1, 23, 24),
            (1, 0, 0, 25),
            (1, 0, 7, 25),
            (1, 0, 11, 25),
        ],
        511: [
            (64, 63, 1, 8),
            (26, 25, 9, 20),
            (22, 21, 17, 24),
            (21, 20, 14, 25),
            (16, 15, 1, 32),
            (15, 14, 29, 36),
        ],
        2048: [
            (256, 255, 0, 8),
            (103, 102, 12, 20),
            (86, 85, 16, 24),
            (82, 81, 2, 25),
            (64, 63, 0, 32),
            (57, 56, 4, 36),
        ],
    }
}


@pytest.mark.parametrize(
    "rows, num_cores, words",
    [
        (rows, num_cores, words)
        for cores, table in SPLITS.items()
        for rows, columns in table.items()
        for num_cores, words in zip(cores, columns, strict=True)
    ],
)
def test_table_of_splits(rows, num_cores, words):
    lengths = np.array([0, rows], np.int32)
    record = kindling.make_metadata(
        64,
        1,
        128,
        cu_seqlens_q=lengths,
        cu_seqlens_k=lengths,
        layout_q="TND",
        layout_k="TND",
        num_cores=num_cores,
    )
    assert record.tolist() == [rows, *words, rows] + [0] * 58


def test_every_row_is_on_one_core():
    """A reader that knows the spec's words 1 to 4 only."""
    for rows in range(0, 40):
        for num_cores in range(1, 12):
            lengths = np.array([rows], np.int32)
            record = kindling.make_metadata(
                1,
                1,
                128,
                seqused_q=lengths,
                seqused_k=lengths,
                max_seqlen_q=40,
                max_seqlen_k=40,
                num_cores=num_cores,
            ).tolist()
            most, least, fewer, used = record[1:5]
            seen = []
            for core in range(used):
                mine = list(range(core, rows, used))
                assert len(mine) == (most if core < num_cores - fewer else least)
                seen += mine
            assert sorted(seen) == list(range(rows))
            assert (num_cores - fewer) * most + fewer * least == rows or rows == 0


def test_cores_default_to_the_threads():
    before = kindling.get_num_threads()
    try:
        for num_threads in (1, 5):
            kindling.set_num_threads(num_threads)
            record = kindling.make_metadata(
                64, 1, 128, batch_size=1, max_seqlen_q=100, max_seqlen_k=1
            )
            assert record[4] == num_threads
    finally:
        kindling.set_num_threads(before)
