"""Tiny random encoders of every family, built offline in a temporary folder, the embedded MiniLM, and processes.

torch and transformers are imported where they are used: the process that hands tests to the workers needs neither.
"""

from __future__ import annotations

import gc
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.forks import IMPORTS, TRAINING, ForkServer

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedConfig, PreTrainedTokenizerFast

    from hardkuma import HardKumaModel

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# Some virtual machines announce AMX and trap on its first instruction: bf16 would end the interpreter (SIGILL).
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
# Tiny models are no quicker on two threads, and two workers would fight for the cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# A process that is killed leaves what it has written; only a power cut needs the disk, for which every file would wait some
# 10 ms. tests/common/test_files.py sees that the disk is asked.
os.fsync = lambda descriptor: None  # type: ignore[assignment]
# The code of checkpoints that are loaded with trust_remote_code: workers must not write each other's files.
MODULES = Path(tempfile.gettempdir(), f"hardkuma-modules-{os.getpid()}")
os.environ["HF_MODULES_CACHE"] = str(MODULES)

WORKERS = 2
# What is slow to make is made by one worker: all tests that ask for one of these fixtures run there.
SHARED = ("bare_forks", "cluster", "hub_forks", "outcomes", "ranks", "served", "scored")
# Tests with a process or a browser of their own are slow, all of them.
PROCESSES = {"forks", "bare_forks", "hub_forks", "run_with", "served"}
# So are these, by measurement: exporting, training runs, stock tools, and 200 sentences through two libraries.
SLOW = re.compile(
    r"test_onnx\.py|test_backends\.py|by_onnxruntime|test_train\.py|test_stock_tools\.py|test_processes\.py|_on_200_sentences"
)
# shap compiles for seconds when it is first called.
SHAP = re.compile(r"[\[._]shap(ley)?[\]_-]|test_methods_find_what_differs")

WORDS = """
the a of in to and is was on for with at by from it that this as are be has have not will can more new one two
paris london berlin marie curie einstein nasa google apple river bank money city train plane opened closed moved
won lost said found built sold wrote sings reads runs . , ! ? ' - ( ) 1 2 3 1891 2020 museum bridge school team
""".split()  # noqa: SIM905 - a list of seventy strings is no easier to read
SENTENCES = [
    "marie curie moved to paris in 1891 .",
    "google opened a new school in berlin , and apple closed one .",
    "the river runs by the bank of the city",
    "einstein !",
    "nasa said that the plane was lost at the museum in london and that it will not be found",
    "a team won",
]
FAMILIES = (
    "bert",
    "roberta",
    "xlm-roberta",
    "mpnet",
    "distilbert",
    "modernbert",
    "clip_text_model",
    "t5",
    "qwen3",
    "hardkuma_static",
)
# Families that take position ids: removed tokens are left out of their batches (see `encode_kept`).
PACKED_FAMILIES = ("bert", "roberta", "xlm-roberta", "camembert", "electra", "albert", "hardkuma_static")
SMALL = {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 37}


