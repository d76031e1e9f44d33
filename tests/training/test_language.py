"""What a run learns of the language of its text."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModel, BertConfig

from hardkuma import HardKumaModel
from hardkuma.__main__ import main
from hardkuma.scoring_hardkuma import gate_records, score_texts
from hardkuma.training import language as module
from hardkuma.training.language import learn_function_words, learn_words, set_language
from hardkuma.training.recipe import load_recipe
from hardkuma.words_hardkuma import ENGLISH, FUNCTION, Language, find_words
from tests.conftest import make_tokenizer

ROOT = Path(__file__).resolve().parents[2]
CONTENT = "casa perro libro noche mesa calle lluvia puente ciudad tren".split()  # noqa: SIM905
GRAMMAR = "el que en por".split()  # noqa: SIM905


def spanish(number: int) -> list[str]:
    """Sentences of which every second word is a function word."""
    draw = random.Random(0)
    return [
        " ".join(draw.choice(GRAMMAR) if i % 2 else f"{draw.choice(CONTENT)}{draw.choice('abcdefgh')}" for i in range(8))
        for _ in range(number)
    ]


def test_words_of_a_script_without_spaces_are_learned() -> None:
    draw = random.Random(0)
    known = ["我们", "喜欢", "北京", "图书馆", "的", "在"]
    texts = ["".join(draw.choices(known, k=6)) + "。" for _ in range(200)]
    learned = learn_words(texts, make_tokenizer())
    assert learned.scripts == "cjk" and learned.function_words == ENGLISH.function_words
    text = "图书馆在北京的我们"
    ends = {end for _, end in find_words(text, learned)}
    assert ends <= {3, 4, 6, 7, 9} and 3 in ends and len(ends) > 2, "no word is cut in two"
    assert learn_words(texts, make_tokenizer()) == learned
    mixed = learn_words(["Rain fell on the town.", "Дождь шёл всю ночь."] * 5, make_tokenizer())
    assert mixed.lexicon == "" and mixed.scripts.split() == ["latin", "cyrillic"]
    stray = learn_words([*["Rain fell on the town all night, and nobody slept."] * 300, *["東京大"] * 3], make_tokenizer())
    assert (stray.lexicon, stray.scripts) == ("", "latin"), "a few characters are no text"


def test_words_of_the_vocabulary_need_not_be_frequent() -> None:
    tokenizer = make_tokenizer()
    texts = ["他说喜欢茶", "他说雨大"]
    assert "喜欢" not in learn_words(texts * 2, tokenizer).lexicon.split()
    tokenizer.add_tokens(["喜欢"])
    assert "喜欢" in learn_words(texts * 2, tokenizer).lexicon.split()


class _Scored:
    """Gates of .9 for words of content, .1 for function words."""

    def __init__(self, text: str):
        self.text, self.words = text, find_words(text)
        self.probabilities = [0.1 if self.word(i) in GRAMMAR else 0.9 for i in range(len(self.words))]

    def word(self, number: int) -> str:
        return self.text[slice(*self.words[number])]


def test_function_words_are_frequent_and_have_low_gates(monkeypatch: pytest.MonkeyPatch, make_model: Callable) -> None:
    model, texts = make_model(), spanish(1200)
    monkeypatch.setattr(module, "score_texts", lambda model, texts, **options: [_Scored(text) for text in texts])
    assert set(learn_function_words(model, texts).function_words.split()) == set(GRAMMAR)
    little = learn_function_words(model, texts[:900])
    assert little.function_words == "", "too little text"
    foreign = " ".join(CONTENT)
    assert little.note(foreign, find_words(foreign)) is None, "a head that knows no function words says nothing by them"
    assert ENGLISH.note(foreign, find_words(foreign)) is not None
    english = ["This is the house of my friends, and it was built by them."] * 1200
    assert learn_function_words(model, english).function_words == ENGLISH.function_words
    # Where gates are high, a word must be in more sentences.
    monkeypatch.setattr(_Scored, "word", _Scored.word)
    monkeypatch.setattr(module, "BAR", 1.0)
    assert "casaa" not in learn_function_words(model, texts).function_words.split()


def test_a_language_belongs_to_the_checkpoint(make_model: Callable, tmp_path: Path) -> None:
    word = {"meaning": {"unit": "word", "reads": ["state"]}}
    model: HardKumaModel = make_model(selectors=word)
    number = model.tokenizer.convert_tokens_to_ids("paris")
    assert model.gate_head.token_roles[number] == 0
    set_language(model, Language(function_words="paris", lexicon="北京", scripts="latin cjk"))
    assert model.gate_head.token_roles[number] == FUNCTION
    model.save_pretrained(tmp_path)
    again = HardKumaModel.from_pretrained(tmp_path).eval()
    assert again.config.language == model.config.language and torch.equal(
        again.gate_head.token_roles, model.gate_head.token_roles
    )
    record = gate_records(again, ["北京 paris"])[0]
    assert [item["word"] for item in record["words"]] == ["北京", "paris"] and "note" not in record
    assert score_texts(again, ["北京 paris"])[0].roles == [0, FUNCTION]
    plain = make_model().config.to_dict()["language"]
    assert plain is None, "English is what there is without it"


@pytest.fixture
def multilingual(tmp_path: Path) -> Path:
    """A tiny random encoder with a unigram vocabulary of four scripts, as SentencePiece makes it."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    pieces = [
        "▁",
        *"abcdefghijklmnopqrstuvwxyz.,。的是在和中国北京我们喜欢читаюкнигу",
        "▁the",
        "▁el",
        "▁que",
        "北京",
        "中国",
    ]
    vocabulary = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    vocabulary += [(piece, -2.0 - 0.01 * i) for i, piece in enumerate(dict.fromkeys(pieces))]
    backend = Tokenizer(models.Unigram(vocabulary, unk_id=3))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)])
    special: dict[str, Any] = {"pad_token": "<pad>", "unk_token": "<unk>", "cls_token": "<s>", "sep_token": "</s>"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, model_max_length=64, **special)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=37,
        max_position_embeddings=64,
        pad_token_id=1,
    )
    AutoModel.from_config(config).save_pretrained(tmp_path / "encoder")
    tokenizer.save_pretrained(tmp_path / "encoder")
    return tmp_path / "encoder"


