"""Every view against a case worked by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertForMaskedLM

from hardkuma import HardKumaModel
from hardkuma.configuration_hardkuma import MEANING
from hardkuma.evaluation.baselines import SentenceEncoder
from hardkuma.kumaraswamy_hardkuma import Kumaraswamy
from hardkuma.training.encoder.scorers import score_sentences
from hardkuma.training.encoder.sentence import Sentence, read_sentences
from hardkuma.training.encoder.views import AUGMENTATIONS, lowest, make_augmentation, number_to_drop
from tests.evaluation.baselines.test_attention import eager_attentions, naive_received, naive_rollout
from tests.toy import toy_tokenizer, toy_transformer

BEAR = "A brown bear is eating a small fish."
TOKENIZER = toy_tokenizer(["a", "brown", "bear", "is", "eating", "small", "fish", ".", "ex", "##cel", "##lent"])
# Of the least attention first: small, brown, the second a, fish. [CLS] a brown bear is eating a small fish . [SEP]
BEAR_SCORES = [20.0, 7.0, 2.0, 9.0, 6.0, 8.0, 3.0, 1.0, 4.0, 5.0, 30.0]
EXCELLENT = "a excellent fish"  # tokens: [CLS] a ex ##cel ##lent fish [SEP]


def sentence_of(text: str, **scores: list[float]) -> Sentence:
    sentence = read_sentences(TOKENIZER, [text], 64)[0]
    return Sentence(sentence.ids, sentence.words, {**sentence.scores, **{k: np.array(v) for k, v in scores.items()}})


def shown(sentence: Sentence) -> str:
    return " ".join(TOKENIZER.convert_ids_to_tokens(sentence.ids.tolist())[1:-1])


def draw(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.mark.parametrize("name", ["attention_naive", "attention_rollout"])
def test_brown_bear(name: str) -> None:
    """The example of Attention-Driven Dropout: k = 0 to 4 of nine words and marks, eleven tokens."""
    measure = AUGMENTATIONS[name].measure
    sentence = sentence_of(BEAR, **{measure: BEAR_SCORES})
    expected = [
        "a brown bear is eating a small fish .",
        "a brown bear is eating a fish .",
        "a bear is eating a fish .",
        "a bear is eating fish .",
        "a bear is eating .",
    ]
    for k, text in enumerate(expected):
        view = make_augmentation({name: {"k": k, "t": 8}})(sentence, draw())
        assert shown(view) == text
        # Packed: [SEP] follows at once, positions are counted anew, and padding is all on the right.
        assert view.ids[-1] == TOKENIZER.sep_token_id and len(view) == 11 - k and view.positions is None
    # Dynamic: floor(11 / 5) = 2 go. Fewer than t tokens: none.
    assert shown(make_augmentation({name: {"t": 5}})(sentence, draw())) == expected[2]
    assert shown(make_augmentation({name: {"k": 3, "t": 12}})(sentence, draw())) == expected[0]
    # k larger than the sentence: the most important word stays.
    assert shown(make_augmentation({name: {"k": 99, "t": 1}})(sentence, draw())) == "bear"


def test_number_to_drop() -> None:
    # Static: k from t tokens on. Dynamic: one for every t tokens.
    assert [number_to_drop(n, k=3, t=8) for n in (7, 8, 80)] == [0, 3, 3]
    assert [number_to_drop(n, t=8) for n in (7, 8, 15, 16, 80)] == [0, 1, 1, 2, 10]
    with pytest.raises(ValueError, match="attention_naive: t must be a whole number >= 1, got 0"):
        make_augmentation({"attention_naive": {"t": 0}})


def test_worked_example_with_special_tokens() -> None:
    """[CLS] a brown bear is fish [SEP], 7 tokens, with attention 9 4 1 5 2 3 0: by hand, k = 2 drops "brown" and "is"."""
    sentence = sentence_of("a brown bear is fish", attention=[9.0, 4.0, 1.0, 5.0, 2.0, 3.0, 0.0])
    view = make_augmentation({"attention_naive": {"k": 2, "t": 5}})(sentence, draw())
    assert view.ids.tolist() == sentence.ids[[0, 1, 3, 5, 6]].tolist()
    assert make_augmentation({"attention_naive": {"t": 3}})(sentence, draw()).ids.tolist() == view.ids.tolist()
    # As in the reference implementation [SEP] may go: it has the lowest attention.
    open_to_all = make_augmentation({"attention_naive": {"k": 2, "t": 5, "keep_special": False}})(sentence, draw())
    assert open_to_all.ids.tolist() == sentence.ids[[0, 1, 3, 4, 5]].tolist()
    assert len(make_augmentation({"attention_naive": {"k": 2, "t": 8}})(sentence, draw())) == 7


def test_lowest_keeps_what_may_not_go() -> None:
    assert lowest(np.array([0.0, 1.0, 2.0]), np.array([False, True, True]), 5).tolist() == [False, True, True]


@pytest.mark.parametrize("name", ["attention_naive", "attention_rollout"])
def test_attention_is_the_encoder_s(name: str) -> None:
    encoder = toy_transformer(["the", "of", "in", "museum", "opened", "paris", "rains", "it", ".", "a", "b", "c"])
    texts = ["the museum opened in Paris .", "it rains", "a b c the museum of Paris in a b c"]
    measure = AUGMENTATIONS[name].measure
    sentences = score_sentences(encoder, texts, read_sentences(encoder.tokenizer, texts, 64), [measure])
    for text, sentence in zip(texts, sentences, strict=True):
        attentions = eager_attentions(encoder, text)
        values = naive_received(attentions) if measure == "attention" else naive_rollout(attentions, True)
        assert sentence.scores[measure] == pytest.approx(values, abs=1e-4)
        gone = sorted(range(1, len(values) - 1), key=lambda i: values[i])[: len(values) // 3]
        view = make_augmentation({name: {"t": 3}})(sentence, draw())
        assert view.ids.tolist() == [token for i, token in enumerate(sentence.ids) if i not in gone]
        # What is left is what the tokenizer makes of the words that are left: packed, and embedded alike.
        rest = encoder.tokenizer.decode(view.ids[1:-1].tolist())
        assert encoder.tokenizer(rest)["input_ids"] == view.ids.tolist()


def test_lowest_gates_drop_words_whole() -> None:
    """Three words; the middle one has three tokens and the lowest gate."""
    gates = [0.0, 0.4, 0.2, 0.2, 0.2, 0.9, 0.0]
    sentence = sentence_of(EXCELLENT, gates=gates)
    assert shown(make_augmentation({"lowest_gates": {"k": 1, "t": 1}})(sentence, draw())) == "a fish"
    assert shown(make_augmentation({"lowest_gates": {"t": 3}})(sentence, draw())) == "fish"  # floor(7 / 3) = 2
    assert shown(make_augmentation({"lowest_gates": {"k": 7, "t": 1}})(sentence, draw())) == "fish"


def test_sampled_gates_follow_their_distribution() -> None:
    """Of two words one goes: the first with the probability that its gate is below the other's, by integration."""
    alpha, beta = [0.5, 2.0], [2.0, 1.0]
    shapes = [[1, 1], [alpha[0], beta[0]], [alpha[1], beta[1]], [1, 1]]
    sentence = sentence_of("bear fish", gates=[0.0, 0.1, 0.9, 0.0], gate_shapes=shapes)
    view = make_augmentation({"sampled_gates": {"k": 1, "t": 1}})
    seen = [shown(view(sentence, draw(seed))) for seed in range(2000)]
    u = (torch.arange(20000, dtype=torch.float64) + 0.5) / 20000
    first, second = (Kumaraswamy(torch.tensor(a), torch.tensor(b)) for a, b in zip(alpha, beta, strict=True))
    expected = float((first.cdf(u) * second.log_prob(u).exp()).mean())
    assert 0.6 < expected < 0.95
    assert seen.count("fish") / 2000 == pytest.approx(expected, abs=0.03)


