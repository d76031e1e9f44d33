"""Pairs with hard negatives, read and mined; and two processes, which must leave what one leaves."""

from __future__ import annotations

import json
import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from transformers import AutoTokenizer

from hardkuma.__main__ import main
from hardkuma.training.encoder.pairs import mine_negatives, read_pairs
from hardkuma.training.encoder.recipe import EncoderRecipe
from hardkuma.training.encoder.run import last_checkpoint
from tests.conftest import WORDS
from tests.forks import COMMAND, ForkServer

AS_TWO = {"dropout": "false", "evaluate_every": 4, "checkpoint_every": 8}  # what dropout draws is each process' own


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """80 rows of score, text, positive, negative; the positive is the text with its first word left out."""
    draw, rows = random.Random(1), ["score\ttext\tpositive\tnegative"]
    for number in range(80):
        text, other = (draw.sample(WORDS[:60], 7) for _ in range(2))
        rows.append(f"{number % 4}\t{' '.join(text)}\t{' '.join(text[1:])}\t{' '.join(other)}")
    path = tmp_path / "pairs.tsv"
    path.write_text("\n".join(rows) + "\n")
    return path


@pytest.fixture
def words(encoder_folder: Path, table: Path, tmp_path: Path) -> Callable[..., list[str]]:
    """words("run", key=value): the command line of a run of eight steps into tmp_path/run."""

    def make(output: str = "run", **overrides: object) -> list[str]:
        values = {
            "encoder": encoder_folder,
            "data": f"[{table}]",
            "columns": "[text, positive]",
            "batch_size": 16,
            "held_out": 8,
            "checkpoint_every": 2,
            "log_every": 1,
            "max_steps": 8,
            "learning_rate": 1e-3,
            "output": tmp_path / output,
            **overrides,
        }
        return ["encoder", "pairs", *(word for key, value in values.items() for word in (f"--{key}", str(value)))]

    return make


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model" / "model.safetensors")


def losses(folder: Path) -> list[float]:
    log = [json.loads(line) for line in (folder / "model" / "log.jsonl").read_text().splitlines()]
    return [entry["loss"] for entry in log if "loss" in entry]


# ---- what is read ------------------------------------------------------------------------------------------------------


def test_rows_are_read_by_column(table: Path) -> None:
    said: list[str] = []
    recipe = EncoderRecipe(data=[str(table)], columns=["text", "positive", "negative"], at_least={"score": 2})
    lines = [line.split("\t") for line in table.read_text().splitlines()[1:]]
    assert read_pairs(recipe, said.append) == [tuple(line[1:]) for line in lines if int(line[0]) >= 2]
    assert said == ["text: 40 rows of 3 texts; dropped 40 below at_least"] and recipe.negatives == 1
    with pytest.raises(ValueError, match=r"no column 'other' among .*--columns"):
        read_pairs(EncoderRecipe(data=[str(table)], columns=["text", "other"]))
    with pytest.raises(ValueError, match="at_least needs numbers, and column 'text' holds"):
        read_pairs(EncoderRecipe(data=[str(table)], columns=["text", "positive"], at_least={"text": 2}))


