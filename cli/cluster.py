"""`hardkuma gates --engine ray`: Parquet files by shards, on all machines of a Ray cluster."""

from __future__ import annotations

import argparse
import logging
import re
import sys
from pathlib import Path


def add_cluster_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments that a cluster takes beside those of `hardkuma gates`."""
    group = parser.add_argument_group("cluster")
    group.add_argument("--engine", choices=("local", "ray"), default="local", help="ray: all machines of a Ray cluster")
    group.add_argument("--input", metavar="FILES", help="with ray: a folder of Parquet files, or 'in/*.parquet'; s3:// too")
    group.add_argument(
        "--add", nargs="+", metavar="WHAT", help="with ray: gates, terms, anchor or rationale embeddings (default: gates)"
    )
    group.add_argument("--workers", type=int, help="with ray: models at a time (default: one a GPU, or one a CPU)")


def check_cluster(arguments: argparse.Namespace) -> None:
    """Options of one engine do not go with the other."""
    if arguments.engine == "local":
        for name in ("input", "add", "workers"):
            if getattr(arguments, name) is not None:
                raise ValueError(f"--{name} goes with --engine ray; for one machine there is --file.")
        return
    if not arguments.input or not arguments.output:
        raise ValueError("--engine ray needs --input FILES and --output FOLDER.")
    if arguments.texts:
        raise ValueError("texts do not go with --engine ray, which reads --input.")
    for name in ("file", "format", "numbers", "keep", "no_surface", "input_format", "device"):
        if getattr(arguments, name):
            raise ValueError(f"--{name.replace('_', '-')} does not go with --engine ray: all columns are kept, as Parquet.")


def run_on_cluster(arguments: argparse.Namespace) -> int:
    """Work through all shards; 0 when done, 1 where one has a problem, which is named."""
    from tqdm import tqdm

    from ..common.packages import require

    require("ray.data", "ray")
    from ..apps.ray import Outputs, list_shards, ray_gate_files, waiting_shards

    logging.getLogger("ray.data").setLevel(logging.WARNING)  # there is a progress bar
    outputs = Outputs(
        column=arguments.field or "text",
        add=tuple(arguments.add or ("gates",)),
        selector=arguments.selector,
        rate=arguments.rate,
        threshold=arguments.threshold,
        batch_size=arguments.batch_size,
    )
    output = address(arguments.output)
    shards = list_shards(arguments.input, output)
    waiting = waiting_shards(shards, output) if arguments.resume else shards
    reports = ray_gate_files(
        arguments.input, output, outputs, model=arguments.model, resume=arguments.resume, workers=arguments.workers
    )
    rows, done, problems = 0, 0, []
    with tqdm(total=len(waiting), unit="shard", disable=arguments.quiet) as bar:
        for report in reports:
            rows, done = rows + report.rows, done + (not report.problem)
            if report.problem:
                problems.append(report)
            bar.set_postfix(rows=f"{rows:,}", refresh=False)
            bar.update()
    for report in problems:
        print(f"hardkuma gates: {report.source}: {report.problem}", file=sys.stderr)
    left = f"; {len(problems)} could not be read or written, and can be tried again with --resume" if problems else ""
    print(f"hardkuma gates: {rows:,} rows of {done} shards written to {output}{left}.", file=sys.stderr)
    return 1 if problems else 0


def address(path: Path) -> str:
    """What was typed: a path keeps one of the slashes of s3://bucket/folder.

    >>> address(Path("s3://bucket/folder")), address(Path("file:///tmp/out")), address(Path("/tmp/out"))
    ('s3://bucket/folder', 'file:///tmp/out', '/tmp/out')
    """
    return re.sub(r"^(?:(file)|(\w{2,})):/", lambda scheme: "file:///" if scheme[1] else f"{scheme[2]}://", path.as_posix())