def make_tokenizer(special: bool = True) -> PreTrainedTokenizerFast:
    """A word-level tokenizer over WORDS; [PAD] is 1 so that families which derive positions from it are exercised."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    vocabulary = {token: i for i, token in enumerate(["[CLS]", "[PAD]", "[UNK]", "[SEP]", *dict.fromkeys(WORDS)])}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    if special:
        backend.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 0), ("[SEP]", 3)]
        )
    roles = {"pad_token": "[PAD]", "unk_token": "[UNK]"}
    if special:
        roles.update(cls_token="[CLS]", sep_token="[SEP]", bos_token="[CLS]", eos_token="[SEP]")
    return PreTrainedTokenizerFast(tokenizer_object=backend, model_max_length=40, **roles)


def encoder_config(family: str, layers: int = 2) -> PreTrainedConfig:
    from transformers import (
        AlbertConfig,
        BertConfig,
        CamembertConfig,
        CLIPTextConfig,
        DistilBertConfig,
        ElectraConfig,
        ModernBertConfig,
        MPNetConfig,
        Qwen3Config,
        RobertaConfig,
        T5Config,
        XLMRobertaConfig,
    )

    from hardkuma.configuration_hardkuma import StaticEncoderConfig

    tokenizer, small = make_tokenizer(), {**SMALL, "num_hidden_layers": layers}
    common = {"vocab_size": len(tokenizer), "pad_token_id": 1, "max_position_embeddings": 42}
    tokens = {"bos_token_id": 0, "eos_token_id": 3}
    if family == "bert":
        return BertConfig(**small, **common)
    if family == "roberta":
        return RobertaConfig(**small, **common, **tokens, type_vocab_size=1)
    if family == "xlm-roberta":
        return XLMRobertaConfig(**small, **common, **tokens, type_vocab_size=1)
    if family == "camembert":
        return CamembertConfig(**small, **common, **tokens, type_vocab_size=1)
    if family == "electra":
        return ElectraConfig(**small, **common, embedding_size=16)
    if family == "albert":
        return AlbertConfig(**small, **common, **tokens, embedding_size=16)
    if family == "mpnet":
        return MPNetConfig(**small, **common, **tokens)
    if family == "distilbert":
        return DistilBertConfig(dim=32, n_layers=layers, n_heads=4, hidden_dim=37, **common)
    if family == "modernbert":
        window = {"local_attention": 8, "global_attn_every_n_layers": 2}
        return ModernBertConfig(**small, **common, **tokens, **window, cls_token_id=0, sep_token_id=3)
    if family == "clip_text_model":
        return CLIPTextConfig(**small, **common, **tokens, projection_dim=32)
    if family == "t5":
        sizes = {"d_model": 32, "d_kv": 8, "d_ff": 37, "num_layers": layers, "num_heads": 4}
        return T5Config(**sizes, vocab_size=len(tokenizer), pad_token_id=1)
    if family == "qwen3":
        return Qwen3Config(**small, **common, **tokens, num_key_value_heads=2, head_dim=8)
    return StaticEncoderConfig(vocab_size=len(tokenizer), hidden_size=32, pad_token_id=1)


def build_model(family: str = "bert", seed: int = 0, layers: int = 2, **config: object) -> HardKumaModel:
    """A tiny random model with its tokenizer, in eval mode; the same weights every time."""
    import torch

    from hardkuma import HardKumaConfig, HardKumaModel
    from hardkuma.encoder_hardkuma import build_encoder

    torch.manual_seed(seed)
    tokenizer = make_tokenizer(special=family != "hardkuma_static")
    special = [1] if family == "hardkuma_static" else [0, 1, 3]
    encoder = build_encoder(encoder_config(family, layers))
    # At their small initialisation random encoders (but T5) attend uniformly: sharpen them so that context matters.
    with torch.no_grad():
        for name, parameter in encoder.named_parameters():
            if parameter.ndim == 2 and "norm" not in name.lower() and family != "t5":
                parameter.mul_(4.0)
    frame = [[token for token in special if token == end] for end in (0, 3)]
    base = {"encoder_config": encoder.config, "special_token_ids": special, "max_seq_length": 40, "frame_token_ids": frame}
    model = HardKumaModel(HardKumaConfig(**{**base, **config}))
    model.encoder.load_state_dict(encoder.state_dict())
    with torch.no_grad():
        for parameter in model.gate_head.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
        model.gate_head.input_center.normal_(std=0.1)
    model.tokenizer = tokenizer
    model.eval().build_isolated_table()
    return model


def several(number: int, **settings: object) -> dict[str, dict[str, object]]:
    """Selectors that differ in their weights alone: selector_0, selector_1, ..."""
    return {f"selector_{k}": dict(settings) for k in range(number)}


# Two selectors that differ in all that may differ.
TWO_SELECTORS = {
    "selectors": {
        "meaning": {
            "reads": ["state", "anchor", "pool_share", "leave_one_out", "isolated"],
            "layer": [0.5, -1],
            "unit": "word",
            "hidden_size": 24,
            "form_weight": 0.0,
            "target_rate": 0.3,
        },
        "entities": {
            "reads": ["state", "norm"],
            "layer": 0.5,
            "unit": "name",
            "hidden_size": 16,
            "form_weight": 0.5,
            "target_rate": 0.2,
        },
    }
}
CONTINUING = ("curie", "in", "school", "bank", "city", "plane", "won")  # go on with the word before, in these models


def build_two_selectors(
    family: str = "bert", selectors: dict[str, dict[str, object]] | None = None, **config: object
) -> HardKumaModel:
    """A tiny random model whose selectors are called meaning and entities, with gates of words.

    Args:
        selectors: what is to be other than in `TWO_SELECTORS`, by the selector's name.
    """
    from hardkuma.batch_hardkuma import CONTINUES

    changed, known = selectors or {}, TWO_SELECTORS["selectors"]
    names = changed if len(changed) > 1 else known  # in the order of whoever names both
    both = {name: {**known[name], **changed.get(name, {})} for name in names}
    model = build_model(family, selectors=both, **config)
    if model.gate_head.roles is not None:
        model.gate_head.roles[model.tokenizer.convert_tokens_to_ids(list(CONTINUING))] = CONTINUES
    return model


@pytest.fixture
def make_two() -> Callable[..., HardKumaModel]:
    """make_two(family, **config): a tiny random model with two selectors of words."""
    return build_two_selectors


@pytest.fixture
def make_model() -> Callable[..., HardKumaModel]:
    """make_model(family, **config): a tiny random model."""
    return build_model


@pytest.fixture
def tokenize() -> Callable[..., dict[str, torch.Tensor]]:
    def tokenize(model: HardKumaModel, texts: list[str], **kwargs: object) -> dict[str, torch.Tensor]:
        return dict(model.tokenizer(texts, padding=True, return_tensors="pt", **kwargs))

    return tokenize


@pytest.fixture(scope="session")
def minilm() -> HardKumaModel:
    """Fresh gates on the embedded MiniLM. Not to be changed."""
    import torch

    from hardkuma import HardKumaModel

    torch.manual_seed(0)
    return HardKumaModel.from_encoder("sentence-transformers/all-MiniLM-L6-v2").eval()


def make_site(site: Path, names: list[str], bare: tuple[str, ...] = ()) -> Path:
    """A folder of installed packages that holds these, what they require, and nothing else.

    Args:
        bare: packages that come without what they require, as with `pip install --no-deps`.
    """
    seen, todo = set(), [*names, *bare]
    while todo:
        name = re.sub(r"[-_.]+", "-", todo.pop()).lower()
        if name in seen:
            continue
        seen.add(name)
        try:
            found = metadata.distribution(name)
        except metadata.PackageNotFoundError:  # a requirement of another platform
            continue
        if name not in bare:
            todo += [re.match(r"[\w.-]+", line).group() for line in found.requires or [] if "extra ==" not in line]
        for top in {file.parts[0] for file in found.files or [] if file.parts[0] not in ("..", "__pycache__")}:
            if not (site / top).exists():
                (site / top).symlink_to(found.locate_file(top))
    return site


@pytest.fixture(scope="session")
def bare_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """torch, transformers, what those two require, and nothing else."""
    return make_site(tmp_path_factory.mktemp("site"), ["torch", "transformers"])


@pytest.fixture(scope="session")
def forks() -> Iterator[ForkServer]:
    """Forks of an interpreter that has imported torch, transformers and what training needs, and nothing of ours."""
    with ForkServer(imports=f"{IMPORTS}\n{TRAINING}") as server:
        yield server


@pytest.fixture(scope="session")
def bare_forks(bare_site: Path) -> Iterator[ForkServer]:
    """Forks of an interpreter for which only torch and transformers are installed (-S: no site-packages but ours)."""
    with ForkServer("-S", environment={**os.environ, "PYTHONPATH": str(bare_site)}) as server:
        yield server


@pytest.fixture(autouse=True)
def _seeded() -> Iterator[None]:
    import torch

    torch.manual_seed(0)
    yield


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """The whole suite runs in two workers; `-n 0`, `-p no:xdist` or the name of a file keep it in one process."""
    whole = config.args_source is not pytest.Config.ArgsSource.ARGS and not hasattr(config, "workerinput")
    if whole and config.pluginmanager.hasplugin("xdist") and config.option.numprocesses is None:
        config.option.numprocesses, config.option.dist = min(WORKERS, os.cpu_count() or 1), "loadgroup"


def pytest_configure(config: pytest.Config) -> None:
    """A worker goes by the command line, which does not name the distribution; so tell it that there are groups."""
    if hasattr(config, "workerinput"):
        config.option.loadgroup = True


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist looks for groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        fixtures = getattr(item, "fixturenames", ())
        for name in SHARED:
            if name in fixtures:
                item.add_marker(pytest.mark.xdist_group(name))
        if SHAP.search(item.nodeid):
            item.add_marker(pytest.mark.xdist_group("shap"))
            item.add_marker(pytest.mark.slow)
        if PROCESSES.intersection(fixtures) or SLOW.search(item.nodeid):
            item.add_marker(pytest.mark.slow)
    # Slow ones first, so that no worker is left alone with one at the end.
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


def pytest_collection_finish() -> None:
    """Collections of garbage, which training asks for again and again, pass over what was imported."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    shutil.rmtree(MODULES, ignore_errors=True)
