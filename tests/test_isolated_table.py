"""The table of isolated tokens: its rows are the encoder's own vectors, files keep it to the bit, damage is refused."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.functional import normalize
from transformers import AutoModel

from hardkuma import HardKumaModel, modeling_hardkuma
from hardkuma.configuration_hardkuma import READS as EVERYTHING
from hardkuma.encoder_hardkuma import frame_token_ids
from tests.conftest import SENTENCES, encoder_config, make_tokenizer

READS = {"selectors": {"meaning": {"unit": "word", "reads": ["state", "isolated"], "layer": 0.5}}}
TABLE = ("isolated_table", "isolated_scale", "isolated_directions")


def table_of(model: HardKumaModel) -> dict[str, Tensor]:
    return {name: getattr(model.gate_head, name) for name in TABLE}


def same_table(one: HardKumaModel, other: HardKumaModel) -> bool:
    return all(torch.equal(getattr(one.gate_head, name), getattr(other.gate_head, name)) for name in TABLE)


def vectors_of(model: HardKumaModel) -> Tensor:
    """(vocabulary, hidden): every token encoded by itself between the special tokens of a text, one after the other."""
    before, behind = model.config.frame_token_ids
    texts = [torch.tensor([[*before, token, *behind]]) for token in range(model.config.vocab_size)]
    return normalize(torch.cat([model(ids).anchor_embedding for ids in texts]), dim=-1)


# ---- what is in it ------------------------------------------------------------------------------------------------------

FAMILIES = [("bert", "mean"), ("roberta", "cls"), ("qwen3", "lasttoken"), ("hardkuma_static", "mean")]


@pytest.mark.parametrize(("family", "mode"), FAMILIES)
@torch.no_grad()
def test_rows_are_the_encoders_vectors_of_single_tokens(family: str, mode: str, make_model: Callable) -> None:
    model = make_model(family, pooling_mode=mode, **READS)
    head, vectors = model.gate_head, vectors_of(model)
    assert head.isolated_table.shape == (model.config.vocab_size, 32) and head.isolated_table.dtype == torch.int8
    assert torch.allclose(head.isolated_directions.T @ head.isolated_directions, torch.eye(32), atol=1e-5)
    rows = head.isolated_table.float() * head.isolated_scale[:, None]
    error = (rows - vectors @ head.isolated_directions).abs()
    assert bool((error <= 0.51 * head.isolated_scale[:, None] + 1e-5).all()), "rounded to int8, each row by its own scale"
    assert bool((head.isolated_table.abs().amax(-1) == 127).all()), "which is as fine as it can be"
    assert float(torch.cosine_similarity(rows @ head.isolated_directions.T, vectors, dim=-1).min()) > 0.999


@torch.no_grad()
def test_directions_hold_as_much_as_can_be(make_model: Callable) -> None:
    model = make_model(isolated_size=8, **READS)
    head, vectors = model.gate_head, vectors_of(model).double()
    assert head.isolated_table.shape == (model.config.vocab_size, 8) and head.isolated_directions.shape == (32, 8)
    held = (vectors @ head.isolated_directions.double()).square().sum()
    assert float(held) == pytest.approx(float(torch.linalg.svdvals(vectors)[:8].square().sum()), rel=1e-5)
    assert torch.equal(head.isolated_directions.amax(0), head.isolated_directions.abs().amax(0)), "signs are no accident"
    larger = make_model(isolated_size=1000, **READS).gate_head
    assert larger.isolated_table.shape[1] == 32, "never more than there are"


@torch.no_grad()
def test_the_first_of_several_poolings_is_what_is_compared(make_model: Callable) -> None:
    both, first = make_model(pooling_mode=["max", "mean"], **READS), make_model(pooling_mode="max", **READS)
    assert same_table(both, first)


@torch.no_grad()
def test_looking_up(make_model: Callable) -> None:
    head = make_model(isolated_size=8, **READS).gate_head
    ids, pooled = torch.randint(0, 70, (3, 5)), torch.randn(3, 1, 32)
    rows, anchors = head.look_up_isolated(ids, pooled)
    assert rows.shape == (3, 5, 8) and anchors.shape == (3, 1, 8) and rows.dtype == anchors.dtype == torch.float32
    for row in range(3):
        for place, token in enumerate(ids[row].tolist()):
            assert torch.equal(rows[row, place], head.isolated_table[token] * head.isolated_scale[token])
        assert torch.allclose(anchors[row, 0], head.isolated_directions.T @ pooled[row, 0], atol=1e-5)
    half = copy.deepcopy(head).to(torch.bfloat16)
    assert half.isolated_table.dtype == torch.int8 and half.look_up_isolated(ids, pooled)[0].dtype == torch.float32


def test_it_is_made_the_same_way_every_time(make_model: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    model, other = make_model(**READS), make_model(**READS, freeze_encoder=False)
    expected = {name: tensor.clone() for name, tensor in table_of(model).items()}
    other.train()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        other.build_isolated_table()  # without dropout, in full precision
    assert other.training and other.encoder.training and same_table(other, model)
    monkeypatch.setattr(modeling_hardkuma, "TABLE_TOKENS", 25)
    model.build_isolated_table()
    found = model.gate_head
    # Another batch may round the other way.
    assert torch.allclose(found.isolated_directions, expected["isolated_directions"], atol=1e-3)
    assert int((found.isolated_table.int() - expected["isolated_table"].int()).abs().max()) <= 1


def test_nobody_reads_it_nobody_has_it(make_model: Callable) -> None:
    model = make_model()
    model.build_isolated_table()
    assert not any("isolated" in name for name in model.state_dict())


@torch.no_grad()
def test_a_table_that_nobody_made_is_an_error(make_model: Callable, tokenize: Callable, tmp_path: Path) -> None:
    model = make_model(**READS)
    inputs = tokenize(model, SENTENCES)
    fresh = HardKumaModel(model.config)  # as `from_encoder` makes it
    fresh.tokenizer = model.tokenizer
    fresh.eval().save_pretrained(tmp_path)
    for unmade in (fresh, HardKumaModel.from_pretrained(tmp_path).eval()):
        for call in (unmade, unmade.gate_probabilities, unmade.sentence_features):
            with pytest.raises(ValueError, match=r"never made; call model\.build_isolated_table\(\)"):
                call(**inputs)
        assert "states" in unmade.encode_tokens(**inputs), "which training stores before it makes the table"
        unmade.build_isolated_table()
        assert unmade(**inputs).gate_probs is not None
    nothing = {**inputs, "attention_mask": torch.zeros_like(inputs["attention_mask"])}
    assert not model(**nothing).gate_probs.any(), "rows without a token are no error"


@torch.no_grad()
def test_it_belongs_to_the_weights_of_its_time(make_model: Callable, tokenize: Callable) -> None:
    model = make_model(**READS)
    before = {name: tensor.clone() for name, tensor in table_of(model).items()}
    for weight in model.encoder.parameters():
        weight.add_(0.1 * torch.randn_like(weight))
    model(**tokenize(model, SENTENCES))
    assert all(torch.equal(tensor, before[name]) for name, tensor in table_of(model).items())
    model.build_isolated_table()
    assert not torch.equal(model.gate_head.isolated_table, before["isolated_table"])


def test_gradients_pass_by_what_was_made_in_inference_mode(make_model: Callable, tokenize: Callable) -> None:
    model = make_model(**READS)
    inputs = tokenize(model, SENTENCES)
    with torch.inference_mode():
        model.build_isolated_table()
        model(**inputs)
    model.train()
    model(**inputs, return_loss=True).loss.backward()
    weight = model.gate_head.selectors[0].direct.weight
    assert weight.grad is not None and bool(weight.grad.abs().sum() > 0)


def test_the_frame_of_a_text(make_model: Callable, minilm: HardKumaModel) -> None:
    assert frame_token_ids(make_model().tokenizer) == [[0], [3]]
    assert frame_token_ids(make_model("hardkuma_static").tokenizer) == [[], []]
    assert minilm.config.frame_token_ids == [[101], [102]]


# ---- files and copies ---------------------------------------------------------------------------------------------------


@pytest.fixture
def encoder_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "encoder"
    torch.manual_seed(0)
    AutoModel.from_config(encoder_config("bert")).save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture
def head(encoder_folder: Path, tmp_path: Path) -> tuple[HardKumaModel, Path]:
    """A model with its table, and the folder of its head alone."""
    model = HardKumaModel.from_encoder(encoder_folder, **READS).eval()
    model.build_isolated_table()
    model.save_gate_head(tmp_path / "head")
    return model, tmp_path / "head"


def test_a_head_alone_keeps_it_to_the_bit(
    head: tuple[HardKumaModel, Path], encoder_folder: Path, tokenize: Callable, tmp_path: Path
) -> None:
    model, folder = head
    again = HardKumaModel.from_pretrained(folder, encoder=encoder_folder)
    assert same_table(again, model) and int(again.gate_head.isolated_table.abs().max()) == 127
    inputs = tokenize(model, SENTENCES)
    assert torch.equal(again(**inputs).gate_probs, model(**inputs).gate_probs)
    again.save_gate_head(tmp_path / "once more")
    first, second = (load_file(path / "model.safetensors") for path in (folder, tmp_path / "once more"))
    assert first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_a_whole_model_keeps_it_to_the_bit(dtype: torch.dtype | None, make_model: Callable, tmp_path: Path) -> None:
    model = make_model(**READS)
    model.save_pretrained(tmp_path / "model")
    again = HardKumaModel.from_pretrained(tmp_path / "model", **({} if dtype is None else {"dtype": dtype}))
    assert same_table(again, model) and again.encoder.dtype == (dtype or torch.float32)


def test_copies_keep_it(make_model: Callable) -> None:
    model = make_model(**READS)
    assert same_table(copy.deepcopy(model), model) and same_table(pickle.loads(pickle.dumps(model)), model)


def no_longer_finite(weights: dict[str, Tensor]) -> None:
    weights["gate_head.isolated_scale"][7] = torch.nan


def of_another_shape(weights: dict[str, Tensor]) -> None:
    weights["gate_head.isolated_table"] = weights["gate_head.isolated_table"][:-1].clone()


def missing(weights: dict[str, Tensor]) -> None:
    del weights["gate_head.isolated_directions"]


def foreign(weights: dict[str, Tensor]) -> None:
    weights["gate_head.isolated_colours"] = torch.zeros(3)


DAMAGES = [
    (no_longer_finite, "isolated_scale' in .* holds NaN or infinity"),
    (of_another_shape, r"isolated_table' in .* has shape \(77, 32\), not \(78, 32\)"),
    (missing, "lacks .*isolated_directions'"),
    (foreign, "has a foreign .*isolated_colours'"),
]


@pytest.mark.parametrize(("damage", "message"), DAMAGES, ids=[damage.__name__ for damage, _ in DAMAGES])
def test_a_damaged_head_is_refused(
    damage: Callable, message: str, head: tuple[HardKumaModel, Path], encoder_folder: Path
) -> None:
    folder = head[1]
    weights = load_file(folder / "model.safetensors")
    damage(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=f"{message}: the file is damaged or belongs to another model"):
        HardKumaModel.from_pretrained(folder, encoder=encoder_folder)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (no_longer_finite, "isolated_scale' in .* holds NaN or infinity: the file is damaged"),
        (of_another_shape, r"have other shapes of 1 tensors of this model, the first 'gate_head\.isolated_table'"),
        (missing, r"lack 1 tensors of this model, the first 'gate_head\.isolated_directions'"),
    ],
)
def test_a_damaged_model_is_refused(damage: Callable, message: str, make_model: Callable, tmp_path: Path) -> None:
    make_model(**READS).save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    damage(weights)
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=message):
        HardKumaModel.from_pretrained(tmp_path)


# ---- a new vocabulary, tools, threads -----------------------------------------------------------------------------------


@pytest.mark.parametrize("more", [5, -3])
@torch.no_grad()
def test_a_new_vocabulary_keeps_old_rows(more: int, make_model: Callable, tokenize: Callable, tmp_path: Path) -> None:
    model = make_model(**READS)
    model.gate_head.token_roles.random_(0, 3)
    inputs, old, size = tokenize(model, SENTENCES[3:4]), copy.deepcopy(model), model.config.vocab_size
    model.resize_token_embeddings(size + more)
    head, kept = model.gate_head, min(size, size + more)
    for name in ("token_roles", "isolated_table", "isolated_scale"):
        before, after = getattr(old.gate_head, name), getattr(head, name)
        assert len(after) == size + more and after.dtype == before.dtype
        assert torch.equal(after[:kept], before[:kept]) and not after[kept:].any()
    assert torch.equal(head.isolated_directions, old.gate_head.isolated_directions)
    assert torch.equal(model(**inputs).gate_probs, old(**inputs).gate_probs)
    new = torch.full((1, 4), size + more - 1)
    assert bool(torch.isfinite(model(new).gate_probs).all())
    with pytest.raises(ValueError, match=f"input_ids has {size + more}, but the vocabulary is 0 to {size + more - 1}"):
        model(new + 1)
    model.save_pretrained(tmp_path / "model")
    again = HardKumaModel.from_pretrained(tmp_path / "model")
    assert same_table(again, model) and torch.equal(again(new).gate_probs, model(new).gate_probs)


def test_weights_that_are_elsewhere_until_needed(make_model: Callable, tokenize: Callable) -> None:
    from accelerate import cpu_offload

    every = {"selectors": {"meaning": {"unit": "word", "reads": list(EVERYTHING), "layer": [0.5, -1]}}}
    model = make_model(**every)
    inputs = tokenize(model, SENTENCES)
    with torch.no_grad():
        expected = model(**inputs).gate_probs
        assert torch.allclose(cpu_offload(make_model(**every))(**inputs).gate_probs, expected, atol=1e-5)


def test_eight_threads_share_one_model(make_two: Callable, tokenize: Callable) -> None:
    model = make_two(layers=3)
    model.gate_head.surface_log_odds.normal_()
    batches = [tokenize(model, texts) for texts in (SENTENCES, SENTENCES[:1], SENTENCES[3:], [*SENTENCES[1:3], ""])]
    calls: list[Callable[[dict[str, Tensor]], Tensor]] = [
        lambda batch: model(**batch).gate_probs,
        lambda batch: model.gate_probabilities(**batch, selector="entities"),
        lambda batch: model.selector_inputs(0, **batch)[0],
        lambda batch: model(**batch, selector="meaning", rate=0.3).rationale_embedding,
    ]
    with torch.no_grad():
        expected = [[call(batch) for batch in batches] for call in calls]

    @torch.no_grad()
    def run(number: int) -> list[Any]:
        wrong = []
        for step in range(50):
            which, batch = (number + step) % len(calls), (number + step // 3) % len(batches)
            found = calls[which](batches[batch])
            if found.shape != expected[which][batch].shape or not torch.allclose(found, expected[which][batch], atol=1e-6):
                wrong.append((which, batch))
        return wrong

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(run, range(8))) == [[]] * 8