def test_random_deletion_is_even() -> None:
    sentence = sentence_of("brown bear is eating")  # six tokens
    view = make_augmentation({"random_deletion": {"k": 1, "t": 1}})
    seen = [shown(view(sentence, draw(seed))) for seed in range(400)]
    left = {"bear is eating", "brown is eating", "brown bear eating", "brown bear is"}
    assert set(seen) == left and all(70 < seen.count(text) < 130 for text in left)
    assert shown(view(sentence, draw(3))) == shown(view(sentence, draw(3)))
    # All would go: the longest word stays, "eating".
    assert shown(make_augmentation({"random_deletion": {"k": 9, "t": 1}})(sentence, draw())) == "eating"


def test_cropping_keeps_a_run_of_words() -> None:
    sentence = sentence_of(BEAR)  # nine words and marks: floor(.25 x 9) = 2 go
    words = shown(sentence).split()
    seen = {shown(make_augmentation({"cropping": {"rate": 0.25}})(sentence, draw(seed))) for seed in range(60)}
    assert seen == {" ".join(words[first : first + 7]) for first in (0, 1, 2)}
    assert shown(make_augmentation({"cropping": {"rate": 1}})(sentence, draw())) == "eating"
    # A word of several tokens is never cut.
    seen = {
        shown(make_augmentation({"cropping": {"rate": 0.67}})(sentence_of(EXCELLENT), draw(seed))) for seed in range(30)
    }
    assert seen == {"a", "ex ##cel ##lent", "fish"}


