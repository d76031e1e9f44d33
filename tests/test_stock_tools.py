"""Stock tools on our classes: Trainer, PEFT, accelerate's device maps, torch.compile, torch.export, dtypes, pipelines."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, TaskType, get_peft_model
from torch import Tensor
from transformers import Trainer, TrainingArguments, pipeline

from hardkuma import HardKumaForTokenClassification, HardKumaModel
from hardkuma.batch_hardkuma import CONTINUES
from tests.conftest import SENTENCES, TWO_SELECTORS, several

FIELDS = ["gates", "gate_probs", "anchor_embedding", "rationale_embedding", "complement_embedding", "alpha", "beta"]


def numbers(model: Any, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    with torch.no_grad():
        out = model.eval()(**inputs)
    return {name: out[name] for name in FIELDS}


# ---- Trainer ------------------------------------------------------------------------------------------------------------


class Collator:
    """Texts to a batch that asks the model for its own, label-free loss."""

    def __init__(self, model: HardKumaModel, **extra: Any):
        self.tokenizer, self.extra = model.tokenizer, extra

    def __call__(self, rows: list[dict[str, str]]) -> dict[str, Any]:
        batch = dict(self.tokenizer([row["text"] for row in rows], padding=True, return_tensors="pt"))
        return {**batch, **self.extra}


def trainer_of(model: Any, collator: Collator, folder: Path, **options: Any) -> Trainer:
    arguments = {
        "max_steps": 4,
        "per_device_train_batch_size": 3,
        "per_device_eval_batch_size": 3,
        "learning_rate": 1e-2,
        "save_steps": 2,
        "eval_steps": 2,
        "eval_strategy": "steps",
        "logging_steps": 1,
        "remove_unused_columns": False,
        "report_to": [],
        "use_cpu": True,
        "disable_tqdm": True,
        "seed": 3,
        **options,
    }
    rows = [{"text": text} for text in SENTENCES]
    return Trainer(
        model=model,
        args=TrainingArguments(output_dir=str(folder), **arguments),
        data_collator=collator,
        train_dataset=rows,
        eval_dataset=rows,
    )


def losses_of(trainer: Trainer) -> list[float]:
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def test_trainer_trains_saves_and_resumes(make_model: Callable, tmp_path: Path) -> None:
    model = make_model(temperature=0.5)
    collator = Collator(model, return_loss=True)
    start = copy.deepcopy(model.state_dict())
    whole = trainer_of(copy.deepcopy(model), collator, tmp_path / "whole")
    whole.train()
    assert len(losses_of(whole)) == 4 and all(torch.isfinite(torch.tensor(losses_of(whole))))
    moved = {name for name, value in whole.model.state_dict().items() if not torch.equal(value, start[name])}
    assert moved and all(name.startswith("gate_head.selectors") for name in moved), "the gates and nothing else"
    rows = [{"text": text} for text in SENTENCES]
    with torch.no_grad():
        expected = [float(whole.model.eval()(**collator(part)).loss) for part in (rows[:3], rows[3:])]
    assert whole.evaluate()["eval_loss"] == pytest.approx(sum(expected) / 2, abs=1e-5)
    # A second run takes the first one's checkpoint of step 2 and ends where that one did.
    again = trainer_of(copy.deepcopy(model), collator, tmp_path / "again")
    again.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-2"))
    for name, value in whole.model.state_dict().items():
        assert torch.equal(again.model.state_dict()[name], value), name
    loaded = HardKumaModel.from_pretrained(tmp_path / "whole" / "checkpoint-4")
    inputs = collator(rows)
    inputs.pop("return_loss")
    for name, value in numbers(whole.model, inputs).items():
        assert torch.equal(numbers(loaded, inputs)[name], value), name


def test_trainer_loads_the_best_model(make_model: Callable, tmp_path: Path) -> None:
    model = make_model(rate_constraint="penalty", lambda_e=100.0)
    trainer = trainer_of(
        model,
        Collator(model, return_loss=True),
        tmp_path,
        load_best_model_at_end=True,
        metric_for_best_model="loss",
        greater_is_better=True,  # so that the best is not the last
        save_steps=1,
        eval_steps=1,
        gradient_accumulation_steps=2,
    )
    trainer.train()
    losses = [entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry]
    assert trainer.state.best_metric == max(losses) > losses[-1]
    best = HardKumaModel.from_pretrained(trainer.state.best_model_checkpoint)
    for name, value in best.state_dict().items():
        assert torch.equal(trainer.model.state_dict()[name], value), name


def test_trainer_with_labels(make_model: Callable, tmp_path: Path) -> None:
    """The classifier with labels; its checkpoints hold the base model, and Trainer resumes from them all the same."""
    base = make_model()
    model = HardKumaForTokenClassification(base.config)
    model.load_state_dict(base.state_dict())
    collator = Collator(base)

    def labelled(rows: list[dict[str, str]]) -> dict[str, Any]:
        batch = collator(rows)
        return {**batch, "labels": torch.where(batch["attention_mask"].bool(), batch["input_ids"] % 2, -100)}

    whole = trainer_of(copy.deepcopy(model), labelled, tmp_path / "whole", max_steps=8, save_steps=4, eval_steps=4)
    whole.train()
    losses = losses_of(whole)
    assert sum(losses[-2:]) < sum(losses[:2])
    assert {"eval_loss"} <= set(whole.evaluate())
    again = trainer_of(copy.deepcopy(model), labelled, tmp_path / "again", max_steps=8, save_steps=4, eval_steps=4)
    again.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-4"))
    for name, value in whole.model.state_dict().items():
        assert torch.equal(again.model.state_dict()[name], value), name


# ---- PEFT ---------------------------------------------------------------------------------------------------------------


def lora(**options: Any) -> LoraConfig:
    settings = {"target_modules": ["query", "value"], "modules_to_save": ["gate_head"], "r": 2, "lora_dropout": 0.5}
    return LoraConfig(**{**settings, **options})


@pytest.mark.parametrize("view", ["hidden", "reencode"])
def test_lora_on_the_encoder(view: str, make_model: Callable, tokenize: Callable, tmp_path: Path) -> None:
    model = make_model(view=view, temperature=0.5)
    inputs = tokenize(model, SENTENCES)
    before = numbers(model, inputs)
    adapted = get_peft_model(copy.deepcopy(model), lora(task_type=TaskType.FEATURE_EXTRACTION))
    for name, value in numbers(adapted, inputs).items():
        assert torch.equal(value, before[name]), "an adapter begins with no effect"
    optimizer = torch.optim.SGD([p for p in adapted.parameters() if p.requires_grad], lr=1.0)
    adapted.train()
    assert adapted.base_model.model.encoder.training, "the adapter's dropout falls"
    for _ in range(2):
        optimizer.zero_grad()
        adapted(**inputs, return_loss=True).loss.backward()
        optimizer.step()
    trained = {name: p for name, p in adapted.named_parameters() if p.requires_grad}
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in trained.values())
    assert any("lora_B" in name and p.abs().sum() > 0 for name, p in trained.items())
    after = numbers(adapted, inputs)
    assert not torch.equal(after["gate_probs"], before["gate_probs"])
    # Saved as an adapter, put on the same model again; merged, saved as a model.
    adapted.save_pretrained(str(tmp_path / "adapter"))
    again = PeftModel.from_pretrained(copy.deepcopy(model), str(tmp_path / "adapter"))
    for name, value in numbers(again, inputs).items():
        assert torch.equal(value, after[name]), name
    again.merge_and_unload().save_pretrained(tmp_path / "merged")
    merged = HardKumaModel.from_pretrained(tmp_path / "merged")
    for name, value in numbers(merged, inputs).items():
        assert torch.allclose(value, after[name], atol=1e-4), name


def test_lora_on_the_classifier_with_trainer(make_model: Callable, tmp_path: Path) -> None:
    base = make_model()
    model = HardKumaForTokenClassification(base.config)
    model.load_state_dict(base.state_dict())
    collator = Collator(base)

    def labelled(rows: list[dict[str, str]]) -> dict[str, Any]:
        batch = collator(rows)
        return {**batch, "labels": batch["input_ids"] % 2}

    adapted = get_peft_model(model, lora(task_type=TaskType.TOKEN_CLS))
    trainer = trainer_of(adapted, labelled, tmp_path, gradient_checkpointing=True, label_names=["labels"])
    trainer.train()
    changed = [p for name, p in adapted.named_parameters() if "lora_B" in name]
    assert changed and all(p.abs().sum() > 0 for p in changed)


# ---- where and how weights are loaded -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"view": "reencode", "selectors": {"meaning": {"reads": ["state", "attention"]}}},
        {"view": "input"},
        TWO_SELECTORS,
    ],
    ids=["plain", "attention", "input", "words"],
)
def test_device_map_and_disk_offload(config: dict, make_model: Callable, tokenize: Callable, tmp_path: Path) -> None:
    projection = {"in_features": 32, "out_features": 8, "bias": True, "activation": "tanh"}
    model = make_model(projections=[projection], **config)
    model.save_pretrained(tmp_path / "model")
    inputs = tokenize(model, SENTENCES)
    expected = numbers(model, inputs)
    auto = HardKumaModel.from_pretrained(tmp_path / "model", device_map="auto")
    for name, value in numbers(auto, inputs).items():
        assert torch.equal(value, expected[name]), name
    places = {"encoder.embeddings": "cpu", "encoder.encoder": "disk", "projections": "disk", "gate_head": "disk"}
    offloaded = HardKumaModel.from_pretrained(
        tmp_path / "model", device_map=places, offload_folder=str(tmp_path / "offload"), offload_state_dict=True
    )
    away = [name for name, p in offloaded.named_parameters() if p.is_meta]
    assert any(name.startswith("gate_head") for name in away) and any(name.startswith("encoder.encoder") for name in away)
    for name, value in numbers(offloaded, inputs).items():
        assert torch.equal(value, expected[name]), name


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("cls", [HardKumaModel, HardKumaForTokenClassification])
def test_half_precision(cls: type, dtype: torch.dtype, make_model: Callable, tokenize: Callable, tmp_path: Path) -> None:
    model = make_model()
    model.save_pretrained(tmp_path / "model")
    inputs = tokenize(model, SENTENCES)
    half = cls.from_pretrained(tmp_path / "model", dtype=dtype).eval()
    base = half._base()
    assert {p.dtype for p in base.encoder.parameters()} == {dtype}
    of_head = base.gate_head.state_dict().values()
    assert {tensor.dtype for tensor in of_head if tensor.is_floating_point()} == {torch.float32}
    out = base(**inputs, return_loss=True)
    assert out.gate_probs.dtype == out.loss.dtype == out.rationale_embedding.dtype == torch.float32
    assert out.last_hidden_state.dtype == dtype
    assert torch.allclose(out.gate_probs, numbers(model, inputs)["gate_probs"], atol=0.05)


# ---- graphs -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "config",
    [
        {"selectors": {"meaning": {"reads": ["state", "attention"]}}},
        {"view": "reencode", "selectors": several(2)},
        {**TWO_SELECTORS, "view": "reencode"},
    ],
    ids=["attention", "reencode", "words-reencode"],
)
def test_compiled(config: dict, make_model: Callable, tokenize: Callable) -> None:
    """One graph, for padding on either side."""
    torch.compiler.reset()
    model = make_model(**config)
    if model.gate_head.roles is not None:
        model.gate_head.roles[::3] = CONTINUES
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    for side in ("left", "right"):
        model.tokenizer.padding_side = side
        inputs = tokenize(model, SENTENCES)
        expected = numbers(model, inputs)
        with torch.compiler.set_stance("default" if side == "left" else "fail_on_recompile"):
            for name, value in numbers(compiled, inputs).items():
                assert torch.allclose(value, expected[name], atol=1e-5), (side, name)


def test_compiled_training(make_model: Callable, tokenize: Callable) -> None:
    torch.compiler.reset()
    model = make_model(temperature=0.5).train()
    inputs = tokenize(model, SENTENCES)
    noise = torch.rand(len(SENTENCES), 1, inputs["input_ids"].shape[1])
    gradients = []
    for step in (model, torch.compile(model, backend="aot_eager", fullgraph=True)):
        model.zero_grad()
        step(**inputs, noise=noise, return_loss=True).loss.backward()
        gradients.append({name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})
    assert gradients[0].keys() == gradients[1].keys() and gradients[0]
    for name, value in gradients[0].items():
        assert torch.allclose(value, gradients[1][name], atol=1e-5), name


def test_exported(make_model: Callable, tokenize: Callable) -> None:
    model = make_model(**TWO_SELECTORS)
    model.gate_head.roles[::3] = CONTINUES
    inputs = tokenize(model, SENTENCES)
    sizes = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    with torch.no_grad():
        program = torch.export.export(model, (), dict(inputs), dynamic_shapes=dict.fromkeys(inputs, sizes))
    for texts in (SENTENCES, SENTENCES[:3]):
        for side in ("left", "right"):
            model.tokenizer.padding_side = side
            inputs = tokenize(model, texts)
            out = program.module()(**inputs)
            for name, value in numbers(model, inputs).items():
                assert torch.allclose(out[name], value, atol=1e-5), name


@pytest.mark.parametrize("config", [{}, TWO_SELECTORS], ids=["plain", "words"])
def test_traced(config: dict, make_model: Callable, tokenize: Callable) -> None:
    model = make_model(**config)
    if model.gate_head.roles is not None:
        model.gate_head.roles[::3] = CONTINUES
    inputs = tokenize(model, SENTENCES)
    names = ("input_ids", "attention_mask")

    class Plain(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, ...]:
            out = self.model(input_ids, attention_mask)
            return out.gates, out.gate_probs, out.rationale_embedding

    call = Plain().eval()
    with torch.no_grad():
        traced = torch.jit.trace(call, tuple(inputs[name] for name in names), check_trace=False)
        for texts in (SENTENCES, SENTENCES[:3]):
            given = tuple(tokenize(model, texts)[name] for name in names)
            for found, expected in zip(traced(*given), call(*given), strict=True):
                assert torch.allclose(found, expected, atol=1e-5)


# ---- pipelines ----------------------------------------------------------------------------------------------------------


def test_feature_extraction(make_model: Callable, tokenize: Callable, tmp_path: Path) -> None:
    model = make_model()
    model.save_pretrained(tmp_path / "model")
    extract = pipeline("feature-extraction", model=str(tmp_path / "model"), trust_remote_code=True)
    assert type(extract.model).__module__.startswith("transformers_modules")
    for text in SENTENCES[:2]:
        with torch.no_grad():
            expected = model(**tokenize(model, [text])).last_hidden_state
        assert torch.equal(torch.tensor(extract(text)), expected), "token states, not gates"
