"""`hardkuma gates`: which words of texts are selected, from arguments, a file or standard input."""

from __future__ import annotations

import argparse
import hashlib
import logging
import math
import os
import re
import sys
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..common.text import STANDARD_INPUT
from .options import add_options, add_selector_option, check_counts
from .writers import (
    FORMATS,
    KEEPING,
    RECORD_FIELDS,
    TABLES,
    ParquetFormat,
    PartialOutput,
    SequentialFormat,
    choose_output_format,
)

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
  hardkuma gates --keep 0.8 "..."                           the fewest words that keep 80% of the meaning
  cat some.txt | hardkuma gates --format jsonl | jq .spans  one JSON record a line, with character offsets
  hardkuma gates --file big.jsonl.gz --field body --columns id --output gates.parquet
                                                            another column comes along
  zcat big.gz | hardkuma gates --file - --input-format tsv --field body --format jsonl
  hardkuma gates --selector all --format jsonl "..."        one record with the gates of every selector
  hardkuma gates --file comments.csv --field comment --columns id --output words.csv
                                                            a table: id, text, and the selected words
  hardkuma gates --file big.txt --output gates.html         a page to look at
  hardkuma gates --file big.txt --output gates.jsonl --resume
                                                            go on after an interruption; the file will be the same
  hardkuma gates --backend auto --file big.txt --output gates.jsonl
                                                            by onnxruntime in int8, where a large file is done faster
  hardkuma gates --engine ray --input 'in/*.parquet' --output out
                                                            on a Ray cluster, shard by shard, all columns kept