def test_repetition_doubles_words_in_place() -> None:
    seen = {shown(make_augmentation({"word_repetition": None})(sentence_of(EXCELLENT), draw(seed))) for seed in range(99)}
    # 0 to 2 of three words, in all ways.
    a, excellent, fish = "a", "ex ##cel ##lent", "fish"
    ways = [(1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 1, 2), (2, 2, 1), (2, 1, 2), (1, 2, 2)]
    assert seen == {" ".join([a] * i + [excellent] * j + [fish] * k) for i, j, k in ways}


def test_shuffling_deals_positions_of_words_alone() -> None:
    sentence = sentence_of("brown bear is")
    views = [make_augmentation({"token_shuffling": None})(sentence, draw(seed)) for seed in range(60)]
    assert all(view.ids.tolist() == sentence.ids.tolist() for view in views)
    orders = {tuple(view.positions.tolist()) for view in views}
    assert len(orders) == 6 and all(order[0] == 0 and order[4] == 4 for order in orders)


def test_shuffling_comes_last() -> None:
    """A view after it would count positions anew, as if nothing had been shuffled."""
    with pytest.raises(ValueError, match="token_shuffling must be named last, got token_shuffling, cropping: other views"):
        make_augmentation({"token_shuffling": None, "cropping": {"rate": 0.4}})
    chain = make_augmentation({"cropping": {"rate": 0.4}, "token_shuffling": None})
    views = [chain(sentence_of(BEAR), draw(seed)) for seed in range(20)]
    assert all(len(view) == 8 and sorted(view.positions) == list(range(8)) for view in views)
    assert any(view.positions.tolist() != list(range(8)) for view in views)


