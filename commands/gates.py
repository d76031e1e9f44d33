"""`hardkuma gates`: which words of texts are selected, from arguments, a file or standard input."""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from ..rendering.terminal import safe, use_colour
from .options import add_model_argument, add_selector_argument

SUMMARY = "show which words of texts are selected"
EXAMPLES = """\
examples:
  hardkuma gates "Marie Curie moved to Paris in 1891."      selected words in colours, or in [brackets]
  hardkuma gates --rate 0.2 --numbers "..."                 a fifth of the words; every probability
  cat some.txt | hardkuma gates --format jsonl | jq .spans  one JSON record a line, with character offsets
  hardkuma gates --file big.jsonl.gz --field body --output gates.parquet
  hardkuma gates --file big.txt --output gates.html         a page to look at
  hardkuma gates --file big.txt --output gates.jsonl --resume
                                                            go on after an interruption; the file will be the same
  accelerate launch --multi_gpu --num_processes 4 -m hardkuma gates --file big.txt --output gates.jsonl
                                                            several processes share one file

A record is {"text", "words": [{"word", "start", "end", "probability", "selected"}],
"spans": [{"text", "start", "end", "probability"}], "rate", "windows"}; text[start:end] is the word or span. Every row of
a file gives one record, in order, empty ones too. Files are never loaded whole. Finished parts wait in OUTPUT.parts until
all are done.
"""

