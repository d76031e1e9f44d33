"""Whole runs of a tiny encoder: what moves and what stays, SIGKILL and resume, settings that do not fit."""

from __future__ import annotations

import json
import shutil
import signal
import time
from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from transformers import AutoConfig, AutoModel, AutoTokenizer

from hardkuma import HardKumaModel
from hardkuma.__main__ import main
from hardkuma.common.files import seal_folder
from hardkuma.evaluation.baselines.encoder import SentenceEncoder
from hardkuma.training.encoder.layers import (
    freeze_lower_layers,
    layers_of,
    reset_top_layers,
    seeded,
    switch_off_dropout,
)
from hardkuma.training.encoder.objectives import encoder_of
from hardkuma.training.encoder.recipe import EncoderRecipe
from hardkuma.training.encoder.run import EncoderRun, last_checkpoint
from hardkuma.training.encoder.scorers import score_sentences
from hardkuma.training.encoder.sentence import read_sentences
from hardkuma.training.texts import load_training_texts
from tests.conftest import WORDS, build_model
from tests.forks import COMMAND, ForkServer


@pytest.fixture
def words(encoder_folder: Path, corpus: Path, tmp_path: Path) -> Callable[..., list[str]]:
    """words(key=value): the command line of a run of eight steps into tmp_path/run."""

    def make(recipe: str = "simcse", **overrides: object) -> list[str]:
        values = {
            "encoder": encoder_folder,
            "data": f"[{corpus}]",
            "split_sentences": "false",
            "batch_size": 16,
            "held_out": 32,
            "evaluate_every": 4,
            "checkpoint_every": 2,
            "log_every": 1,
            "max_steps": 8,
            "learning_rate": 1e-3,
            "output": tmp_path / "run",
            **overrides,
        }
        return ["encoder", recipe, *(word for key, value in values.items() for word in (f"--{key}", str(value)))]

    return make


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(next(folder.glob("**/model.safetensors")))


