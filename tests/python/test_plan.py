"""Plans through Python: policies, device names, the reader, and the operator as data."""

import copy
import inspect
import pickle

import kindling
import numpy as np
import pytest


def packed(rows, keys=None):
    """Arguments of a packed causal batch; keys default to as many as rows."""

    def sums(lengths):
        return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)

    return {
        "cu_seqlens_q": sums(rows),
        "cu_seqlens_k": sums(rows if keys is None else keys),
        "layout_q": "TND",
        "layout_k": "TND",
        "mask_mode": 3,
    }


def imbalance(plan):
    costs = plan.cost_of_cores()
    return costs.max() / costs.mean()


def test_balanced_plan_deals_by_cost():
    batch = packed([28] * 32)
    rows = kindling.make_metadata(64, 1, 128, **batch, num_cores=28)
    balanced = kindling.make_metadata(64, 1, 128, **batch, num_cores=28, policy="balanced")
    assert (rows[:6] == balanced[:6]).all()
    assert (rows[6:] == 0).all() and balanced[6] != 0
    assert imbalance(kindling.Plan(rows, **batch)) > 1.4
    assert imbalance(kindling.Plan(balanced, **batch)) <= 1.02


@pytest.mark.parametrize("policy", ["rows", "balanced"])
def test_reader_covers_every_row_once(policy):
    rng = np.random.default_rng(3)
    rows = rng.integers(0, 50, 20)
    batch = packed(rows, rows + rng.integers(0, 500, 20))
    record = kindling.make_metadata(64, 1, 128, **batch, num_cores=7, policy=policy)
    plan = kindling.Plan(record, **batch)
    seen = np.concatenate([plan.rows_of_core(core) for core in range(7)])
    assert sorted(seen) == list(range(plan.num_rows))
    for core in range(7):
        mine = plan.rows_of_core(core)
        assert all(plan.core_of_row(row) == core for row in mine)
        assert plan.num_rows_of_cores()[core] == len(mine)
        cost = sum(plan.locate(row).num_visible_keys + 16 for row in mine)
        assert plan.cost_of_cores()[core] == cost == sum(map(plan.cost_of_row, mine))


def test_operators_accept_every_law_and_ignore_it():
    rng = np.random.default_rng(5)
    batch = packed([28] * 8)
    q = rng.standard_normal((224, 3, 16), np.float32)
    k = rng.standard_normal((224, 1, 16), np.float32)
    w = rng.standard_normal((224, 3), np.float32)
    expected = kindling.softmax_lse(q, k, w, **batch)
    record = kindling.make_metadata(3, 1, 128, **batch, num_cores=28, policy="balanced")
    assert record[6] != 0
    for law in range(3):
        record[8] = law
        got = kindling.softmax_lse(q, k, w, **batch, metadata=record)
        assert got.tobytes() == expected.tobytes()


def test_locate():
    batch = packed([5, 16, 3], [9, 4, 3])
    plan = kindling.Plan(kindling.make_metadata(1, 1, 128, **batch, num_cores=4), **batch)
    assert plan.locate(19) == kindling.RowCoordinates(1, 14, 19, 9, 3)
    assert plan.locate(5).num_visible_keys == 0


def answers(plan):
    cores = [plan.rows_of_core(core).tolist() for core in range(plan.num_cores)]
    rows = [(plan.locate(row), plan.cost_of_row(row)) for row in range(plan.num_rows)]
    return repr(plan), cores, rows, plan.cost_of_cores().tolist(), plan.pair_cost