CHUNK_TEXTS = 4096  # texts of a part: enough to sort by length, few enough to lose little when interrupted
CHUNK_CHARACTERS = 4_000_000  # and its limit for long documents, so that memory stays flat
STREAM_TEXTS = 512  # the same on the way to a pipe or terminal, where somebody waits


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `hardkuma gates`."""
    parser.add_argument("texts", nargs="*", metavar="TEXT", help="texts; without any, lines of standard input")
    source = parser.add_argument_group("input")
    source.add_argument(
        "--file", metavar="FILE", help=".txt (a text a line), .jsonl, .csv, .tsv, .parquet, .conll; .gz too"
    )
    source.add_argument("--field", metavar="NAME", help="field or column with the text (default: text or sentence)")
    what = parser.add_argument_group("selection")
    add_model_argument(what)
    what.add_argument("--rate", type=float, help="select this fraction of each text's words, such as 0.2")
    what.add_argument("--threshold", type=float, help="select words above this probability (default: the model's)")
    what.add_argument("--no-surface", action="store_true", help="ignore how words are written (capitals, digits)")
    add_selector_argument(what)
    out = parser.add_argument_group("output")
    out.add_argument("--output", metavar="FILE", type=Path, help="write here; .txt, .jsonl, .parquet or .html")
    out.add_argument("--format", choices=("text", "jsonl", "parquet", "html"), help="default: from the suffix, or text")
    out.add_argument("--numbers", action="store_true", help="with text: each word's probability too")
    out.add_argument("--resume", action="store_true", help="go on with an interrupted run")
    out.add_argument(
        "--part-size", type=int, default=CHUNK_TEXTS, metavar="N", help="texts of a part of --output (default: %(default)s)"
    )
    out.add_argument("--quiet", action="store_true", help="no progress bar")
    how = parser.add_argument_group("speed")
    how.add_argument("--batch-size", type=int, default=32, metavar="N", help="texts a pass (default: %(default)s)")
    how.add_argument("--device", help="such as cuda:1 (default: a GPU if there is one)")


def check(arguments: argparse.Namespace) -> None:
    """Refuse values and combinations of options that make no sense."""
    from ..words_hardkuma import check_count, check_selection
    from .writers import choose_format

    check_selection(arguments.rate, arguments.threshold)
    check_count("--batch-size", arguments.batch_size)
    check_count("--part-size", arguments.part_size)
    if arguments.texts and arguments.file:
        raise ValueError("give texts or --file, not both.")
    if arguments.field is not None and not arguments.file:
        raise ValueError("--field names a column of --file, which is not given.")
    if arguments.resume and not (arguments.output and arguments.file):
        raise ValueError("--resume needs --file and --output: standard input cannot be read again.")
    if arguments.output and arguments.file and arguments.output.resolve() == Path(arguments.file).resolve():
        raise ValueError(f"{arguments.output} is both --file and --output; write to another file.")
    if choose_format(arguments.format, arguments.output) != "text" and arguments.numbers:
        raise ValueError("--numbers belongs to the format text; the other formats have every probability.")


def run(arguments: argparse.Namespace) -> int:
    """Score and write; 0 when done."""
    from .writers import choose_format

    format = choose_format(arguments.format, arguments.output)
    if arguments.output is None:
        return _to_stream(arguments, format)
    return _to_file(arguments, format)


# ---- input --------------------------------------------------------------------------------------------------------------


def _texts(arguments: argparse.Namespace) -> Iterator[str]:
    from ..corpora.lines import decoded_lines
    from ..corpora.rows import read_rows
    from ..words_hardkuma import encodable

    if arguments.file:
        rows = read_rows(arguments.file, column=arguments.field)
    elif arguments.texts:
        rows = iter(arguments.texts)
    else:
        rows = (line for _, line in decoded_lines(sys.stdin.buffer, "standard input"))
    # JSON can spell half a character, which no UTF-8 file can hold; one bad row must not end a run of hours.
    return map(encodable, rows)


def chunks(texts: Iterable[str], most: int, characters: int) -> Iterator[list[str]]:
    """Lists of at most `most` texts, closed early once they hold `characters`.

    >>> list(chunks(["a", "b", "long text", "c"], most=2, characters=5))
    [['a', 'b'], ['long text'], ['c']]
    """
    chunk: list[str] = []
    size = 0
    for text in texts:
        chunk.append(text)
        size += len(text)
        if len(chunk) == most or size >= characters:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _records(model: Any, chunk: Sequence[str], arguments: argparse.Namespace) -> list[dict[str, Any]]:
    from ..words_hardkuma import gate_records

    return gate_records(
        model,
        chunk,
        rate=arguments.rate,
        threshold=arguments.threshold,
        batch_size=arguments.batch_size,
        use_surface=not arguments.no_surface,
        selector=arguments.selector,
    )


# ---- to a terminal or pipe ----------------------------------------------------------------------------------------------


def _to_stream(arguments: argparse.Namespace, format: str) -> int:
    from ..common.models import load_model
    from ..words_hardkuma import find_selector
    from .writers import Lines

    if _processes() > 1:
        raise ValueError("several processes need --file and --output, so that they can share the work.")
    out = sys.stdout
    writer = Lines(format, numbers=arguments.numbers, colour=use_colour(out))
    shown = safe if format == "text" and (out.isatty() or writer.colour) else dict
    # Somebody who types wants an answer to each line.
    typed = not arguments.file and not arguments.texts and sys.stdin.isatty()
    texts = _texts(arguments)
    model = load_model(arguments.model, arguments.device)
    find_selector(model.config, arguments.selector)
    out.write(writer.head.decode())
    for chunk in chunks(texts, 1 if typed else STREAM_TEXTS, CHUNK_CHARACTERS):
        out.write(writer.part([shown(record) for record in _records(model, chunk, arguments)]).decode())
        out.flush()
    out.write(writer.foot.decode())
    return 0


# ---- to a file ----------------------------------------------------------------------------------------------------------


def _at_once() -> None:
    """Alone, there is nobody to wait for."""


@dataclass
class _Crew:
    """This process among those that share the work."""

    rank: int = 0
    size: int = 1
    device: str | None = None
    wait: Callable[[], None] = _at_once


def _processes() -> int:
    return int(os.environ.get("WORLD_SIZE", "1"))


def _join_crew(device: str | None) -> _Crew:
    if _processes() == 1:
        return _Crew(device=device)
    try:
        from accelerate import PartialState
    except ImportError as error:
        raise ImportError("several processes need the package accelerate: pip install accelerate") from error
    import torch

    # The wait at the end lasts as long as the slowest process, which may be hours behind.
    state = PartialState(cpu=not torch.accelerator.is_available(), timeout=timedelta(days=30))
    if state.num_processes != _processes():
        raise ValueError(
            f"{_processes()} processes were started, but accelerate joined {state.num_processes}; check its setup."
        )
    return _Crew(state.process_index, state.num_processes, device or str(state.device), state.wait_for_everyone)


def _to_file(arguments: argparse.Namespace, format: str) -> int:
    from ..common.models import load_model
    from ..words_hardkuma import find_selector
    from .parts import Parts
    from .writers import make_format

    crew = _join_crew(arguments.device)
    if crew.size > 1 and not arguments.file:
        raise ValueError("several processes need --file: each of them reads it.")
    writer, parts, texts = make_format(format, numbers=arguments.numbers), Parts(arguments.output), _texts(arguments)
    model = load_model(arguments.model, crew.device)
    find_selector(model.config, arguments.selector)
    if crew.rank == 0:
        parts.begin(_settings(arguments, format, model), arguments.resume)
    crew.wait()
    done = parts.finished()
    crew.wait()  # nobody adds a part before all have looked: they divide the missing ones among them
    count = missing = 0
    with _bar(arguments, crew.rank == 0) as bar:
        for number, chunk in enumerate(chunks(texts, arguments.part_size, CHUNK_CHARACTERS)):
            count += 1
            if number not in done:
                if missing % crew.size == crew.rank:
                    parts.add(number, writer.part(_records(model, chunk, arguments)))
                missing += 1
            bar.update(len(chunk))
    crew.wait()
    if crew.rank == 0:
        parts.close(count, writer.join)
    crew.wait()
    return 0


def _bar(arguments: argparse.Namespace, main: bool) -> Any:
    from tqdm import tqdm

    from ..corpora.rows import count_rows

    quiet = arguments.quiet or not main or not arguments.file
    total = None
    if not quiet:
        with suppress(OSError, ValueError):  # reading will tell
            total = count_rows(arguments.file)
    # Into a log file a line now and then; on a terminal it may move.
    return tqdm(total=total, unit=" texts", disable=quiet, mininterval=0.5 if sys.stderr.isatty() else 10)


def _settings(arguments: argparse.Namespace, format: str, model: Any) -> dict[str, Any]:
    """All that the bytes of the output depend on."""
    from .. import __version__

    settings = {
        "version": __version__,
        "model": _model_digest(model),
        "field": arguments.field,
        "rate": arguments.rate,
        "threshold": arguments.threshold,
        "surface": not arguments.no_surface,
        "selector": arguments.selector,
        "batch_size": arguments.batch_size,
        "format": format,
        "numbers": arguments.numbers,
        "part_size": [arguments.part_size, CHUNK_CHARACTERS],
    }
    if arguments.file and Path(arguments.file).exists():
        found = Path(arguments.file).stat()
        settings["file"] = [Path(arguments.file).name, found.st_size, found.st_mtime_ns]
    else:
        settings["file"] = [arguments.file]
    return settings


def _model_digest(model: Any) -> str:
    """SHA-256 of the configuration and the gate head. The encoder's weights are known by their fingerprint."""
    digest = hashlib.sha256(model.config.to_json_string(use_diff=False).encode())
    for name, tensor in sorted(model.gate_head.state_dict().items()):
        digest.update(name.encode() + tensor.float().cpu().numpy().tobytes())
    return digest.hexdigest()