def test_columns_are_counted_in_files_without_a_header_and_duplicates_go(tmp_path: Path) -> None:
    path = tmp_path / "mrpc.tsv"
    path.write_text(
        "1\tIt  rains here now.\tRain falls here now.\n" * 2 + "0\tHe runs to me.\tA cat sleeps here.\n1\t\tb b b b\n"
    )
    recipe = EncoderRecipe(data=[str(path)], columns=[2, 3], at_least={1: 1})
    assert read_pairs(recipe, lambda line: None) == [("It rains here now.", "Rain falls here now.")]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"columns": ["text"]}, "columns must name two or more, got text"),
        ({"columns": ["a", "b"]}, "leave out column and bundled"),
        ({"at_least": {"score": 4}}, "name their columns too"),
        ({"data": ["a.tsv"], "columns": ["a", "b"], "at_least": {"c": "four"}}, "a number for column c, got 'four'"),
        ({"data": ["a.tsv"], "columns": ["a", "b", "c"], "mine_negatives": 1}, "the third holds negatives"),
        ({"objective": "triplet", "mine_negatives": 1}, "hard negatives work with infonce, not with triplet"),
    ],
)
def test_what_makes_no_sense_is_refused(values: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        EncoderRecipe(**values)


def test_mined_negatives_are_the_nearest_positives_of_others(encoder_folder: Path, table: Path) -> None:
    model = SentenceTransformer(str(encoder_folder), device="cpu")
    pairs = read_pairs(EncoderRecipe(data=[str(table)], columns=["text", "positive"]), lambda line: None)
    mined = mine_negatives(pairs, model, 2, quiet=True)
    positives = [pair[1] for pair in pairs]
    texts, others = (
        torch.nn.functional.normalize(torch.tensor(model.encode(column)), dim=-1)
        for column in ([pair[0] for pair in pairs], positives)
    )
    expected = {}
    for row, pair in enumerate(pairs):
        near = (others @ texts[row]).tolist()
        order = sorted(range(len(pairs)), key=lambda place: -near[place])
        usable = [place for place in order if place != row and near[row] - near[place] >= 0.05 * near[row]]
        expected[pair] = tuple(positives[place] for place in usable[:2])
    # Rows whose usable ones are further away than the miner looks are left out.
    assert len(mined) > 10 and all(expected[row[:2]] == row[2:] for row in mined)


# ---- what is trained ---------------------------------------------------------------------------------------------------


def test_pairs_draw_texts_together_and_negatives_matter(words: Callable[..., list[str]], tmp_path: Path) -> None:
    long = {"max_steps": 24, "checkpoint_every": 24}
    assert main(words("pairs", **long)) == 0
    assert main(words("negatives", **long, columns="[text, positive, negative]")) == 0
    assert main(words("mined", **long, mine_negatives=1)) == 0
    found = {name: losses(tmp_path / name) for name in ("pairs", "negatives", "mined")}
    assert all(sum(values[-4:]) < 0.8 * sum(values[:4]) for values in found.values()), found
    # 16 more candidates, of which none is the positive: the loss of the first step is larger.
    assert found["negatives"][0] > found["pairs"][0] + 0.1


@pytest.mark.parametrize(
    ("recipe", "changes"),
    [
        ("pairs", {"columns": "[text, positive, negative]", "learn_temperature": "true"}),
        ("pairs", {"mine_negatives": 1, "view": "{random_deletion: {rate: 0.3}}"}),
        ("pairs", {"objective": "bilinear", "mlm_weight": 0.3}),
        ("pairs", {"objective": "soft_neighbours", "views": 2, "view": "{token_cutoff: {rate: 0.3}}"}),
        ("pairs", {"objective": "triplet", "margin": 0.5}),
    ],
)
def test_two_processes_leave_what_one_leaves(
    recipe: str, changes: dict, words: Callable[..., list[str]], encoder_folder: Path, forks: ForkServer, tmp_path: Path
) -> None:
    if "mlm_weight" in changes:
        shutil.copytree(encoder_folder, tmp_path / "encoder")
        tokenizer = AutoTokenizer.from_pretrained(encoder_folder)
        tokenizer.mask_token = tokenizer.unk_token
        tokenizer.save_pretrained(tmp_path / "encoder")
        changes = {**changes, "encoder": tmp_path / "encoder"}
    assert main(words("one", **AS_TWO, **changes)) == 0
    two = forks.start_ranks(2, COMMAND, *words("two", **AS_TWO, **changes), ACCELERATE_USE_CPU="true")
    assert [process.wait() for process in two] == [0, 0], two[0].stderr[-3000:] + two[1].stderr[-3000:]
    assert [process.stdout.count("Saved") for process in two] == [1, 0], "one process speaks"
    assert json.loads((tmp_path / "two" / "model" / "run.json").read_text())["processes"] == 2
    one, other = weights(tmp_path / "one"), weights(tmp_path / "two")
    assert one.keys() == other.keys()
    before = load_file(encoder_folder / "model.safetensors")
    assert max(float((one[name] - before[name]).abs().max()) for name in one) > 1e-3, "something was learned"
    for name, value in one.items():
        if "triplet" in changes.values() and name == "encoder.layer.1.output.LayerNorm.bias":
            continue  # it moves all embeddings alike, so that its gradient is rounding errors, which Adam makes large
        assert torch.allclose(value, other[name], atol=1e-5, rtol=0), name
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), abs=1e-3)


@pytest.mark.slow
def test_two_killed_processes_go_on_to_the_bit(words: Callable[..., list[str]], forks: ForkServer, tmp_path: Path) -> None:
    """With dropout, whose states the two processes have saved apart."""
    options = {"max_steps": 24, "checkpoint_every": 4, "learn_temperature": "true", "evaluate_every": 50}
    whole = forks.start_ranks(2, COMMAND, *words("whole", **options), ACCELERATE_USE_CPU="true")
    assert [process.wait() for process in whole] == [0, 0], whole[0].stderr[-3000:]
    cut = forks.start_ranks(2, COMMAND, *words("cut", **options), ACCELERATE_USE_CPU="true")
    checkpoints, started = tmp_path / "cut" / "checkpoints", time.time()
    while last_checkpoint(checkpoints) is None:
        assert cut[0].poll(0.01) is None and time.time() - started < 300, cut[0].stderr
    for process in cut:
        process.send_signal(signal.SIGKILL)
    for process in cut:
        process.wait()
    again = forks.start_ranks(2, COMMAND, *words("cut", **options), "--resume", ACCELERATE_USE_CPU="true")
    assert [process.wait() for process in again] == [0, 0], again[0].stderr[-3000:]
    assert "resuming from checkpoint-" in again[0].stderr
    one, two = weights(tmp_path / "whole"), weights(tmp_path / "cut")
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_ctrl_c_of_one_process_ends_both_after_a_checkpoint(
    words: Callable[..., list[str]], forks: ForkServer, tmp_path: Path
) -> None:
    line = words("run", max_steps=4000, checkpoint_every=2000, evaluate_every=5000)
    two = forks.start_ranks(2, COMMAND, *line, ACCELERATE_USE_CPU="true")
    started = time.time()
    while "'loss'" not in two[0].stdout + two[0].stderr:
        assert two[0].poll(0.05) is None and time.time() - started < 300, two[0].stderr
    two[1].send_signal(signal.SIGINT)
    assert [process.wait() for process in two] == [130, 130], two[0].stderr[-3000:]
    assert "go on with --resume" in two[0].stderr and last_checkpoint(tmp_path / "run" / "checkpoints") is not None


def test_batches_that_processes_cannot_share_are_refused(words: Callable[..., list[str]], forks: ForkServer) -> None:
    two = forks.start_ranks(2, COMMAND, *words(batch_size=15), ACCELERATE_USE_CPU="true")
    assert [process.wait() for process in two] == [1, 1]
    assert "batch_size must be a multiple of the 2 processes that share it, got 15" in two[0].stderr
