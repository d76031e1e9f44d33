"""The STS and transfer tables: figures worked by hand, files with gaps, and the embedded encoder on the real ones."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import spearmanr

from hardkuma.__main__ import main
from hardkuma.evaluation.encoder_tasks import (
    TASKS,
    LabelledTexts,
    ScoredPairs,
    encoder_table,
    evaluate_encoder,
    features_of,
    measure_similarity,
    measure_transfer,
    read_labelled_texts,
    read_scored_pairs,
    read_tasks,
)

ROOT = Path(__file__).resolve().parents[2]
DATA = Path(os.environ.get("HARDKUMA_DATA", ROOT.parent / "shared" / "data"))


def vectors_of(texts: list[str]) -> np.ndarray:
    """A vector for each text that depends on the text alone."""
    return np.stack([np.random.default_rng(list(text.encode())).normal(size=8) for text in texts])


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def test_similarity_against_a_loop() -> None:
    draw = np.random.default_rng(0)
    first, second = [f"a{i}" for i in range(40)], [f"b{i}" for i in range(40)]
    pairs = ScoredPairs(["x"] * 15 + ["y"] * 25, draw.uniform(0, 5, 40).tolist(), first, second, 3)
    cosines = []
    for one, other in zip(first, second, strict=True):
        u, v = vectors_of([one])[0], vectors_of([other])[0]
        cosines.append(sum(a * b for a, b in zip(u, v, strict=True)) / (sum(u * u) * sum(v * v)) ** 0.5)
    result = measure_similarity(pairs, vectors_of)
    assert result.together == pytest.approx(spearmanr(cosines, pairs.scores).statistic)
    parts = [spearmanr(cosines[part], pairs.scores[part]).statistic for part in (slice(0, 15), slice(15, 40))]
    assert result.mean == pytest.approx(np.mean(parts))


def test_lines_without_a_score_are_skipped_and_counted(tmp_path: Path) -> None:
    path = write(tmp_path, "sts.tsv", "news\t4\ta\tb\r\nnews\t\tc\td\nnews\tnan\te\tf\n\nweb\t1\tg\th\n")
    pairs = read_scored_pairs(path)
    assert pairs == ScoredPairs(["news", "web"], [4.0, 1.0], ["a", "g"], ["b", "h"], 2)
    with pytest.raises(ValueError, match=r"sts\.tsv, line 1: 7 columns .* got 4"):
        read_scored_pairs(path, (0, 4, 5, 6))
    write(tmp_path, "sts.tsv", "news\tfour\ta\tb\n")
    with pytest.raises(ValueError, match="must be a number or empty, got 'four'"):
        read_scored_pairs(path)
    write(tmp_path, "sts.tsv", "news\t\ta\tb\n")
    with pytest.raises(ValueError, match="no pair with a score"):
        read_scored_pairs(path)


def test_transfer_learns_what_is_there_and_nothing_else() -> None:
    draw = np.random.default_rng(0)
    texts, labels = [f"t{i}" for i in range(200)], draw.integers(0, 2, 200)
    known = {text: draw.normal(size=6) + 3 * label for text, label in zip(texts, labels, strict=True)}
    noise = {text: draw.normal(size=6) for text in texts}
    part = LabelledTexts([str(label) for label in labels], (texts,))
    assert measure_transfer([part], lambda asked: np.stack([known[text] for text in asked])) > 0.97
    assert 0.35 < measure_transfer([part], lambda asked: np.stack([noise[text] for text in asked])) < 0.65
    # Given parts: trained on the first, chosen on the second, tested on the last.
    cut = [LabelledTexts(part.labels[s], (texts[s],)) for s in (slice(0, 100), slice(100, 150), slice(150, 200))]
    flipped = LabelledTexts([str(1 - int(label)) for label in cut[2].labels], cut[2].texts)
    embed = lambda asked: np.stack([known[text] for text in asked])  # noqa: E731
    assert measure_transfer(cut, embed) > 0.95 and measure_transfer([*cut[:2], flipped], embed) < 0.05
    assert measure_transfer([cut[0], cut[2]], embed) > 0.95


def test_pairs_are_difference_and_product() -> None:
    part = LabelledTexts(["1", "0"], (["a", "b"], ["c", "d"]))
    u, v = vectors_of(["a", "b"]), vectors_of(["c", "d"])
    expected = np.hstack([abs(u - v), u * v])
    np.testing.assert_allclose(features_of(part, vectors_of), expected / np.sqrt((expected**2).mean()))


def test_labelled_files(tmp_path: Path) -> None:
    assert read_labelled_texts(write(tmp_path, "a.tsv", "1\tx\ty\n\tz\tw\nthe\tv\n")) == LabelledTexts(
        ["1"], (["x"], ["y"]), 2
    )
    with pytest.raises(ValueError, match="no labelled line"):
        read_labelled_texts(write(tmp_path, "b.tsv", "\tx\n"))


def test_every_sentence_is_encoded_once_and_gaps_are_told(tmp_path: Path) -> None:
    write(tmp_path, "sts/sts12.tsv", "x\t1\ta\tb\nx\t2\ta\tc\nx\t\tb\tq\nx\t0\tc\tb\n")
    write(tmp_path, "transfer/mr.tsv", "".join(f"{i % 2}\t{'a' if i % 2 else 'm'}{i // 2}\n" for i in range(40)) + "1\ta\n")
    asked: list[str] = []

    def encode(texts: list[str]) -> np.ndarray:
        asked.extend(texts)
        return vectors_of(texts)

    result = evaluate_encoder(encode, read_tasks(tmp_path))
    assert len(asked) == len(set(asked)) == result.sentences == 43  # a, b, c and forty of MR
    assert result.skipped == {"STS12": 1}
    assert set(result.missing) == set(TASKS) - {"STS12", "MR"}
    table = encoder_table("random", result)
    assert "lines without a score or label: STS12 1; without files: STS13" in table
    assert f"| random | {100 * result.accuracy['MR']:.2f} |" in table
    with pytest.raises(ValueError, match="unknown task 'STS99'; known: STS12"):
        read_tasks(tmp_path, ["STS99"])
    with pytest.raises(FileNotFoundError, match="holds none of the files of STS13"):
        read_tasks(tmp_path, ["STS13"])


def test_command_says_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate-encoder", "--data", str(tmp_path), "--quiet"]) == 1
    assert "holds none of the files" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.skipif(not DATA.is_dir(), reason=f"no corpora in {DATA}; set HARDKUMA_DATA to their folder")
def test_the_embedded_encoder_has_the_published_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "table.md"
    arguments = ["evaluate-encoder", "--data", str(DATA), "--tasks", "STS-B", "--quiet", "--output", str(output)]
    assert main(arguments) == 0
    assert "| all-MiniLM-L6-v2 | all | 82.0" in capsys.readouterr().out and "| all | 82.0" in output.read_text()
