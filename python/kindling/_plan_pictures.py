"""The picture of a plan: rows over cores, coloured by cost."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import kindling

MAX_ROW_BINS = 256
MAX_CORE_BINS = 128
MAX_DRAWN_ROWS = 2_000_000
"""Beyond that many rows a stride of them is looked at: the picture has a few hundred bins."""


def cost_map(plan: kindling.Plan) -> np.ndarray:
    """Cost by core and row, binned, (cores or fewer, rows or fewer) float64; NaN where nothing is.

    Bins add the cost of their rows.
    """
    core_bins = min(plan.num_used_cores, MAX_CORE_BINS)
    row_bins = min(plan.num_rows, MAX_ROW_BINS)
    costs = np.zeros((core_bins, row_bins))
    counts = np.zeros((core_bins, row_bins), np.int64)
    stride = -(-plan.num_rows // MAX_DRAWN_ROWS)
    for row in range(0, plan.num_rows, stride):
        at = (
            plan.core_of_row(row) * core_bins // plan.num_used_cores,
            row * row_bins // plan.num_rows,
        )
        costs[at] += plan.cost_of_row(row) * stride
        counts[at] += 1
    return np.where(counts > 0, costs, np.nan)


def draw_plan(plan: kindling.Plan, path: Path, file_format: str) -> None:
    """Draw ``plan`` into ``path`` as ``"svg"`` or ``"png"``; the same plan gives the same file."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    with matplotlib.rc_context({"svg.hashsalt": "kindling", "svg.fonttype": "path"}):
        figure, (left, right) = plt.subplots(
            1, 2, figsize=(11, 5), width_ratios=(4, 1), sharey=True, layout="constrained"
        )
        loads = plan.cost_of_cores()
        mean = loads.sum() / plan.num_cores if plan.num_rows else 0.0
        ratio = loads.max() / mean if plan.num_rows else 1.0
        figure.suptitle(
            f"{plan.num_rows} rows on {plan.num_cores} cores, {plan.law} dealing: "
            f"the busiest core has {ratio:.3f} x the mean cost"
        )
        extent = (-0.5, max(plan.num_rows, 1) - 0.5, max(plan.num_used_cores, 1) - 0.5, -0.5)
        if plan.num_rows > 0:
            image = left.imshow(
                np.ma.masked_invalid(cost_map(plan)),
                aspect="auto",
                interpolation="nearest",
                extent=extent,
                cmap="viridis",
                vmin=0,
            )
            figure.colorbar(image, ax=left, label="cost of the row (sum where rows share a cell)")
            right.barh(np.arange(plan.num_used_cores), loads, height=0.8, color="#3b6ea8")
            right.axvline(mean, color="black", linestyle="--", linewidth=1)
            right.set_title("dashed: mean", fontsize="small")
        left.set_xlabel("row (batch-major)")
        left.set_ylabel("core")
        right.set_xlabel("cost of the core")
        metadata = {"Date": None} if file_format == "svg" else {"Software": None}
        figure.savefig(path, format=file_format, dpi=120, metadata=metadata)
        plt.close(figure)