Without colours selected words are in [brackets], and brackets of the text itself are written \\[ and \\].
A record is {"text", "words": [{"word", "start", "end", "probability", "selected"}],
"spans": [{"text", "start", "end", "probability"}], "rate", "windows"}; text[start:end] is the word or span. Where no word
is selected, "reason" says why; a text of a script or language that the model has not seen has a "note".
With --selector all a record has the gates of every selector: a word has
"probabilities" {NAME: number} and "selected" [NAME, ...], a span has its "selector", and "rates" are by name.
Every row of a file gives one record, in order, empty ones too. Files are never loaded whole. What is done waits in
OUTPUT.partial; OUTPUT appears when it is complete.
"""

CHUNK_TEXTS = 4096  # texts of a block: enough to sort by length, few enough to lose little when interrupted
CHUNK_CHARACTERS = 4_000_000  # and its limit for long documents, so that memory stays flat
STREAM_TEXTS = 512  # the same on the way to a pipe or terminal, where somebody waits
# Some 40,000 sentences, for which torch needs about as long as an export takes (two minutes on two cores).
EXPORT_BYTES = 4_000_000


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
        "--columns",
        nargs="+",
        default=[],
        metavar="NAME",
        help="other fields or columns, which come along (jsonl, csv, tsv, parquet)",
    )
    selection = parser.add_argument_group("selection")
    add_options(selection, "model")
    selection.add_argument("--rate", type=float, help="select this fraction of each text's words, such as 0.2")
    selection.add_argument("--threshold", type=float, help="select words above this probability, and all of their names")
    selection.add_argument(
        "--keep",
        type=_read_cosine,
        metavar="COSINE",
        help="select the fewest words that keep so much of the text's embedding, such as 0.8; verified by encoding them",
    )
    selection.add_argument("--phrases", action="store_true", help="with a rate or threshold: complete phrases")
    selection.add_argument("--no-surface", action="store_true", help="ignore how words are written (capitals, digits)")
    add_selector_option(selection, several=True)
    output = parser.add_argument_group("output")
    output.add_argument(
        "--output", metavar="FILE", type=Path, help="write here; .txt, .jsonl, .csv, .tsv, .parquet or .html"
    )
    output.add_argument("--format", choices=FORMATS, help="default: from the suffix, or text")
    output.add_argument("--numbers", action="store_true", help="with text: each word's probability too")
    output.add_argument("--resume", action="store_true", help="go on with an interrupted run")
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
    _add_cluster_arguments(parser)


def _read_cosine(value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"takes a cosine such as 0.8, got {value!r}; other columns come along with --columns {value}"
        ) from None


def check(arguments: argparse.Namespace) -> None:
    """Check values and combinations of options."""
    from ..scoring_hardkuma import ALL, check_selection

    check_selection(arguments.rate, arguments.threshold, arguments.keep)
    check_counts(arguments, "batch_size")
    _check_cluster(arguments)
    if arguments.engine != "local":
        if arguments.backend != "torch":
            raise ValueError(f"--backend {arguments.backend} does not go with --engine {arguments.engine}: leave it out.")
        return
    if arguments.texts and arguments.file is not None:
        raise ValueError("give texts or --file, not both.")
    if len(arguments.texts) == 1 and Path(arguments.texts[0]).suffix and os.path.isfile(arguments.texts[0]):
        raise ValueError(f"{arguments.texts[0]!r} is a file; to read it: hardkuma gates --file {arguments.texts[0]}")
    for option in ("field", "columns", "input_format"):
        if getattr(arguments, option) and not arguments.file:
            what = {"field": "names a column", "columns": "names columns", "input_format": "is the format"}[option]
            raise ValueError(f"--{option.replace('_', '-')} {what} of --file, which is not given.")
    if own := [name for name in arguments.columns if name in RECORD_FIELDS]:
        raise ValueError(f"--columns {own[0]}: every record has a field of this name already; rename the column.")
    format = choose_output_format(arguments.format, arguments.output)
    if arguments.columns and format not in KEEPING:
        raise ValueError(f"--columns is for the formats {', '.join(KEEPING)}, whose records have fields; got {format}.")
    if arguments.selector == ALL and format in TABLES:
        raise ValueError(
            f"a row of {format} has the words of one selector: name one with --selector, or use jsonl or parquet."
        )
    if arguments.resume and not (arguments.output and arguments.file and arguments.file != STANDARD_INPUT):
        raise ValueError("--resume needs --file and --output: standard input cannot be read again.")
    if arguments.output and arguments.file and arguments.output.resolve() == Path(arguments.file).resolve():
        raise ValueError(f"{arguments.output} is both --file and --output; write to another file.")
    if format != "text" and arguments.numbers:
        raise ValueError("--numbers belongs to the format text; jsonl, parquet and html have every probability.")


def run(arguments: argparse.Namespace) -> int:
    """Score and write; 0 when done."""
    if arguments.engine == "ray":
        return _run_on_cluster(arguments)
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
        file = STANDARD_INPUT if arguments.file is None else arguments.file
        rows = read_kept_rows(file, arguments.input_format, arguments.field, arguments.columns)
    # One bad row must not end a run of hours, nor spoil its output.
    return (row._replace(text=encodable(row.text), kept=_writable(row.kept)) for row in rows)


def _writable(value: Any) -> Any:
    """A kept value as every format can hold it: JSON can spell half a character, which is none in UTF-8, and Python reads
    NaN and Infinity, which are no JSON.

    >>> _writable({"id": "a \\ud800", "scores": [0.5, float("nan")]})
    {'id': 'a �', 'scores': [0.5, None]}
    """
    from ..scoring_hardkuma import encodable

    if isinstance(value, str):
        return encodable(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list):
        return [_writable(item) for item in value]
    if isinstance(value, Mapping):
        return {_writable(name): _writable(item) for name, item in value.items()}
    return value


def chunks(rows: Iterable[RowText], max_texts: int, max_characters: int = CHUNK_CHARACTERS) -> Iterator[list[RowText]]:
    """Lists of at most `max_texts` rows, closed early once their texts hold `max_characters`.

    >>> from hardkuma.data.readers import RowText
    >>> rows = [RowText(text, False) for text in ("a", "b", "long text", "c")]
    >>> [len(chunk) for chunk in chunks(rows, max_texts=2, max_characters=5)]
    [2, 1, 1]
    """
    chunk: list[RowText] = []
    characters = 0
    for row in rows:
        chunk.append(row)
        characters += len(row.text)
        if len(chunk) == max_texts or characters >= max_characters:
            yield chunk
            chunk, characters = [], 0
    if chunk:
        yield chunk


def _selection(arguments: argparse.Namespace) -> dict[str, Any]:
    """How words are selected, as `gate_records` and `Outputs` take it."""
    options = {name: getattr(arguments, name) for name in ("selector", "rate", "threshold", "phrases", "batch_size")}
    return {**options, "keep": arguments.keep}


def _score(
    gates: GateModel, rows: Iterable[list[RowText]], arguments: argparse.Namespace
) -> Iterator[tuple[list[RowText], list[Record]]]:
    """Each chunk with its records. The next one is read while a backend works on this one."""
    from ..scoring_hardkuma import stream_records

    read: deque[list[RowText]] = deque()

    def texts() -> Iterator[list[str]]:
        for chunk in rows:
            read.append(chunk)
            yield [row.text for row in chunk]

    for records in stream_records(
        gates,
        texts(),
        use_surface=not arguments.no_surface,
        **_selection(arguments),
    ):
        chunk = read.popleft()
        yield chunk, [{**row.kept, **record} for row, record in zip(chunk, records, strict=True)]


def _choose_backend(arguments: argparse.Namespace, model: HardKumaModel, name: str) -> Backend:
    """The backend of this name; `auto` exports the model where the input is large."""
    import torch

    from ..apps.export.backends import choose_backend

    def log(sentence: str) -> None:
        print(f"hardkuma gates: {sentence}", file=sys.stderr)

    chosen = choose_backend(model, name, arguments.selector, log, make=_is_large(arguments.file))
    if chosen.name == "onnx":
        torch.set_num_threads(1)  # all but the model is too small to be shared, and would be in the way of it
    return chosen


def _is_large(file: str | None) -> bool:
    """Whether a file is so large that an export for onnxruntime pays off; what is no file (a pipe) counts as small."""
    if file is None or not Path(file).is_file():
        return False
    packed = Path(file).suffix.lower() in (".gz", ".parquet")
    return Path(file).stat().st_size * (3 if packed else 1) >= EXPORT_BYTES


class Tally:
    """How many texts have no word, and in how many nothing was selected: what people should be told at the end.

    >>> tally = Tally()
    >>> _ = tally.add([{"words": [], "spans": [], "reason": "the text has no word"}])
    >>> tally.notes("entities", ["meaning", "entities"])
    ['1 of 1 texts has no word, so there is nothing to select in it.']
    """

    def __init__(self) -> None:
        self.texts = self.wordless = 0
        self.reasons: Counter[str] = Counter()  # of texts with words, none of which is selected

    def add(self, records: Sequence[Record]) -> list[Record]:
        """Count these records, and hand them on."""
        for record in records:
            self.texts += 1
            self.wordless += not record["words"]
            if record["words"] and not record["spans"]:
                self.reasons[record["reason"]] += 1
        return list(records)

    def notes(self, selector: str, names: Sequence[str]) -> list[str]:
        """Sentences for standard error; mostly none.

        Args:
            selector: the one whose gates these are.
            names: of all selectors of the model.
        """
        if not self.texts:
            return ["the input is empty: there is no text to show."]
        notes = []
        if self.wordless:
            verb, them = ("has", "it") if self.wordless == 1 else ("have", "them")
            notes.append(f"{self.wordless} of {self.texts} texts {verb} no word, so there is nothing to select in {them}.")
        unanswered = self.reasons.total()
        if unanswered:
            where = "" if unanswered + self.wordless == self.texts else f" in {unanswered} of {self.texts} texts"
            other = ", or --selector meaning" if "meaning" in names and selector != "meaning" else ""
            joint = ", a" if other else " or a"
            why = "; ".join(reason for reason, _ in self.reasons.most_common())
            # Among others that have an answer, a text without names is nothing to mend.
            advice = "" if where else f" Try --rate 0.2{joint} lower --threshold{other}."
            notes.append(f"nothing was selected{where}: {why}.{advice}")
        return notes


def _tell(tally: Tally, model: HardKumaModel, arguments: argparse.Namespace) -> None:
    from ..scoring_hardkuma import ALL

    names, asked = model.config.names, arguments.selector
    selector = ALL if asked == ALL else names[model.config.find_selector(asked)]
    for note in tally.notes(selector, [] if asked == ALL else names):
        print(f"hardkuma gates: {note}", file=sys.stderr)


# ---- to a terminal or pipe ----------------------------------------------------------------------------------------------


def _write_to_stream(arguments: argparse.Namespace, format: str) -> None:
    from ..common.models import load_model
    from ..scoring_hardkuma import check_selector, safe, use_colour

    out = sys.stdout
    verified = arguments.keep is not None
    writer = SequentialFormat(format, arguments.numbers, use_colour(out), keep=arguments.columns, verified=verified)
    make_safe = safe if format in ("text", *TABLES) and (out.isatty() or writer.colour) else dict
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
    read = chunks(rows, 1 if is_typed else STREAM_TEXTS)
    # Who types has the answer to a line before the next one is read.
    for stream in ([chunk] for chunk in read) if is_typed else [read]:
        for _, records in _score(gates, stream, arguments):
            out.write(writer.block([make_safe(record) for record in tally.add(records)]).decode())
            out.flush()
    out.write(writer.foot.decode())
    out.flush()
    _tell(tally, model, arguments)


# ---- to a file ----------------------------------------------------------------------------------------------------------


def _write_to_file(arguments: argparse.Namespace, format: str) -> None:
    from ..common.models import load_model
    from ..scoring_hardkuma import ALL, check_selector

    joined, verified = arguments.selector == ALL, arguments.keep is not None
    writer: ParquetFormat | SequentialFormat = (
        ParquetFormat(arguments.columns, joined)
        if format == "parquet"
        else SequentialFormat(format, arguments.numbers, keep=arguments.columns, verified=verified)
    )
    rows = _read_input(arguments)
    with PartialOutput(arguments.output) as partial:
        if arguments.resume and partial.settings is None and _is_complete(arguments):
            again = "to write it again, with other settings say, leave out --resume"
            print(f"hardkuma gates: {arguments.output} is complete already; {again}.", file=sys.stderr)
            return
        model = load_model(arguments.model, arguments.device)
        check_selector(model.config, arguments.selector)
        name = arguments.backend
        if name == "auto" and arguments.resume and partial.settings:  # a run goes on with the backend that it began with
            name = partial.settings.get("backend", [name])[0]
        backend = _choose_backend(arguments, model, name)
        done = partial.begin(_settings(arguments, format, model, backend), arguments.resume)
        tally = Tally()
        with _progress_bar(arguments) as bar:
            bar.update(sum(1 for _ in islice(rows, done)))
            for chunk, records in _score(backend.gates, chunks(rows, CHUNK_TEXTS), arguments):
                partial.add(len(chunk), writer.block(tally.add(records)))
                bar.update(len(chunk))
        partial.finish(writer.join)
    if not done:  # else it has not seen every text
        _tell(tally, model, arguments)


def _is_complete(arguments: argparse.Namespace) -> bool:
    """Whether the output, which is there only when it is whole, is as new as the input."""
    output, file = arguments.output, Path(arguments.file)
    return output.is_file() and not (file.exists() and file.stat().st_mtime_ns > output.stat().st_mtime_ns)


def _progress_bar(arguments: argparse.Namespace) -> tqdm:
    from tqdm import tqdm

    from ..data.readers import count_rows

    quiet, total = arguments.quiet or not arguments.file, None
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
        "model": [_digest(model.config.to_json_string(use_diff=False)), fingerprint(model)],
        "device": model.device.type,
        "field": arguments.field,
        "columns": arguments.columns,
        "input_format": arguments.input_format,
        "rate": arguments.rate,
        "threshold": arguments.threshold,
        "keep": arguments.keep,
        "phrases": arguments.phrases,
        "surface": not arguments.no_surface,
        "selector": arguments.selector,
        "batch_size": arguments.batch_size,
        "backend": [backend.name, backend.precision],
        "format": format,
        "numbers": arguments.numbers,
        "chunks": [CHUNK_TEXTS, CHUNK_CHARACTERS],
        "file": [arguments.file],
    }
    if arguments.file and Path(arguments.file).exists():
        status = Path(arguments.file).stat()
        settings["file"] = [Path(arguments.file).name, status.st_size, status.st_mtime_ns]
    return settings


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


# ---- on a Ray cluster ----------------------------------------------------------------------------------------------------


def _add_cluster_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments that a cluster takes beside those of `hardkuma gates`."""
    group = parser.add_argument_group("cluster")
    group.add_argument("--engine", choices=("local", "ray"), default="local", help="ray: all machines of a Ray cluster")
    group.add_argument("--input", metavar="FILES", help="with ray: a folder of Parquet files, or 'in/*.parquet'; s3:// too")
    group.add_argument(
        "--add", nargs="+", metavar="WHAT", help="with ray: gates, terms, anchor or rationale embeddings (default: gates)"
    )
    group.add_argument("--workers", type=int, help="with ray: models at a time (default: one a GPU, or one a CPU)")


