"""Machines, hours and cost of many sentences, from a throughput that was measured.

    python benchmarks/plan.py --throughput 250                           sentences a second of one core, on your texts
    python benchmarks/plan.py --throughput 250 --overhead 1.1 --price 0.04 --bytes 900 --sentences 1e9

`benchmarks/ray_cluster.py` prints the command with what it has measured. Work is sentences / throughput in core-seconds,
times the overhead of the cluster; cores share it without loss, as shards are independent and each core takes the next.
Prices are an assumption of whoever runs this: they are in no way measured. Nothing is said about clusters where reading or
writing is slower than the encoder.
"""

from __future__ import annotations

import argparse
import math

MACHINES = (1, 4, 16, 64)


def plan(
    sentences: float, throughput: float, overhead: float, cores: int, price: float | None, size: float | None
) -> list[str]:
    """The lines of the plan, as Markdown."""
    core_hours = sentences / throughput * overhead / 3600
    lines = [
        f"{sentences:,.0f} sentences at {throughput:g} a second and core, times {overhead:g} for the cluster: "
        f"{core_hours:,.0f} core-hours."
    ]
    if size is not None:
        lines.append(f"Output: {sentences * size / 1e9:,.0f} GB ({size:g} bytes a row).")
    lines += ["", f"| machines of {cores} cores | hours |", "|---:|---:|"]
    lines += [f"| {number} | {core_hours / (number * cores):,.1f} |" for number in MACHINES]
    needed = math.ceil(core_hours / cores / 24)
    lines += ["", f"For one day: {needed} {'machine' if needed == 1 else 'machines'}."]
    if price is not None:
        lines.append(
            f"Cost, at an assumed {price:g} a core-hour: {core_hours * price:,.0f}, however many machines share it."
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--throughput", type=float, required=True, help="sentences a second of one core, measured")
    parser.add_argument("--overhead", type=float, default=1.0, help="of the cluster, measured (default: %(default)s)")
    parser.add_argument("--sentences", type=float, default=1e9, help="default: %(default)g")
    parser.add_argument("--cores", type=int, default=32, help="of a machine (default: %(default)s)")
    parser.add_argument("--price", type=float, help="of a core-hour: an assumption; without it no cost is shown")
    parser.add_argument("--bytes", type=float, help="of a row of the output, measured")
    arguments = parser.parse_args()
    for name in ("throughput", "overhead", "sentences", "cores"):
        if getattr(arguments, name) <= 0:
            parser.error(f"--{name} must be > 0, got {getattr(arguments, name)}")
    options = (arguments.overhead, arguments.cores, arguments.price, arguments.bytes)
    print("\n".join(plan(arguments.sentences, arguments.throughput, *options)))


if __name__ == "__main__":
    main()