def test_cutoffs() -> None:
    sentence = sentence_of(EXCELLENT)  # five tokens of words: floor(.4 x 5) = 2
    cut = [make_augmentation({"token_cutoff": {"rate": 0.4}})(sentence, draw(seed)).cut_tokens for seed in range(50)]
    assert all(row.sum() == 2 and not row[0] and not row[-1] for row in cut) and len({tuple(row) for row in cut}) == 10
    # All of them: the longest word keeps its embeddings.
    everything = make_augmentation({"token_cutoff": {"rate": 1}})(sentence, draw()).cut_tokens
    assert everything.tolist() == [False, True, False, False, False, True, False]
    features = make_augmentation({"feature_cutoff": {"rate": 0.3}}, size=10)(sentence, draw()).cut_features
    assert features.shape == (10,) and features.sum() == 3
    with pytest.raises(ValueError, match="feature_cutoff: rate must be < 1"):
        make_augmentation({"feature_cutoff": {"rate": 1}}, size=10)


def test_views_one_after_the_other() -> None:
    sentence = sentence_of(BEAR, gates=BEAR_SCORES)
    chain = make_augmentation({"lowest_gates": {"k": 4, "t": 1}, "cropping": {"rate": 0.4}})
    assert chain.measures == ["gates"]
    seen = {shown(chain(sentence, draw(seed))) for seed in range(40)}  # a bear is eating . without two
    assert seen == {"a bear is", "bear is eating", "is eating ."}


def test_dropout_alone_changes_nothing_and_no_words_stay_no_words() -> None:
    sentence = sentence_of(BEAR)
    assert make_augmentation({"dropout": None})(sentence, draw()) is sentence
    empty = sentence_of("")
    for name in AUGMENTATIONS:
        options = {"model": "not loaded"} if name == "mlm_replacement" else None
        assert len(make_augmentation({name: options}, size=4)(empty, draw())) == 2


def test_masked_tokens_are_drawn_from_a_language_model(tmp_path: Path) -> None:
    """Of the tokens of words, floor(rate x tokens) are masked together; each gets a token by the model's chances."""
    torch.manual_seed(0)
    tokenizer = toy_tokenizer(["a", "brown", "bear", "is", "eating", "small", "fish", ".", "[MASK]"])
    tokenizer.mask_token = "[MASK]"
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        initializer_range=1.0,
    )
    model = BertForMaskedLM(config).eval()
    model.save_pretrained(tmp_path)
    sentence = read_sentences(tokenizer, [BEAR], 64)[0]
    view = make_augmentation({"mlm_replacement": {"model": str(tmp_path), "rate": 0.12}}, 4, tokenizer)
    drawn: dict[int, list[int]] = {}
    for seed in range(900):
        random = draw(seed)
        place = int(random.permutation(np.arange(1, 10))[0])  # floor(.12 x 9 tokens) = 1
        other = view(sentence, draw(seed))
        assert len(other) == len(sentence) and np.array_equal(np.delete(other.ids, place), np.delete(sentence.ids, place))
        drawn.setdefault(place, []).append(int(other.ids[place]))
    special = set(tokenizer.all_special_ids)
    assert len(drawn) == 9
    for place, ids in drawn.items():
        masked = sentence.ids.copy()
        masked[place] = tokenizer.mask_token_id
        logits = model(input_ids=torch.tensor(masked)[None]).logits[0, place]
        chances = {token: float(logits[token].exp()) for token in range(len(tokenizer)) if token not in special}
        expected = max(chances, key=lambda token: chances[token])
        share = chances[expected] / sum(chances.values())
        assert ids.count(expected) / len(ids) == pytest.approx(share, abs=4 * (0.25 / len(ids)) ** 0.5)
        assert not special & set(ids)
    assert view(sentence, draw(3)).ids.tolist() == view(sentence, draw(3)).ids.tolist(), "by the draw alone"


def test_a_language_model_that_does_not_fit_is_told(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="mlm_replacement: model must name a masked language model"):
        make_augmentation({"mlm_replacement": None})
    named = {"mlm_replacement": {"model": str(tmp_path)}}
    assert make_augmentation(named).measures == [], "nothing is loaded to check options"
    with pytest.raises(ValueError, match="no mask token"):
        make_augmentation(named, 4, TOKENIZER)
    tokenizer = toy_tokenizer(["a", "[MASK]"])
    tokenizer.mask_token = "[MASK]"
    with pytest.raises(ValueError, match="mlm_replacement: "):
        make_augmentation(named, 4, tokenizer)  # an empty folder
    config = BertConfig(vocab_size=99, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    BertForMaskedLM(config).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="has 99 tokens and the encoder"):
        make_augmentation(named, 4, tokenizer)