@pytest.mark.parametrize(
    "batch",
    [
        packed([5, 16, 3], [9, 4, 3]),
        packed([12, 3]) | {"cmp_ratio": 4, "cmp_residual_k": np.array([1, 3], np.int32)},
        {"batch_size": 2, "max_seqlen_q": 7, "max_seqlen_k": 9, "mask_mode": 3},
    ],
)
def test_copies(batch, torch):
    if batch.get("cmp_ratio") is None and "cu_seqlens_q" in batch:
        strided = np.array([9, -1, 4, -1, 3], np.int32)[::2]
        batch = batch | {"seqused_k": strided, "seqused_q": torch.tensor([5, 10, 0]).int()}
    record = kindling.make_metadata(64, 1, 128, **batch, num_cores=5, policy="balanced")
    plan = kindling.Plan(record, **batch)
    expected = answers(plan)
    # What was given may be another's by the time of the copy.
    for array in (record, *batch.values()):
        if hasattr(array, "shape"):
            array[...] = -1
    for duplicate in (copy.copy, copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it))):
        other = duplicate(duplicate(plan))
        assert type(other) is kindling.Plan and other is not plan
        assert answers(other) == expected


@pytest.mark.parametrize(
    ("question", "message"),
    [
        (lambda plan: plan.core_of_row(8), r"row: expected in \[0, 8\), got 8"),
        (lambda plan: plan.cost_of_row(-1), r"row: expected in \[0, 8\), got -1"),
        (lambda plan: plan.locate(2**40), r"row: expected in \[0, 8\), got 1099511627776"),
        (lambda plan: plan.rows_of_core(3), r"core: expected in \[0, 3\), got 3"),
    ],
)
def test_questions_out_of_range(question, message):
    batch = packed([8])
    plan = kindling.Plan(kindling.make_metadata(1, 1, 128, **batch, num_cores=3), **batch)
    with pytest.raises(ValueError, match=message):
        question(plan)


def test_records_that_are_none():
    batch = packed([25])
    record = kindling.make_metadata(1, 1, 128, **batch, num_cores=8)
    kindling.validate_metadata(record, **batch)
    wrong = record.copy()
    wrong[2] = 4
    with pytest.raises(ValueError, match=r"metadata\[2\]: expected remain_core_size = 3, got 4"):
        kindling.validate_metadata(wrong, **batch)
    with pytest.raises(ValueError, match="metadata: expected length 64, got 63"):
        kindling.validate_metadata(record[:63], **batch)
    with pytest.raises(TypeError, match="metadata: expected dtype int32, got int64"):
        kindling.validate_metadata(record.astype(np.int64), **batch)
    with pytest.raises(TypeError, match="metadata: expected an int32 array, got None"):
        kindling.validate_metadata(None, **batch)


def test_core_count_is_explicit_first_then_the_profile_then_the_host():
    def num_cores(**arguments):
        batch = packed([100])
        record = kindling.make_metadata(1, 1, 128, **batch, **arguments)
        return kindling.Plan(record, **batch).num_cores

    assert num_cores(num_cores=6, soc_version="Ascend910B2") == 6
    assert num_cores(soc_version="Ascend910B2") == 24
    assert num_cores(soc_version="Ascend950PR_9589") == 25
    assert num_cores() == kindling.get_num_threads()
    with pytest.raises(ValueError, match='soc_version: expected .* got "H200"'):
        num_cores(num_cores=6, soc_version="H200")
    with pytest.raises(ValueError, match='policy: expected "rows" or "balanced", got "fair"'):
        num_cores(policy="fair")


def test_soc_profile():
    assert kindling.soc_profile("Ascend910B3") == ("Ascend910", 20, 40, 2048)
    assert kindling.soc_profile("Ascend950").base_block_size == 128


def test_signature_is_the_description():
    described = {argument.name: argument for argument in kindling.describe_metadata()}
    parameters = dict(inspect.signature(kindling.make_metadata).parameters)
    for name in ("out", "causal", "rows"):  # of Python alone
        del parameters[name]
    assert list(parameters) == list(described)
    for name, parameter in parameters.items():
        default = described[name].default
        if default == "required":
            assert parameter.default is inspect.Parameter.empty
        elif default == "none":
            assert parameter.default is None
        else:
            assert str(parameter.default) == default