@pytest.mark.parametrize("kind", ["bert", "mpnet", "distilbert", "modernbert"])
def test_without_dropout_training_is_what_evaluation_is(kind: str) -> None:
    size = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    own = {
        "distilbert": {"dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64},
        "modernbert": {**size, "pad_token_id": 0, "mlp_dropout": 0.5, "embedding_dropout": 0.5},
    }
    rates = {"attention_dropout": 0.5} if kind in own else {"attention_probs_dropout_prob": 0.5}
    with seeded(0, torch.device("cpu")):
        encoder = AutoModel.from_config(AutoConfig.for_model(kind, vocab_size=50, **own.get(kind, size), **rates))
        ids = torch.randint(5, 50, (2, 9))
        expected = encoder.eval()(input_ids=ids).last_hidden_state
        assert not torch.allclose(encoder.train()(input_ids=ids).last_hidden_state, expected, atol=1e-4)
        switch_off_dropout(encoder)
        torch.testing.assert_close(encoder(input_ids=ids).last_hidden_state, expected)


def test_layers_start_anew_or_stay(encoder_folder: Path, tmp_path: Path, words: Callable[..., list[str]]) -> None:
    assert main(words(reset_layers=1, freeze_layers=1, max_steps=2)) == 0
    before, after = weights(encoder_folder), weights(tmp_path / "run" / "model")
    assert set(after) <= set(before)
    moved = {name for name in after if not torch.equal(before[name], after[name])}
    assert moved == {name for name in before if "layer.1." in name}
    assert {"embeddings.word_embeddings.weight", "encoder.layer.0.attention.self.query.weight"} <= set(after) - moved
    # A folder for sentence-transformers, with its log.
    assert SentenceTransformer(str(tmp_path / "run" / "model")).encode(["the river"]).shape == (1, 32)
    # Gates go on it at once, and its embeddings are theirs.
    texts, folder = ["the river runs", "a team won"], tmp_path / "run" / "model"
    gates = HardKumaModel.from_encoder(folder).eval()
    embedded = gates(**gates.tokenizer(texts, padding=True, return_tensors="pt")).anchor_embedding
    torch.testing.assert_close(embedded.detach(), torch.tensor(SentenceTransformer(str(folder)).encode(texts)))
    log = [json.loads(line) for line in (tmp_path / "run" / "model" / "log.jsonl").read_text().splitlines()]
    assert {"eval_alignment", "eval_uniformity"} <= {key for entry in log for key in entry}
    # Nothing of it is pickled, and checkpoints are gone.
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert {path.suffix for path in files} == {".json", ".jsonl", ".safetensors", ".yaml"}
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_no_steps_leave_the_reset_encoder(encoder_folder: Path, tmp_path: Path, words: Callable[..., list[str]]) -> None:
    assert main(words(reset_layers=1, max_steps=0, seed=3)) == 0
    before, after = weights(encoder_folder), weights(tmp_path / "run" / "model")
    moved = {name for name in after if not torch.equal(before[name], after[name])}
    assert moved and all("layer.1." in name for name in moved)


def test_reset_is_the_seed_s() -> None:
    one, two, three = (build_model("bert").encoder for _ in range(3))
    for encoder, seed in ((one, 1), (two, 1), (three, 2)):
        reset_top_layers(encoder, 1, seed)
    top = [layers_of(encoder)[1].attention.self.query.weight for encoder in (one, two, three)]
    assert torch.equal(top[0], top[1]) and not torch.equal(top[0], top[2])
    assert torch.equal(layers_of(one)[0].attention.self.query.weight, layers_of(three)[0].attention.self.query.weight)
    with pytest.raises(ValueError, match="reset_layers must be <= 2, the number of this encoder's layers, got 3"):
        reset_top_layers(one, 3, 0)
    freeze_lower_layers(one, 1)
    assert {name.split(".")[0] for name, p in one.named_parameters() if not p.requires_grad} >= {"embeddings", "encoder"}
    assert all(p.requires_grad for p in layers_of(one)[1].parameters())
    with pytest.raises(ValueError, match="StaticEncoder has no list of layers"):
        freeze_lower_layers(build_model("hardkuma_static").encoder, 1)


def test_other_views_and_objectives(words: Callable[..., list[str]], tmp_path: Path) -> None:
    """The first loss is before any step, of the same batch: only view, objective and temperature can make it another."""
    runs: list[tuple[str, dict[str, object]]] = [
        ("simcse", {}),
        ("simcse", {"learn_temperature": "true"}),
        ("simcse", {"learn_temperature": "true", "view": "{word_repetition: null, attention_rollout: {k: 1, t: 4}}"}),
        ("simcse", {"objective": "triplet", "view": "{token_cutoff: {rate: 0.3}}"}),
        ("simcse", {"objective": "soft_neighbours", "views": 2, "view": "{attention_naive: {t: 4}}"}),
        ("consert", {}),
    ]
    first: list[float] = []
    for number, (recipe, changes) in enumerate(runs):
        folder = tmp_path / str(number)
        assert main(words(recipe, max_steps=2, output=folder, **changes)) == 0
        log = [json.loads(entry) for entry in (folder / "model" / "log.jsonl").read_text().splitlines()]
        losses = [entry["loss"] for entry in log if "loss" in entry]
        assert len(losses) == 2 and all(0 < loss < 20 for loss in losses)
        first.append(losses[0])
    assert all(abs(one - other) > 1e-3 for one, other in combinations(first[1:], 2)), first
    assert all(abs(first[0] - other) > 1e-3 for other in first[2:]), first


def test_masked_words_start_from_the_seed(words: Callable[..., list[str]], encoder_folder: Path, tmp_path: Path) -> None:
    shutil.copytree(encoder_folder, tmp_path / "encoder")
    tokenizer = AutoTokenizer.from_pretrained(encoder_folder)
    tokenizer.mask_token = tokenizer.unk_token
    tokenizer.save_pretrained(tmp_path / "encoder")
    for name in ("one", "two"):  # what was drawn before in the process does not matter
        torch.rand(7)
        assert main(words(max_steps=2, mlm_weight=0.1, encoder=tmp_path / "encoder", output=tmp_path / name)) == 0
    one, two = weights(tmp_path / "one" / "model"), weights(tmp_path / "two" / "model")
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_attention_is_that_of_the_intact_encoder(
    words: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch, encoder_folder: Path, tmp_path: Path
) -> None:
    """It is loaded once, and sentences are scored before its layers are reset."""
    loaded: list[str] = []
    build = SentenceTransformer.__init__
    monkeypatch.setattr(
        SentenceTransformer,
        "__init__",
        lambda self, *a, **k: (loaded.append("sentence-transformers"), build(self, *a, **k))[1],
    )
    load = SentenceEncoder.load
    monkeypatch.setattr(SentenceEncoder, "load", lambda name: (loaded.append("ours"), load(name))[1])
    values = dict(view={"attention_naive": {"t": 4}}, held_out=4, batch_size=4, max_steps=0, seed=5)
    text = tmp_path / "text.txt"
    text.write_text("".join(f"the river runs past {word} and a museum\n" for word in WORDS[:24]))
    recipe = EncoderRecipe(
        encoder=str(encoder_folder), data=[str(text)], output=str(tmp_path / "run"), reset_layers=1, **values
    )
    run = EncoderRun(recipe, quiet=True)
    assert loaded == ["sentence-transformers"]
    texts, sentences = load_training_texts(recipe, lambda line: None), run.trainer.data_collator.sentences
    intact = SentenceEncoder.load(encoder_folder)
    expected = score_sentences(intact, texts, read_sentences(intact.tokenizer, texts, 32), ["attention"])
    for one, other in zip(sentences, expected, strict=True):
        assert one.scores["attention"] == pytest.approx(other.scores["attention"], abs=1e-5)
    reset = SentenceEncoder(encoder_of(run.model), intact.tokenizer)
    changed = score_sentences(reset, texts, sentences, ["attention"])
    assert abs(changed[0].scores["attention"] - sentences[0].scores["attention"]).max() > 1e-3


def test_several_gpus_of_one_process_are_refused(
    words: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    assert main(words()) == 1
    assert "3 GPUs are visible to one process: start one for each" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_randomness_of_a_gpu_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    device, put_back = torch.device("cuda", 0), []
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device: torch.tensor([device.index, 7]))
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, device: put_back.append((state.tolist(), device)))
    before = torch.get_rng_state()
    with seeded(3, device):
        one = torch.rand(1)
    assert put_back == [([0, 7], device)] and torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(3)
    assert torch.equal(one, torch.rand(1))


