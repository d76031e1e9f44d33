"""`hardkuma gates`: which words of texts are selected, from arguments, a file or standard input."""

from __future__ import annotations

import argparse
import gc
import hashlib
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from ..common.formats import STANDARD_INPUT
from ..common.rendering.terminal import safe, use_colour
from .cluster import add_cluster_arguments, check_cluster, run_on_cluster
from .options import add_options, add_selector_option
from .parts import Parts
from .processes import count_processes, join_process_group
from .tally import Tally
from .writers import FORMATS, RECORD_FIELDS, SequentialFormat, choose_output_format, make_format

if TYPE_CHECKING:
    from tqdm import tqdm

    from ..apps.export.backends import Backend
    from ..data.readers import RowText
    from ..modeling_hardkuma import HardKumaModel
    from ..scoring_hardkuma import GateModel, Record

SUMMARY = "show which words of texts are selected"
EXAMPLES = """\
examples:
  hardkuma gates "Marie Curie moved to Paris in 1891."      selected words in colours, or in [brackets]
  hardkuma gates --rate 0.2 --numbers "..."                 a fifth of the words; every probability
  cat some.txt | hardkuma gates --format jsonl | jq .spans  one JSON record a line, with character offsets
  hardkuma gates --file big.jsonl.gz --field body --keep id --output gates.parquet
                                                            another column comes along
  zcat big.gz | hardkuma gates --file - --input-format tsv --field body --format jsonl
  hardkuma gates --selector all --format jsonl "..."        one record with the gates of every selector
  hardkuma gates --file big.txt --output gates.html         a page to look at
  hardkuma gates --file big.txt --output gates.jsonl --resume
                                                            go on after an interruption; the file will be the same
  accelerate launch --multi_gpu --num_processes 4 -m hardkuma gates --file big.txt --output gates.jsonl
                                                            several processes share one file
  hardkuma gates --backend auto --file big.txt --output gates.jsonl
                                                            by onnxruntime in int8, where that is faster
  hardkuma gates --engine ray --input 'in/*.parquet' --output out
                                                            on a Ray cluster, shard by shard, all columns kept

A record is {"text", "words": [{"word", "start", "end", "probability", "selected"}],
"spans": [{"text", "start", "end", "probability"}], "rate", "windows"}; text[start:end] is the word or span. Where no word
is selected, "reason" says why. With --selector all a record has the gates of every selector: a word has
"probabilities" {NAME: number} and "selected" [NAME, ...], a span has its "selector", and "rates" are by name.
Every row of a file gives one record, in order, empty ones too. Files are never loaded
whole. Finished parts wait in OUTPUT.parts until all are done.
"""

CHUNK_TEXTS = 4096  # texts of a part: enough to sort by length, few enough to lose little when interrupted
CHUNK_CHARACTERS = 4_000_000  # and its limit for long documents, so that memory stays flat
STREAM_TEXTS = 512  # the same on the way to a pipe or terminal, where somebody waits