def test_unknown_names_are_told() -> None:
    with pytest.raises(ValueError, match="unknown augmentation 'synonyms'; known: dropout, attention_naive"):
        make_augmentation({"synonyms": None})
    with pytest.raises(ValueError, match="unknown option of lowest_gates 'rate'; known: k, t"):
        make_augmentation({"lowest_gates": {"rate": 0.5}})
    with pytest.raises(ValueError, match="cropping: rate must be in \\[0, 1\\], got 30"):
        make_augmentation({"cropping": {"rate": 30}})
    with pytest.raises(ValueError, match=r"lowest_gates takes options by name \(k, t\), got 0.3"):
        make_augmentation({"lowest_gates": 0.3})
    with pytest.raises(ValueError, match=r"dropout takes options by name \(it has none\), got 0.3"):
        make_augmentation({"dropout": 0.3})
    with pytest.raises(ValueError, match="unknown measure 'flow'; known: attention, rollout, gates"):
        score_sentences(toy_transformer(["a"]), ["a"], read_sentences(TOKENIZER, ["a"], 9), ["flow"])


def test_gates_are_those_of_meaning(make_two: object) -> None:
    model: HardKumaModel = make_two("bert")
    encoder, text = SentenceEncoder.from_model(model), "marie curie moved to paris in 1891 ."
    sentences = score_sentences(encoder, [text], read_sentences(model.tokenizer, [text], 40), ["gates"])
    out = model(**model.tokenizer([text], return_tensors="pt"), selector=MEANING)
    assert sentences[0].scores["gates"] == pytest.approx(out.gate_probs[0].detach().numpy(), abs=1e-5)
    shapes = torch.stack([out.alpha, out.beta], -1)[0].detach().numpy()
    assert sentences[0].scores["gate_shapes"] == pytest.approx(shapes, abs=1e-5)
    # Nothing of this would hold for the other selector, or with alpha and beta exchanged.
    other = model(**model.tokenizer([text], return_tensors="pt"), selector="entities")
    assert (out.gate_probs - other.gate_probs).abs().max() > 1e-3 and (out.beta - other.beta).abs().max() > 1e-3
    assert abs(shapes[:, 0] - shapes[:, 1]).max() > 1e-3
    with pytest.raises(ValueError, match="gates need a HardKuma model"):
        bare = toy_transformer(["a"])
        score_sentences(bare, ["a"], read_sentences(bare.tokenizer, ["a"], 9), ["gates"])


@pytest.mark.parametrize(
    ("view", "message"),
    [
        ({"random_deletion": {"t": 3.33}}, "random_deletion: t must be a whole number >= 1, got 3.33"),
        ({"lowest_gates": {"k": 1.5}}, "lowest_gates: k must be a whole number >= 0, got 1.5"),
        ({"random_deletion": {"k": True}}, "random_deletion: k must be a whole number >= 0, got True"),
        ({"random_deletion": {"k": -1}}, "random_deletion: k must be a whole number >= 0, got -1"),
        ({"random_deletion": {"t": None}}, "random_deletion: t must be a whole number >= 1, got None"),
        ({"cropping": {"rate": "half"}}, r"cropping: rate must be in \[0, 1\], got 'half'"),
    ],
)
def test_options_that_would_fail_in_training_are_refused_before(view: dict, message: str) -> None:
    """`t: 3.33` passed all checks, and the first batch ended in a TypeError."""
    with pytest.raises(ValueError, match=message):
        make_augmentation(view)