@pytest.mark.slow
def test_killed_and_resumed_is_the_same_to_the_bit(
    words: Callable[..., list[str]], tmp_path: Path, forks: ForkServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a learned temperature, which lives beside the encoder."""
    options = {"learn_temperature": "true", "view": "{random_deletion: {t: 4}}", "checkpoint_every": 4, "max_steps": 40}
    assert main(words(output=tmp_path / "whole", **options)) == 0
    fork = forks.start(COMMAND, *words(output=tmp_path / "cut", **options))
    checkpoints, started = tmp_path / "cut" / "checkpoints", time.time()
    while last_checkpoint(checkpoints) is None:
        assert fork.poll(0.01) is None and time.time() - started < 300, fork.stderr
    fork.send_signal(signal.SIGKILL)
    fork.wait()
    # What a kill in the middle of writing leaves is passed over.
    (checkpoints / "checkpoint-999").mkdir()
    capsys.readouterr()
    changed = words(output=tmp_path / "cut", **{**options, "temperature": 0.1})
    assert main([*changed, "--resume"]) == 1
    assert "differs from this recipe: resume with the same settings" in capsys.readouterr().err
    assert main([*words(output=tmp_path / "cut", **options), "--resume"]) == 0
    assert "resuming from checkpoint-" in capsys.readouterr().err
    one, two = weights(tmp_path / "whole" / "model"), weights(tmp_path / "cut" / "model")
    assert one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


def test_a_damaged_checkpoint_is_passed_over(tmp_path: Path) -> None:
    """The newest whole one is taken, and why is said; one that nobody has sealed does not count."""
    for step in (5, 10, 15):
        (tmp_path / f"checkpoint-{step}").mkdir()
        (tmp_path / f"checkpoint-{step}" / "model.safetensors").write_bytes(b"weights")
        if step < 15:
            seal_folder(tmp_path / f"checkpoint-{step}")
    said: list[str] = []
    assert last_checkpoint(tmp_path, said.append) == tmp_path / "checkpoint-10" and not said
    (tmp_path / "checkpoint-10" / "model.safetensors").write_bytes(b"weig")
    assert last_checkpoint(tmp_path, said.append) == tmp_path / "checkpoint-5"
    assert len(said) == 1 and "model.safetensors is not what was written): trying the checkpoint before it" in said[0]


def test_a_used_folder_is_left_alone(
    words: Callable[..., list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It started over without a word, whatever was there."""
    folder = tmp_path / "run" / "model"
    assert main(words(max_steps=1)) == 0 and "was made" not in capsys.readouterr().err
    made = weights(folder)
    assert main(words(max_steps=1)) == 0
    assert "was made by this very recipe: it is replaced when this run is done." in capsys.readouterr().err
    other = words(max_steps=1, learning_rate=0.1)
    for line in (other, [*other, "--resume"]):
        assert main(line) == 1
        assert "was made by another recipe: use another --output, or --overwrite to replace" in capsys.readouterr().err
    assert all(torch.equal(tensor, made[name]) for name, tensor in weights(folder).items())
    assert main([*other, "--overwrite"]) == 0
    assert not all(torch.equal(tensor, made[name]) for name, tensor in weights(folder).items())


def test_an_unfinished_run_is_not_thrown_away(
    words: Callable[..., list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = tmp_path / "run" / "checkpoints" / "checkpoint-4"
    checkpoint.mkdir(parents=True)
    seal_folder(checkpoint)
    assert main(words()) == 1
    assert "has checkpoints of an unfinished run: go on with --resume, or start over" in capsys.readouterr().err
    assert checkpoint.is_dir()
    assert main([*words(max_steps=1), "--overwrite"]) == 0 and not checkpoint.exists()


def test_wrong_settings_are_told_before_anything_is_read(
    words: Callable[..., list[str]], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for changes, message in (
        ({"view": "{synonyms: null}"}, "unknown augmentation 'synonyms'"),
        ({"temprature": 1}, "unknown recipe key 'temprature': did you mean 'temperature'"),
        ({"keep": 1}, "keep must be a whole number >= 2, got 1: the last may be cut short"),
    ):
        assert main(words(**changes)) == 2
        assert message in capsys.readouterr().err
    assert main(words("no-such-recipe")) == 2
    assert "those that come along: add-naive, add-rollout" in capsys.readouterr().err
    assert main(words(batch_size=500)) == 1
    assert "fewer than one batch of 500" in capsys.readouterr().err
    assert main(words(batch_size=4, max_sentences=9)) == 1
    assert "9 sentences are too few: a fifth is held out to measure uniformity" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
    assert main(["encoder", "--help"]) == 0
    shown = capsys.readouterr().out
    assert (
        "hardkuma encoder [RECIPE] [--resume] [--overwrite]" in shown
        and "--reset_layers" in shown
        and "--model.NAME" not in shown
    )


def test_a_view_that_makes_no_sense_is_refused_before_anything_is_read(
    words: Callable, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words(view="{random_deletion: {t: 3.33}}", max_steps=1)) == 2
    assert capsys.readouterr().err == "hardkuma encoder: random_deletion: t must be a whole number >= 1, got 3.33.\n"
    assert not (tmp_path / "run").exists()