T = TypeVar("T")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `hardkuma gates`."""
    parser.add_argument("texts", nargs="*", metavar="TEXT", help="texts; without any, or with -, lines of standard input")
    source = parser.add_argument_group("input")
    source.add_argument(
        "--file",
        metavar="FILE",
        help=".txt (a text a line), .jsonl, .csv, .tsv, .parquet, .conll; .gz too; or - for standard input",
    )
    add_options(source, "input-format", "field")
    source.add_argument(
        "--keep", nargs="+", default=[], metavar="NAME", help="other fields or columns, which come along (jsonl, parquet)"
    )
    selection = parser.add_argument_group("selection")
    add_options(selection, "model")
    selection.add_argument("--rate", type=float, help="select this fraction of each text's words, such as 0.2")
    selection.add_argument("--threshold", type=float, help="select words above this probability (default: the model's)")
    selection.add_argument("--no-surface", action="store_true", help="ignore how words are written (capitals, digits)")
    add_selector_option(selection, several=True)
    output = parser.add_argument_group("output")
    output.add_argument("--output", metavar="FILE", type=Path, help="write here; .txt, .jsonl, .parquet or .html")
    output.add_argument("--format", choices=FORMATS, help="default: from the suffix, or text")
    output.add_argument("--numbers", action="store_true", help="with text: each word's probability too")
    output.add_argument("--resume", action="store_true", help="go on with an interrupted run")
    output.add_argument(
        "--part-size", type=int, default=CHUNK_TEXTS, metavar="N", help="texts of a part of --output (default: %(default)s)"
    )
    add_options(output, "quiet")
    speed = parser.add_argument_group("speed")
    add_options(speed, "batch-size")
    speed.add_argument("--device", help="such as cuda:1 (default: a GPU if there is one)")
    speed.add_argument(
        "--backend",
        choices=("torch", "onnx", "auto"),
        default="torch",
        help="onnx: onnxruntime, in int8 where the processor can; auto: the faster one, by a trial (default: %(default)s)",
    )
    add_cluster_arguments(parser)


def check(arguments: argparse.Namespace) -> None:
    """Check values and combinations of options.

    >>> parser = argparse.ArgumentParser()
    >>> add_arguments(parser)
    >>> check(parser.parse_args(["--field", "body", "a text"]))
    Traceback (most recent call last):
    ValueError: --field names a column of --file, which is not given.
    """
    from ..scoring_hardkuma import check_count, check_selection

    check_selection(arguments.rate, arguments.threshold)
    check_count("--batch-size", arguments.batch_size)
    check_count("--part-size", arguments.part_size)
    check_cluster(arguments)
    if arguments.engine != "local":
        if arguments.backend != "torch":
            raise ValueError(f"--backend {arguments.backend} does not go with --engine {arguments.engine}: leave it out.")
        return
    if arguments.backend == "auto" and count_processes() > 1:
        raise ValueError("--backend auto: processes that share a file must agree; choose --backend torch or onnx.")
    if arguments.texts and arguments.file:
        raise ValueError("give texts or --file, not both.")
    for option in ("field", "keep", "input_format"):
        if getattr(arguments, option) and not arguments.file:
            what = "is the format" if option == "input_format" else "names a column"
            raise ValueError(f"--{option.replace('_', '-')} {what} of --file, which is not given.")
    if own := [name for name in arguments.keep if name in RECORD_FIELDS]:
        raise ValueError(f"--keep {own[0]}: every record has a field of this name already; rename the column.")
    if arguments.keep and choose_output_format(arguments.format, arguments.output) not in ("jsonl", "parquet"):
        raise ValueError("--keep is for the formats jsonl and parquet, whose records have fields.")
    if arguments.resume and not (arguments.output and arguments.file and arguments.file != STANDARD_INPUT):
        raise ValueError("--resume needs --file and --output: standard input cannot be read again.")
    if arguments.output and arguments.file and arguments.output.resolve() == Path(arguments.file).resolve():
        raise ValueError(f"{arguments.output} is both --file and --output; write to another file.")
    if choose_output_format(arguments.format, arguments.output) != "text" and arguments.numbers:
        raise ValueError("--numbers belongs to the format text; the other formats have every probability.")


def run(arguments: argparse.Namespace) -> int:
    """Score and write; 0 when done."""
    if arguments.engine == "ray":
        return run_on_cluster(arguments)
    format = choose_output_format(arguments.format, arguments.output)
    if arguments.output is None:
        _write_to_stream(arguments, format)
    else:
        _write_to_file(arguments, format)
    return 0


# ---- input --------------------------------------------------------------------------------------------------------------


def _read_input(arguments: argparse.Namespace) -> Iterator[RowText]:
    from ..data.readers import RowText, read_kept_rows
    from ..scoring_hardkuma import encodable

    rows: Iterator[RowText]
    if arguments.texts and arguments.texts != [STANDARD_INPUT]:
        rows = (RowText(text, False) for text in arguments.texts)
    else:
        file = arguments.file or STANDARD_INPUT
        rows = read_kept_rows(file, arguments.input_format, arguments.field, arguments.keep)
    # JSON can spell half a character, which no UTF-8 file can hold; one bad row must not end a run of hours.
    return (row._replace(text=encodable(row.text)) for row in rows)


def chunks(
    rows: Iterable[T],
    max_texts: int,
    max_characters: int,
    size: Callable[[T], int] = len,  # type: ignore[assignment]
) -> Iterator[list[T]]:
    """Lists of at most `max_texts` rows, closed early once they hold `max_characters`; `size` counts those of a row.

    >>> list(chunks(["a", "b", "long text", "c"], max_texts=2, max_characters=5))
    [['a', 'b'], ['long text'], ['c']]
    """
    chunk: list[T] = []
    total = 0
    for row in rows:
        chunk.append(row)
        total += size(row)
        if len(chunk) == max_texts or total >= max_characters:
            yield chunk
            chunk, total = [], 0
    if chunk:
        yield chunk


def _chunks(rows: Iterable[RowText], max_texts: int) -> Iterator[list[RowText]]:
    return chunks(rows, max_texts, CHUNK_CHARACTERS, lambda row: len(row.text))


def _score(
    gates: GateModel, chunks: Iterable[list[RowText]], arguments: argparse.Namespace
) -> Iterator[tuple[list[RowText], list[Record]]]:
    """Each chunk with its records. The next one is read while a backend works on this one."""
    from ..scoring_hardkuma import stream_records

    read: deque[list[RowText]] = deque()

    def texts() -> Iterator[list[str]]:
        for chunk in chunks:
            read.append(chunk)
            yield [row.text for row in chunk]

    for records in stream_records(
        gates,
        texts(),
        rate=arguments.rate,
        threshold=arguments.threshold,
        batch_size=arguments.batch_size,
        use_surface=not arguments.no_surface,
        selector=arguments.selector,
    ):
        chunk = read.popleft()
        yield chunk, [{**row.kept, **record} for row, record in zip(chunk, records, strict=True)]


def _choose_backend(arguments: argparse.Namespace, model: HardKumaModel, name: str) -> Backend:
    """The backend of this name; an export is made for files, and for single texts only if it was asked for."""
    import torch

    from ..apps.export.backends import choose_backend

    def log(sentence: str) -> None:
        print(f"hardkuma gates: {sentence}", file=sys.stderr)

    chosen = choose_backend(model, name, arguments.selector, log, make=arguments.file is not None)
    if chosen.name == "onnx":
        torch.set_num_threads(1)  # all but the model is too small to be shared, and would be in the way of it
    gc.collect()
    gc.freeze()  # records are many small objects, with which Python would search all modules for garbage again and again
    return chosen


def _tell(tally: Tally, model: HardKumaModel, arguments: argparse.Namespace) -> None:
    from ..scoring_hardkuma import ALL

    names, asked = model.config.names, arguments.selector
    selector = ALL if asked == ALL else names[model.config.find_selector(asked)]
    for note in tally.notes(selector, [] if asked == ALL else names):
        print(f"hardkuma gates: {note}", file=sys.stderr)


# ---- to a terminal or pipe ----------------------------------------------------------------------------------------------


def _write_to_stream(arguments: argparse.Namespace, format: str) -> None:
    from ..common.models import load_model
    from ..scoring_hardkuma import check_selector

    if count_processes() > 1:
        raise ValueError("several processes need --file and --output, so that they can share the work.")
    out = sys.stdout
    writer = SequentialFormat(format, numbers=arguments.numbers, colour=use_colour(out))
    make_safe = safe if format == "text" and (out.isatty() or writer.colour) else dict
    # Somebody who types wants an answer to each line.
    is_typed = arguments.file in (None, STANDARD_INPUT) and arguments.texts in ([], [STANDARD_INPUT]) and sys.stdin.isatty()
    rows = _read_input(arguments)
    model = load_model(arguments.model, arguments.device)
    check_selector(model.config, arguments.selector)
    gates = _choose_backend(arguments, model, arguments.backend).gates
    if is_typed:
        print("hardkuma gates: type a text and press Enter; Ctrl-D ends. (See hardkuma gates --help)", file=sys.stderr)
    tally = Tally()
    out.write(writer.head.decode())
    chunks = _chunks(rows, 1 if is_typed else STREAM_TEXTS)
    # Who types has the answer to a line before the next one is read.
    for stream in ([chunk] for chunk in chunks) if is_typed else [chunks]:
        for _, records in _score(gates, stream, arguments):
            out.write(writer.part([make_safe(record) for record in tally.add(records)]).decode())
            out.flush()
    out.write(writer.foot.decode())
    out.flush()
    _tell(tally, model, arguments)


# ---- to a file ----------------------------------------------------------------------------------------------------------


def _write_to_file(arguments: argparse.Namespace, format: str) -> None:
    from ..common.models import load_model
    from ..scoring_hardkuma import ALL, check_selector

    group = join_process_group(arguments.device)
    if group.size > 1 and arguments.file in (None, STANDARD_INPUT):
        raise ValueError("several processes need --file: each of them reads it.")
    writer = make_format(format, numbers=arguments.numbers, keep=arguments.keep, joined=arguments.selector == ALL)
    parts = Parts(arguments.output)
    rows = _read_input(arguments)
    model = load_model(arguments.model, group.device)
    check_selector(model.config, arguments.selector)
    earlier = parts.recorded() if arguments.resume else {}
    # A run that goes on must have the backend that it began with.
    name = str(earlier.get("backend", [arguments.backend])[0]) if arguments.backend == "auto" else arguments.backend
    if group.rank > 0:
        group.wait()  # the first process exports the model, if need be
    backend = _choose_backend(arguments, model, name)
    if group.rank == 0:
        group.wait()
    settings = _settings(arguments, format, model, backend)
    if arguments.resume and parts.is_complete(settings):
        if group.rank == 0:
            print(f"hardkuma gates: {arguments.output} is complete already; nothing to do.", file=sys.stderr)
        return
    if group.rank == 0:
        parts.begin(settings, arguments.resume)
    group.wait()
    done = parts.finished()
    group.wait()  # nobody adds a part before all have read which there are: they divide the missing ones among them
    tally, missing, count = Tally(), 0, 0
    numbers: deque[int] = deque()
    with _progress_bar(arguments, group.rank == 0) as bar:

        def own_chunks() -> Iterator[list[RowText]]:
            """The parts that are missing and that fall to this process."""
            nonlocal missing, count
            for number, chunk in enumerate(_chunks(rows, arguments.part_size)):
                count += 1
                mine = number not in done and missing % group.size == group.rank
                missing += number not in done
                if mine:
                    numbers.append(number)
                    yield chunk
                else:
                    bar.update(len(chunk))

        for chunk, records in _score(backend.gates, own_chunks(), arguments):
            parts.add(numbers.popleft(), writer.part(tally.add(records)))
            bar.update(len(chunk))
    group.wait()
    if group.rank == 0:
        parts.close(count, writer.join)
    group.wait()
    if group.size == 1 and missing == count:  # else this process has not seen every text
        _tell(tally, model, arguments)


def _progress_bar(arguments: argparse.Namespace, is_main: bool) -> tqdm:
    from tqdm import tqdm

    from ..data.readers import count_rows

    quiet = arguments.quiet or not is_main or not arguments.file
    total = None
    if not quiet:
        with suppress(OSError, ValueError):  # reading will tell
            total = count_rows(arguments.file, arguments.input_format)
    # Into a log file a line now and then; on a terminal it may move.
    return tqdm(total=total, unit=" texts", disable=quiet, mininterval=0.5 if sys.stderr.isatty() else 10)


def _settings(arguments: argparse.Namespace, format: str, model: HardKumaModel, backend: Backend) -> dict[str, object]:
    """All that the bytes of the output depend on."""
    from .. import __version__
    from ..encoder_hardkuma import fingerprint

    settings: dict[str, object] = {
        "version": __version__,
        # The encoder's weights are known by their fingerprint, which the configuration holds.
        "model": [_digest(model.config.to_json_string(use_diff=False)), fingerprint(model.gate_head)],
        "field": arguments.field,
        "keep": arguments.keep,
        "input_format": arguments.input_format,
        "rate": arguments.rate,
        "threshold": arguments.threshold,
        "surface": not arguments.no_surface,
        "selector": arguments.selector,
        "batch_size": arguments.batch_size,
        "backend": [backend.name, backend.precision],
        "format": format,
        "numbers": arguments.numbers,
        "part_size": [arguments.part_size, CHUNK_CHARACTERS],
        "file": [arguments.file],
    }
    if arguments.file and Path(arguments.file).exists():
        status = Path(arguments.file).stat()
        settings["file"] = [Path(arguments.file).name, status.st_size, status.st_mtime_ns]
    return settings


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
