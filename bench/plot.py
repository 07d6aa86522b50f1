"""GFLOP/s against S for every number of heads, from lines of JSON, as an SVG.

make bench-curve    measures tests/cases/curve.txt and draws docs/performance.svg
"""

from __future__ import annotations

import argparse
import json
import pathlib
import re
from collections import defaultdict

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt  # noqa: E402

# The same bytes for the same numbers.
matplotlib.rcParams["svg.hashsalt"] = "kindling"


def number(line: str, key: str) -> int:
    return int(re.search(rf" {key}=(\d+)", line).group(1))


def median(values: list[float]) -> float:
    ordered = sorted(values)
    return ordered[len(ordered) // 2]


def draw(records: list[dict], out: pathlib.Path) -> None:
    # operator -> heads -> S -> GFLOP/s; operator -> peaks
    curves = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    peaks = defaultdict(list)
    for record in records:
        side = record["sides"][0]
        heads, keys = number(record["line"], "heads"), number(record["line"], "keys")
        curves[side["operator"]][heads][keys].append(side["gflops"])
        peaks[side["operator"]].append(side["peak_flops"] / 1e9)
    figure, axes = plt.subplots(1, len(curves), figsize=(5 * len(curves), 4), sharey=True)
    axes = [axes] if len(curves) == 1 else list(axes)
    for axis, (operator, by_heads) in zip(axes, sorted(curves.items()), strict=True):
        for heads, by_keys in sorted(by_heads.items()):
            sizes = sorted(by_keys)
            rates = [median(by_keys[size]) for size in sizes]
            axis.plot(sizes, rates, marker="o", markersize=3, label=f"N1 = {heads}")
        axis.axhline(median(peaks[operator]), color="black", linewidth=0.8, linestyle="--")
        axis.set_xscale("log", base=2)
        axis.set_ylim(bottom=0)
        axis.set_xlabel("keys S")
        axis.set_title(operator)
        axis.grid(alpha=0.3)
    first = records[0]
    axes[0].set_ylabel("GFLOP/s")
    axes[0].legend(fontsize=8)
    figure.suptitle(
        f"{first['machine']}; {first['sides'][0]['isa']}, bf16, D = 128, 256 rows, 1 thread; "
        "dashed: peak",
        fontsize=9,
    )
    figure.tight_layout()
    figure.savefig(out, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", type=pathlib.Path, help="lines of JSON")
    parser.add_argument("out", type=pathlib.Path)
    arguments = parser.parse_args()
    with arguments.results.open() as lines:
        records = [json.loads(line) for line in lines]
    draw([record for record in records if "sides" in record], arguments.out)


if __name__ == "__main__":
    main()
