"""Every tensor on its device: the model's calls on a device that is none, against the CPU. A CPU tensor that meets one of
the device is an error there, as it is on a GPU.
"""

from __future__ import annotations

from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from hardkuma import (
    GateClassificationPipeline,
    HardKumaForTokenClassification,
    HardKumaModel,
    TokenGatesPipeline,
    explain_pair,
)
from hardkuma.configuration_hardkuma import READS
from hardkuma.words_hardkuma import continues_batch, surface_batch
from tests.conftest import SENTENCES, build_model, build_two_selectors, several
from tests.device_cases import Case, run_cases
from tests.forks import ForkServer

TEXTS = ["Marie Curie moved to Paris in 1891 .", *SENTENCES[1:], "", "The Museum , and the Bridge"]
LONG = " ".join(SENTENCES * 3)  # longer than the encoder takes
LOSSES = {
    "selectors": {"meaning": {"lambda_s": 0.5}, "entities": {"lambda_s": 1.0}},
    "temperature": 0.3,
    "lambda_tv": 0.3,
    "lambda_kl": -0.4,
    "lambda_e": 2.0,
    "rate_constraint": "lagrangian",
    "bound_complement": True,
    "freeze_encoder": False,
}


def tokens(model: HardKumaModel, texts: list[str] = TEXTS, side: str = "right") -> dict[str, Tensor]:
    """As a caller has them, on the model's device."""
    inputs = model.tokenizer(
        texts, padding=True, padding_side=side, return_tensors="pt", return_offsets_mapping=True, truncation=True
    )
    offsets = inputs.pop("offset_mapping")
    words = {"surface_ids": surface_batch(texts, offsets), "continues": continues_batch(texts, offsets)}
    return {name: value.to(model.device) for name, value in {**inputs, **words}.items()}


def without_dropout(model: HardKumaModel) -> HardKumaModel:
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    model.encoder.config.attention_probs_dropout_prob = model.encoder.config.hidden_dropout_prob = 0.0
    return model


def forward(device: torch.device, _: Path, family: str = "bert", **config: Any) -> Any:
    model = build_model(family, **config).to(device)
    settings: list[dict[str, Any]] = [{}, {"rate": 0.3}, {"output_hidden_states": True}, {"selector": "selector_1"}]
    return [model(**tokens(model, side=side), **setting).to_tuple() for side in ("right", "left") for setting in settings]


def losses(device: torch.device, _: Path, view: str, contrastive: str) -> Any:
    model = without_dropout(build_model(view=view, contrastive=contrastive, **LOSSES)).to(device).train()
    inputs = tokens(model)
    noise = torch.rand(len(TEXTS), 2, inputs["input_ids"].shape[1]).to(device)
    out = model(**inputs, noise=noise, return_loss=True)
    out.loss.backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    drawn = model(**inputs).gates  # by the device's own generator
    return out.loss, out.losses, gradients, model.gate_head.rate_multiplier, drawn.shape


def mixed_precision(device: torch.device, _: Path, view: str) -> Any:
    """On every device the encoder computes in bf16, gates and losses in fp32."""
    steady = {**LOSSES, "rate_constraint": "none"}  # a multiplier would move from call to call
    model = without_dropout(build_model(view=view, **steady)).to(device).train()
    inputs = tokens(model)
    noise = torch.rand(len(TEXTS), 2, inputs["input_ids"].shape[1]).to(device)
    exact = model(**inputs, noise=noise, return_loss=True)
    with torch.autocast(device.type, dtype=torch.bfloat16):
        out = model(**inputs, noise=noise, return_loss=True)
    out.loss.backward()
    for name, value in {"gates": out.gates, "gate_probs": out.gate_probs, "loss": out.loss, **out.losses}.items():
        assert value.dtype == torch.float32, name
    moved = float((out.gate_probs - exact.gate_probs).abs().max())
    assert 0 < moved < 0.1 and abs(float(out.loss - exact.loss)) < 0.2
    assert all(bool(torch.isfinite(p.grad).all()) for p in model.parameters() if p.grad is not None)
    return sorted(out.losses)


def half_weights(device: torch.device, folder: Path) -> Any:
    reads = {"meaning": {"reads": ["state", "norm"]}}
    build_model(selectors=reads).save_pretrained(folder)
    model = HardKumaModel.from_pretrained(folder, dtype=torch.bfloat16).eval().to(device)
    whole = build_model(selectors=reads).to(device)
    model.tokenizer = whole.tokenizer
    out, exact = model(**tokens(model)), whole(**tokens(whole))
    assert model.gate_head.selectors[0].hidden.weight.dtype == out.gate_probs.dtype == torch.float32
    assert out.last_hidden_state.dtype == torch.bfloat16
    assert 0 < float((out.gate_probs - exact.gate_probs).abs().max()) < 0.1  # devices round in their own ways
    return exact.gate_probs


def methods(device: torch.device, _: Path) -> Any:
    model = build_two_selectors().to(device)
    before = model.gate_head.isolated_scale.clone()
    model.gate_head.isolated_scale.zero_()
    model.build_isolated_table()
    assert torch.allclose(model.gate_head.isolated_scale, before, rtol=1e-3), "made on the device as on the CPU"
    inputs = tokens(model)
    plain = {name: inputs[name] for name in ("input_ids", "attention_mask")}
    kept = torch.stack([inputs["input_ids"] % 2, inputs["input_ids"] % 3], dim=1).clamp_max(1)
    encoded = model.encode_tokens(**plain)
    read = {name: inputs[name] for name in ("input_ids", "attention_mask", "continues")}
    return {
        "probabilities": [model.gate_probabilities(**inputs, selector=name) for name in (None, *model.config.names)],
        "encoded": dict(encoded),
        "stored": model(**read, encoded=encoded).gate_probs,
        "selector_inputs": [model.selector_inputs(k, **read) for k in range(2)],
        "subsets": model.encode_subsets(**plain, kept=kept),
        "features": [
            model.sentence_features(**plain, embedding=name)["embedding"] for name in ("rationale", "complement", "anchor")
        ],
        "distribution": model.gate_distribution(model(**plain)).mean,
        "surface": model.adapt_surface([tokens(model), {name: value.cpu() for name, value in inputs.items()}]),
        "adapted": model(**inputs).gate_probs,
    }