def test_the_recipe_for_other_languages(multilingual: Path, tmp_path: Path) -> None:
    recipe = load_recipe(ROOT / "recipes" / "language.yaml", {})
    assert recipe.encoder.startswith("sentence-transformers/") and list(recipe.selectors) == ["meaning", "entities"]
    draw = random.Random(0)
    words = ["我们", "喜欢", "北京", "中国", "的", "在", "和"]
    lines = ["".join(draw.choices(words, k=10)) + "。" for _ in range(80)]
    (tmp_path / "zh.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    options = ["--data", str(tmp_path / "zh.txt"), "--encoder", str(multilingual), "--output", str(tmp_path / "out")]
    options += ["--selectors.meaning.train.sentences", "40", "--train.epochs", "1"]
    recipe_file = str(ROOT / "recipes" / "language.yaml")
    assert main(["train", recipe_file, *options]) == 1, "names cannot be learned from a script without capitals"
    assert main(["train", recipe_file, *options, "--selectors.entities", "null"]) == 0
    model = HardKumaModel.from_pretrained(tmp_path / "out" / "model").eval()
    assert model.config.language.scripts == "cjk" and {"北京", "中国"} <= set(model.config.language.lexicon.split())
    record = gate_records(model, ["我们在北京和中国"])[0]
    assert "".join(word["word"] for word in record["words"]) == record["text"] and len(record["words"]) < 8
    assert record["spans"] and "note" not in record
    assert "note" in gate_records(model, ["The train is late."])[0]


def test_adapt_learns_function_words(make_two: Callable, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = make_two()
    before.save_pretrained(tmp_path / "two")
    (tmp_path / "es.txt").write_text("\n".join(spanish(1100)) + "\n", encoding="utf-8")
    words = ["adapt", "--function-words", "--model", str(tmp_path / "two"), "--data", str(tmp_path / "es.txt"), "--quiet"]
    assert main([*words, "--output", str(tmp_path / "out")]) == 0
    after = HardKumaModel.from_pretrained(tmp_path / "out")
    learned = after.config.language.function_words
    assert learned in capsys.readouterr().out and set(GRAMMAR) <= set(learned.split())
    same = {name for name, tensor in after.state_dict().items() if torch.equal(tensor, before.state_dict()[name])}
    assert set(after.state_dict()) - same <= {"gate_head.token_roles"}, "gates and forms stay"
