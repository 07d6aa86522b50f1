"""The picture of a plan: rows over cores, coloured by cost, and the load of each core beside it."""

from __future__ import annotations

import io
from typing import Any

import numpy as np

import kindling

MAX_ROW_BINS = 256
MAX_CORE_BINS = 128
"""Cells of a few pixels: smaller ones are hard to see where few are filled."""

MAX_DRAWN_ROWS = 1_000_000
"""Beyond that many rows, one of every few is looked at: the picture has at most 32,768 cells."""

_BAR, _LONGEST_BAR = "#3b6ea8", "#d1495b"


def cost_map(plan: kindling.Plan) -> np.ndarray:
    """Mean cost of the rows that fall into each cell of the picture.

    Returns
    -------
    numpy.ndarray, shape (min(cores with rows, 128), min(rows, 256)), float64
        NaN in cells without rows.
    """
    core_bins = min(plan.num_used_cores, MAX_CORE_BINS)
    row_bins = min(plan.num_rows, MAX_ROW_BINS)
    stride = max(1, -(-plan.num_rows // MAX_DRAWN_ROWS))
    rows = np.arange(0, plan.num_rows, stride)
    if stride > 1:
        # Not every `stride`-th: where that shares a divisor with the number of cores, cyclic
        # dealing would seem to leave cores without rows.
        rows += np.random.default_rng(0).integers(0, stride, rows.size)
        rows = np.minimum(rows, plan.num_rows - 1)
    listed = rows.tolist()
    costs = np.fromiter(map(plan.cost_of_row, listed), np.float64, rows.size)
    cores = np.fromiter(map(plan.core_of_row, listed), np.int64, rows.size)
    cells = rows * row_bins // max(plan.num_rows, 1)
    cells += cores * core_bins // max(plan.num_used_cores, 1) * row_bins
    counts = np.bincount(cells, minlength=core_bins * row_bins)
    sums = np.bincount(cells, weights=costs, minlength=core_bins * row_bins)
    means = np.divide(sums, counts, out=np.full(sums.shape, np.nan), where=counts > 0)
    return means.reshape(core_bins, row_bins)


def binned_loads(loads: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Edges of at most 128 bins of cores, and the largest load in each."""
    bins = min(loads.size, MAX_CORE_BINS)
    # The first core with core * bins // size >= bin.
    edges = -(-np.arange(bins + 1) * loads.size // max(bins, 1))
    return edges, np.maximum.reduceat(loads, edges[:-1]) if bins else loads


def _draw_cells(figure: Any, axes: Any, plan: kindling.Plan) -> None:
    image = axes.imshow(
        np.ma.masked_invalid(cost_map(plan)),
        aspect="auto",
        interpolation="nearest",
        extent=(-0.5, plan.num_rows - 0.5, plan.num_used_cores - 0.5, -0.5),
        cmap="viridis",
        vmin=0,
    )
    shared = plan.num_rows > MAX_ROW_BINS or plan.num_used_cores > MAX_CORE_BINS
    label = "cost of a row" + (", mean where rows share a cell" if shared else "")
    figure.colorbar(image, ax=axes, label=label, pad=0.02, format=_number_format())


def _draw_loads(axes: Any, loads: np.ndarray, mean: float) -> None:
    edges, largest = binned_loads(loads)
    heights = np.diff(edges)
    level = loads.max() <= 1.005 * mean
    colors = [_BAR if level or load < loads.max() else _LONGEST_BAR for load in largest]
    gap = 0.15 if heights.max() == 1 else 0.0
    axes.barh(edges[:-1] - 0.5 + gap / 2, largest, heights - gap, align="edge", color=colors)
    axes.axvline(mean, color="black", linestyle="--", linewidth=1)
    axes.set_xlim(0, 1.08 * max(loads.max(), mean))
    binned = f", largest of {heights.max()}" if heights.max() > 1 else ""
    axes.set_xlabel(f"cost of a core{binned}\n(dashed: mean of all)")
    axes.tick_params(labelleft=False)


def _number_format() -> Any:
    from matplotlib.ticker import EngFormatter

    return EngFormatter(sep="")


def _title(plan: kindling.Plan, largest: float, mean: float) -> str:
    rows = f"{plan.num_rows} row{'s' * (plan.num_rows != 1)}"
    cores = f"{plan.num_cores} core{'s' * (plan.num_cores != 1)}"
    title = f"{rows} on {cores}, {plan.law} dealing"
    if plan.num_rows > 0:
        title += f": the busiest core costs {largest / mean:.3f} × the mean"
        if plan.num_used_cores < plan.num_cores:
            title += f" ({plan.num_cores - plan.num_used_cores} idle, not drawn)"
    return title


def draw_plan(plan: kindling.Plan, file_format: str) -> bytes:
    """Draw a plan.

    Parameters
    ----------
    plan
        Of any number of rows and cores; beyond 256 and 128 they share cells.
    file_format
        ``"svg"`` or ``"png"``.

    Returns
    -------
    bytes
        The file; the same for the same plan.
    """
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # the picture is not a matter of the user's settings
        matplotlib.rcParams["svg.hashsalt"] = "kindling"
        figure = Figure(figsize=(11, 5), layout="constrained")
        left, right = figure.subplots(1, 2, width_ratios=(4, 1), sharey=True)
        loads = plan.cost_of_cores()
        mean = loads.sum(dtype=np.float64) / plan.num_cores
        figure.suptitle(_title(plan, loads.max(initial=0), mean))
        if plan.num_rows > 0:
            _draw_cells(figure, left, plan)
            _draw_loads(right, loads, mean)
        for axis in (left.xaxis, left.yaxis):
            axis.set_major_locator(MaxNLocator(8, integer=True, min_n_ticks=1))
        right.xaxis.set_major_locator(MaxNLocator(3, integer=True, min_n_ticks=1))
        for axis in (left.xaxis, left.yaxis, right.xaxis):
            axis.set_major_formatter(_number_format())
        left.set_xlabel("row, batch-major")
        left.set_ylabel("core")
        out = io.BytesIO()
        unwanted = ("Date", "Creator") if file_format == "svg" else ("Software",)
        figure.savefig(out, format=file_format, dpi=120, metadata=dict.fromkeys(unwanted))
    return out.getvalue()