def records(device: torch.device, _: Path) -> Any:
    model = build_two_selectors().to(device)
    texts = [*TEXTS, LONG]
    return {
        "records": [model.gate_records(texts, selector=name, batch_size=3) for name in ("meaning", "entities", "all")],
        "rate": model.gate_records(texts, rate=0.2),
        "pair": explain_pair(model, SENTENCES[0], SENTENCES[1]),
    }


def pipelines(device: torch.device, folder: Path) -> Any:
    model = build_two_selectors()
    model.save_pretrained(folder)
    classifier = HardKumaForTokenClassification.from_pretrained(folder).eval()
    gates = TokenGatesPipeline(model, batch_size=2, device=device)
    classify = GateClassificationPipeline(classifier, model.tokenizer, batch_size=2, device=device)
    assert gates.model.device.type == classify.model.device.type == device.type
    labelled = classify([*SENTENCES, LONG], aggregation_strategy="simple")
    plain = [[{name: str(value) for name, value in span.items() if name != "score"} for span in row] for row in labelled]
    return gates([*SENTENCES, LONG]), plain


def forgotten_transfer(device: torch.device, _: Path) -> None:
    """What these tests are for: it must be found."""
    model = build_model().to(device)
    inputs = model.tokenizer(SENTENCES, padding=True, return_tensors="pt")
    if device.type == "cpu":
        return
    with pytest.raises(RuntimeError, match="CPU"):
        model(**inputs)
    with pytest.raises(RuntimeError, match="found some on the CPU, of shape"):
        model.gate_head.input_center + torch.zeros(model.gate_head.input_center.shape)


def make_cases() -> dict[str, Case]:
    cases: dict[str, Case] = {
        "forgotten transfer": forgotten_transfer,
        "methods": methods,
        "records": records,
        "pipelines": pipelines,
        "half weights": half_weights,
    }
    for family in ("bert", "mpnet", "modernbert", "qwen3", "hardkuma_static"):
        cases[f"forward of {family}"] = partial(forward, family=family, selectors=several(2))
    cases["forward that reads all"] = partial(forward, selectors=several(2, reads=READS, unit="word"))
    filtered = {"frequency_filter": "band", "frequency_low": 0.1, "frequency_high": 0.6}
    cases["forward with a filter"] = partial(forward, selectors=several(2), view="input", **filtered)
    for view, contrastive in product(("hidden", "input", "reencode"), ("infonce", "nt_xent")):
        cases[f"losses of {view} by {contrastive}"] = partial(losses, view=view, contrastive=contrastive)
    for view in ("hidden", "input", "reencode"):
        cases[f"mixed precision of {view}"] = partial(mixed_precision, view=view)
    return cases


@pytest.fixture(scope="module")
def outcomes(forks: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return run_cases(forks, "tests.test_devices", tmp_path_factory.mktemp("devices"))


@pytest.mark.parametrize("case", make_cases())
def test_the_device_gives_what_the_cpu_gives(case: str, outcomes: dict[str, str]) -> None:
    assert outcomes[case] == "", outcomes[case]


# ---- what processes tell each other -------------------------------------------------------------------------------------

RANK = """
import sys, torch
sys.path.insert(0, sys.argv[1])
import torch.distributed as dist
from tests.pretend_device import DEVICE
from tests.test_devices import LOSSES, build_model, tokens, without_dropout
dist.init_process_group("gloo")
rank = dist.get_rank()
model = without_dropout(build_model(view="hidden", **LOSSES)).to(DEVICE).train()
inputs = tokens(model)
torch.manual_seed(0)
inputs["noise"] = torch.rand(8, 2, inputs["input_ids"].shape[1]).to(DEVICE)
out = model(**{name: value[rank * 4 : rank * 4 + 4] for name, value in inputs.items()}, return_loss=True)
out.loss.backward()
gradients = {name: p.grad.cpu() for name, p in model.named_parameters() if p.grad is not None}
torch.save({"loss": out.loss.detach().cpu(), "gradients": gradients}, f"{sys.argv[2]}/rank{rank}.pt")
dist.barrier()
dist.destroy_process_group()
"""


def test_processes_gather_what_is_on_their_devices(forks: ForkServer, tmp_path: Path) -> None:
    ranks = forks.start_ranks(2, RANK, Path(__file__).resolve().parents[1], tmp_path)
    assert [rank.wait(600) for rank in ranks] == [0, 0], ranks[0].stderr[-3000:]
    model = without_dropout(build_model(view="hidden", **LOSSES)).train()
    inputs = tokens(model)
    torch.manual_seed(0)
    out = model(**inputs, noise=torch.rand(8, 2, inputs["input_ids"].shape[1]), return_loss=True)
    out.loss.backward()
    two = [torch.load(tmp_path / f"rank{rank}.pt", weights_only=True) for rank in range(2)]
    assert float(two[0]["loss"] + two[1]["loss"]) / 2 == pytest.approx(out.loss.item(), abs=1e-5)
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            mean = (two[0]["gradients"][name] + two[1]["gradients"][name]) / 2
            assert torch.allclose(mean, parameter.grad, atol=1e-5), name
