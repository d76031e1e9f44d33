"""Other languages: names in German, Spanish, French and Dutch, and how faithful `meaning` is there and in Chinese.

    python benchmarks/languages.py --data FOLDER                          languages/wikineural-*.conll and languages/*.txt
    python benchmarks/languages.py --data FOLDER --heads runs/languages   heads trained before, or where to put them
    python benchmarks/languages.py --data FOLDER --english news=FILE      beside them a head of as many English sentences
    python benchmarks/languages.py --chinese FILE --encoder ENCODER       faithfulness on lines of Chinese text

Heads are trained by `python train.py --data TEXT`, some minutes each: the default recipe, nothing chosen. French has no
text here and is read by the heads of the others. `de.txt` as it comes was decoded by a wrong table (Mac Cyrillic for
Latin-1); letters are put right first. The first 200 German sentences chose what the form objective does with nouns and are
left out here. Names: average precision over words, and F1 of what is selected. Faithfulness: sufficiency and
comprehensiveness, means over the first 100 sentences. For Chinese the last 100 lines of the file are held out.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from sklearn.metrics import average_precision_score

from hardkuma import HardKumaModel, load_released
from hardkuma.evaluation.baselines.encoder import SentenceEncoder
from hardkuma.evaluation.baselines.registry import METHODS
from hardkuma.evaluation.baselines.words import WordScores
from hardkuma.evaluation.corpora import labels_of, read_corpus, texts_of
from hardkuma.evaluation.faithfulness import faithfulness
from hardkuma.evaluation.metrics import f1_from_counts, f1_of_selection
from hardkuma.words_hardkuma import Span, find_words

LANGUAGES = ("de", "es", "fr", "nl")
CHOSEN_ON = {"de": 200}  # sentences at the beginning that chose something
FAITHFUL = 100
AS_MANY = ("--max_sentences", "6000")  # as the files of the other languages have
WRONG, RIGHT = "mac_cyrillic", "latin-1"


def read_plain(path: Path) -> str:
    """Plain text, decoded anew where German letters came out as Cyrillic."""
    text = path.read_text(encoding="utf-8")
    return text.encode(WRONG).decode(RIGHT) if path.stem == "de" and "\N{CYRILLIC SMALL LETTER SOFT SIGN}" in text else text


def train_head(text: str, folder: Path, *options: str) -> HardKumaModel:
    """The head of this text by the default recipe, trained if the folder has none."""
    if not (folder / "model").is_dir():
        with tempfile.TemporaryDirectory() as temporary:
            file = Path(temporary) / "text.txt"
            file.write_text(text, encoding="utf-8")
            command = [sys.executable, str(Path(__file__).parents[1] / "train.py"), "--data", str(file)]
            subprocess.run([*command, "--output", str(folder), *options], check=True, stdout=subprocess.DEVNULL)
    return HardKumaModel.from_pretrained(folder / "model").eval()


def show_names(name: str, labels: list[list[int]], scored: Sequence[WordScores]) -> None:
    flat = [label for row in labels for label in row], [score for row in scored for score in row.scores]
    chosen = [list(map(int, row.selected or [])) for row in scored]
    f1 = f1_from_counts(f1_of_selection(labels, chosen).sum(0)) if all(row.selected is not None for row in scored) else None
    figures = f"{average_precision_score(*flat):.3f}", "" if f1 is None else f"{f1:.3f}"
    print(f"| {name} | {' | '.join(figures)} |", flush=True)


def show_faithfulness(name: str, encoder: SentenceEncoder, scored: Sequence[WordScores]) -> None:
    found = faithfulness(encoder, scored)
    kept, lost = (found.areas(curve).mean() for curve in (found.sufficiency, found.comprehensiveness))
    print(f"| {name} | {kept:.3f} | {lost:.3f} |", flush=True)


def compare_faithfulness(
    heads: dict[str, HardKumaModel], texts: list[str], words: list[list[Span]], others: Sequence[str]
) -> None:
    """`meaning` of these heads, all on one encoder, beside other methods."""
    encoder = SentenceEncoder.from_model(next(iter(heads.values())))
    print("\n| `meaning` | sufficiency | comprehensiveness |\n|---|---:|---:|")
    for name, model in heads.items():
        scored = METHODS["gates_meaning"].scores(SentenceEncoder.from_model(model), texts, words)
        show_faithfulness(f"HardKuma, {name}", encoder, scored)
    for name in others:
        show_faithfulness(METHODS[name].title, encoder, METHODS[name].scores(encoder, texts, words))


def compare_names(language: str, data: Path, heads: dict[str, HardKumaModel], others: Sequence[str]) -> None:
    sentences = read_corpus(data / "languages" / f"wikineural-{language}.conll").sentences[CHOSEN_ON.get(language, 0) :]
    labels, (texts, words) = labels_of(sentences), texts_of(sentences)
    print(f"\n## {language}: {len(sentences)} sentences\n\n| names | average precision | F1 |\n|---|---:|---:|")
    for name, model in heads.items():
        encoder = SentenceEncoder.from_model(model)
        for method, title in (("gates", "gates"), ("gates_surface", "with surface view")):
            show_names(f"{name}, {title}", labels, METHODS[method].scores(encoder, texts, words))
    for method in ("capitals", f"spacy_{language}_core_news_sm"):
        if method in METHODS:
            show_names(METHODS[method].title, labels, METHODS[method].scores(None, texts, words))
    some = slice(0, FAITHFUL)
    compare_faithfulness(heads, texts[some], [list(row) for row in words[some]], others)


def compare_chinese(file: Path, encoder: str, heads: Path, others: Sequence[str]) -> None:
    lines = [line for line in file.read_text(encoding="utf-8").splitlines() if 8 <= len(line) <= 120]
    model = train_head("\n".join(lines[:-FAITHFUL]), heads / "zh", "--encoder", encoder, "--selectors.entities", "null")
    texts = lines[-FAITHFUL:]
    print(f"\n## zh: {len(texts)} lines")
    words = [find_words(text, model.config.language) for text in texts]
    compare_faithfulness({"head of zh": model}, texts, words, others)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, metavar="FOLDER")
    parser.add_argument("--heads", type=Path, default=Path("runs/languages"), metavar="FOLDER")
    parser.add_argument("--languages", nargs="+", choices=LANGUAGES, default=LANGUAGES)
    parser.add_argument("--english", nargs="+", default=[], metavar="NAME=FILE", help="English text for further heads")
    parser.add_argument("--chinese", type=Path, metavar="FILE", help="lines of Chinese text")
    parser.add_argument("--encoder", help="of Chinese: a folder or Hub id")
    parser.add_argument("--shap", action="store_true", help="beside `meaning`: some 4 passes for each word")
    arguments = parser.parse_args()
    others = ("norm_sum", "shap") if arguments.shap else ("norm_sum",)
    if (arguments.chinese is None) != (arguments.encoder is None) or (arguments.data or arguments.chinese) is None:
        parser.error("give --data FOLDER, or --chinese FILE with --encoder ENCODER, or all of them")
    if arguments.data is not None:
        files = {name: arguments.data / "languages" / f"{name}.txt" for name in LANGUAGES}
        plain = {name: read_plain(file) for name, file in files.items() if file.is_file()}
        english = {
            f"head of English {name}": train_head(
                Path(file).read_text(encoding="utf-8"), arguments.heads / f"en-{name}", *AS_MANY
            )
            for name, _, file in (item.partition("=") for item in arguments.english)
        }
        for language in arguments.languages:
            own = [language] if language in plain else list(plain)
            heads = {f"head of {name}": train_head(plain[name], arguments.heads / name) for name in own}
            compare_names(language, arguments.data, {"released head": load_released()[0], **heads, **english}, others)
    if arguments.chinese is not None:
        compare_chinese(arguments.chinese, arguments.encoder, arguments.heads, others)


if __name__ == "__main__":
    main()