def _check_cluster(arguments: argparse.Namespace) -> None:
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
    for name in ("file", "format", "numbers", "columns", "no_surface", "input_format", "device"):
        if getattr(arguments, name):
            raise ValueError(f"--{name.replace('_', '-')} does not go with --engine ray: all columns are kept, as Parquet.")


def _run_on_cluster(arguments: argparse.Namespace) -> int:
    """Work through all shards; 0 when done, 1 where one has a problem, which is named."""
    from tqdm import tqdm

    from ..common.packages import require

    require("ray.data", "ray")
    from ..apps.ray import Outputs, list_shards, ray_gate_files, waiting_shards

    logging.getLogger("ray.data").setLevel(logging.WARNING)  # there is a progress bar
    outputs = Outputs(
        column=arguments.field or "text",
        add=tuple(arguments.add or ("gates",)),
        **_selection(arguments),
    )
    output = _address(arguments.output)
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


def _address(path: Path) -> str:
    """What was typed: a path keeps one of the slashes of s3://bucket/folder.

    >>> _address(Path("s3://bucket/folder")), _address(Path("file:///tmp/out")), _address(Path("/tmp/out"))
    ('s3://bucket/folder', 'file:///tmp/out', '/tmp/out')
    """
    return re.sub(r"^(?:(file)|(\w{2,})):/", lambda scheme: "file:///" if scheme[1] else f"{scheme[2]}://", path.as_posix())
