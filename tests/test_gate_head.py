"""Selectors and gates against their equations, written out; the decision against a loop that reads like its description;
`keep=` and the faithfulness of an answer against encodings made apart from the search."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import combinations
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hardkuma import HardKumaConfig, HardKumaModel, load_released
from hardkuma.batch_hardkuma import PUNCTUATION
from hardkuma.configuration_hardkuma import READS, SelectorConfig
from hardkuma.evaluation.baselines.encoder import SentenceEncoder
from hardkuma.evaluation.baselines.words import WordScores
from hardkuma.evaluation.faithfulness import faithfulness
from hardkuma.gate_head_hardkuma import PREFIXES, SPARED, Selector, WordRows, count_at_rate, decide, keep_words, share_gates
from hardkuma.words_hardkuma import FUNCTION, LINK, NEGATION, NUM_SURFACE_CLASSES
from tests.conftest import SENTENCES
from tests.norms import with_unequal_norms

CLAMPED = HardKumaConfig(concentration_bound="clamp")


# ---- one selector -------------------------------------------------------------------------------------------------------


def test_selector_equation() -> None:
    """softplus(W2 gelu(W1 x)) + 1, clamped to [1, 10], against the written-out form."""
    selector = Selector(CLAMPED, inputs=7, hidden_size=5)
    with torch.no_grad():
        selector.shapes.weight.mul_(100)
    x, scalar = torch.randn(2, 3, 6), torch.randn(2, 3, 1)
    alpha, beta = selector(selector.join([x, scalar]))
    y = torch.cat([x, scalar], dim=-1)
    y = torch.nn.functional.gelu(y @ selector.hidden.weight.T + selector.hidden.bias)
    y = torch.nn.functional.softplus(y @ selector.shapes.weight.T + selector.shapes.bias) + 1
    expected = y.clamp(1, 10)
    assert torch.allclose(torch.stack([alpha, beta], -1), expected, atol=1e-5)
    assert bool((expected == 10).any()), "the clamp is exercised"


@pytest.mark.parametrize(("low", "high"), [(1.0, 10.0), (0.05, 100.0)])
def test_smooth_bound_keeps_a_gradient(low: float, high: float) -> None:
    selector = Selector(HardKumaConfig(concentration_min=low, concentration_max=high), inputs=1, hidden_size=1)
    with torch.no_grad():  # gelu(x + 1000) - 1000 is x
        for linear, bias in ((selector.hidden, 1000.0), (selector.shapes, -1000.0)):
            linear.weight.fill_(1.0)
            linear.bias.fill_(bias)
    x = torch.tensor([-50.0, -5.0, 0.0, 5.0, 50.0, 500.0], requires_grad=True)
    alpha, _ = selector(x[:, None])
    s = torch.nn.functional.softplus(x)
    assert torch.allclose(alpha, low + (high - low) * s / (high - low + s), rtol=1e-4)
    assert bool((alpha >= low).all()) and bool((alpha <= high).all()) and bool((alpha.diff() >= 0).all())
    (gradient,) = torch.autograd.grad(alpha.sum(), x)
    assert bool((gradient[1:] > 0).all()), "a clamp would have none at 500"


def test_selector_is_fp32_in_any_dtype() -> None:
    selector = Selector(HardKumaConfig(), inputs=4, measures=2).to(torch.bfloat16)
    x = selector.join([torch.randn(1, 2, 4, dtype=torch.bfloat16)], torch.randn(1, 2, 2, dtype=torch.bfloat16))
    assert x.dtype == torch.float32 and {shape.dtype for shape in selector(x)} == {torch.float32}


def test_measures_against_the_equation() -> None:
    """W2 gelu(W1 x) + W3 z, with z = asinh of the standardised measures, which are the last numbers of x."""
    selector = Selector(CLAMPED, inputs=6, measures=2, hidden_size=5)
    selector.center.copy_(torch.tensor([1.0, -2.0]))
    selector.spread.copy_(torch.tensor([0.5, 3.0]))
    vectors, measures = torch.randn(1, 4, 6), 5 * torch.randn(1, 4, 2)
    alpha, beta = selector(selector.join([vectors], measures))
    for word in range(4):
        z = torch.asinh((measures[0, word] - torch.tensor([1.0, -2.0])) / torch.tensor([0.5, 3.0]))
        hidden = selector.hidden.weight @ torch.cat([vectors[0, word], z]) + selector.hidden.bias
        y = selector.shapes.weight @ torch.nn.functional.gelu(hidden) + selector.shapes.bias
        y = y + selector.direct.weight @ z + selector.direct.bias
        expected = (torch.nn.functional.softplus(y) + 1).clamp(max=10)
        assert torch.allclose(torch.stack([alpha[0, word], beta[0, word]]), expected, atol=1e-5)


@torch.no_grad()
def test_the_hidden_layer_is_called_as_a_module(make_two: Callable, tokenize: Callable) -> None:
    """Whoever puts a hook on it sees all that is read, and whoever puts something in its place (offloading) is asked."""
    model = make_two()
    inputs = tokenize(model, ["marie curie moved to paris", "paris"])
    expected = model(**inputs)
    hidden = model.gate_head.selectors[0].hidden
    seen: list[int] = []
    hook = hidden.register_forward_hook(lambda module, args, output: seen.append(args[0].shape[-1]))
    assert torch.equal(model(**inputs).gate_probs, expected.gate_probs) and seen == [hidden.in_features]
    hook.remove()
    hidden.forward = lambda x: torch.zeros(*x.shape[:-1], hidden.out_features)
    assert not torch.allclose(model(**inputs).alpha[:, 0], expected.alpha[:, 0])


# ---- the gates of words -------------------------------------------------------------------------------------------------


@torch.no_grad()
def test_gates_against_a_loop(make_two: Callable, tokenize: Callable) -> None:
    """logit p(w) = l_w + rate shift + form + backoff (1 - largest) (logit of w in meaning), by row and word."""
    changed = {"meaning": {"form_weight": 0.4}, "entities": {"backoff": 2.0, "layer": 1}}
    model = with_unequal_norms(make_two(selectors=changed))
    head, inputs = model.gate_head, tokenize(model, [*SENTENCES, ""])
    head.rate_shift.copy_(torch.tensor([-0.6, 0.9]))
    head.surface_log_odds.normal_()
    forms = torch.randint(0, NUM_SURFACE_CLASSES, inputs["input_ids"].shape)
    out = model(**inputs, surface_ids=forms)
    alone = model(**inputs, surface_ids=forms, selector="entities")
    assert torch.equal(alone.gate_probs, out.gate_probs[:, 1]), "meaning is read along where it is not asked for"
    batch = model.prepare(**inputs)
    assert bool((out.gate_probs[:, :, 0] == 0).all()), "[CLS] cannot be selected"
    meaning = head.log_odds(0, model.selector_inputs(0, **inputs, surface_ids=forms)[0]) + head.rate_shift[0]
    for k, name in enumerate(("meaning", "entities")):
        config = model.config.selectors[name]
        x, counts = model.selector_inputs(k, **inputs, surface_ids=forms)
        for row, read in enumerate(head.log_odds(k, x).split(counts.tolist())):
            words: list[list[int]] = []
            for place in batch.content[row].nonzero().flatten().tolist():
                words[-1].append(place) if batch.continues[row, place] else words.append([place])
            assert len(words) == len(read)
            carried = meaning.split(counts.tolist())[row].tolist()
            logits = [float(value + head.rate_shift[k]) for value in read]
            largest = max((1 / (1 + math.exp(-logit)) for logit in logits), default=0.0)
            for word, logit, weight in zip(words, logits, carried, strict=True):
                logit += config.backoff * (1 - largest) * weight
                logit += config.form_weight * float(head.surface_log_odds[k, forms[row, word[0]]])
                probs = out.gate_probs[row, k, word]
                assert torch.allclose(probs, torch.tensor(1 / (1 + math.exp(-logit))), atol=1e-5)


def test_parts_divide_the_gate_of_meaning(make_model: Callable, tokenize: Callable) -> None:
    """p(part k selects w) = p(meaning selects w) softmax_k(log-odds of the parts), whichever selectors are asked for."""
    part = {"unit": "part", "reads": ["input"]}
    selectors = {"a": part, "meaning": {"unit": "word"}, "b": part, "c": part}
    model = make_model(selectors=selectors)
    batch = tokenize(model, ["marie curie moved to paris", "paris"])
    parts = [0, 2, 3]
    with torch.no_grad():
        for parameter in model.gate_head.parameters():
            parameter.copy_(torch.randn_like(parameter))
        model.gate_head.rate_shift[1] = -0.7
        probs = model(**batch).gate_probs
        content = model.prepare(**batch).content
        read = torch.stack([model.gate_head.log_odds(k, model.selector_inputs(k, **batch)[0]) for k in range(4)])
        expected = torch.sigmoid(read[1] - 0.7) * read[parts].softmax(0)
        assert torch.allclose(probs[:, parts].transpose(0, 1)[:, content], expected, atol=1e-5)
        assert torch.allclose(probs[:, parts].sum(1), probs[:, 1], atol=1e-5)
        for number, name in enumerate(selectors):
            assert torch.allclose(model(**batch, selector=name).gate_probs, probs[:, number], atol=1e-6), name
            assert torch.allclose(model.gate_probabilities(**batch, selector=name), probs[:, number], atol=1e-6), name
        both = model(**batch, selector=["c", "meaning"]).gate_probs
        assert torch.allclose(both, probs[:, [3, 1]], atol=1e-6)
        model.gate_head.rate_shift[2] = 1.5
        shifted = model(**batch).gate_probs
    assert torch.equal(shifted[:, 0], probs[:, 0]), "a part's rate is its own"
    moved = torch.logit(shifted[:, 2][content]) - torch.logit(probs[:, 2][content])
    assert torch.allclose(moved, torch.tensor(1.5), atol=1e-3)


def test_selectors_learn_together_as_each_alone(make_two: Callable, tokenize: Callable) -> None:
    """The loss of both is the sum of those of each, and so are the gradients, but for what compares selectors."""
    model = make_two().train()
    inputs = tokenize(model, ["marie curie moved to paris", "paris"])
    noise = torch.rand(2, 2, inputs["input_ids"].shape[1])
    model(**inputs, noise=noise, return_loss=True).loss.backward()
    together = {name: p.grad.clone() for name, p in model.gate_head.named_parameters()}
    model.zero_grad()
    for k, name in enumerate(("meaning", "entities")):
        model(**inputs, noise=noise[:, k : k + 1], selector=name, return_loss=True).loss.backward()
    assert all(bool(gradient.any()) for name, gradient in together.items() if name.endswith("hidden.weight"))
    for name, parameter in model.gate_head.named_parameters():
        torch.testing.assert_close(together[name], parameter.grad, atol=1e-6, rtol=1e-4)


class LargestTensor(TorchDispatchMode):
    """How many numbers the largest tensor has that any operation returns."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.numbers = max([self.numbers, *(leaf.numel() for leaf in tree_leaves(result) if isinstance(leaf, Tensor))])
        return result


@pytest.mark.parametrize("unit", ["token", "word", "name"])
@torch.no_grad()
def test_no_tensor_of_the_head_is_quadratic_in_the_length(unit: str, make_model: Callable) -> None:
    every = {"reads": list(READS), "unit": unit, "hidden_size": 16}
    selectors = {"meaning": every, "part": {"unit": "part"}} if unit != "token" else {"meaning": every}
    model = make_model("hardkuma_static", selectors=selectors)
    if model.gate_head.roles is not None:
        model.gate_head.roles[::3] = 1
    largest = {}
    for length in (64, 512):
        ids = torch.randint(4, model.config.vocab_size, (1, length))
        batch = model.prepare(ids, surface_ids=torch.ones_like(ids))
        chosen = list(range(len(selectors)))
        encoded = model.encode_batch(batch, layers=[0], attention=True)
        with LargestTensor() as watch:
            words = model.gate_head(encoded, batch, chosen, model.get_input_embeddings())
            probs = words.probabilities(0.5)
            configs = [model.config.selector(k) for k in chosen]
            words.spread(words.decide(probs, configs, 0.5, rate=0.3))
            words.spread(words.decide(probs, configs, 0.999))
        largest[length] = watch.numbers
    assert largest[64] >= 64 * 32 and largest[512] < 8.2 * largest[64]
    assert largest[512] < 512**2


# ---- which words are selected -------------------------------------------------------------------------------------------


@torch.no_grad()
def test_punctuation_is_not_counted_unless_it_is_all(make_two: Callable, tokenize: Callable) -> None:
    model = make_two(decision_threshold=0.999)
    marks = model.tokenizer.convert_tokens_to_ids([".", ",", "!", "?"])
    model.gate_head.token_roles[marks] = PUNCTUATION
    inputs = tokenize(model, ["paris , london .", "! ?"])
    is_mark = torch.isin(inputs["input_ids"], torch.tensor(marks))[:, None]
    at_rate, by_threshold = model(**inputs, rate=1.0).gates, model(**inputs).gates
    assert at_rate[0].sum(-1).tolist() == [2.0, 2.0] and not (at_rate * is_mark)[0].any()
    assert at_rate[1].sum(-1).tolist() == [2.0, 2.0], "where there is nothing else, it is"
    assert by_threshold[:, 0].sum(-1).tolist() == [1.0, 1.0] and not (by_threshold * is_mark)[0].any()
    assert not by_threshold[:, 1].any(), "names there may be none"


# ---- the decision -------------------------------------------------------------------------------------------------------


THRESHOLD = 0.5
Word = tuple[float, float, int, bool]  # probability, weight, role, whether it joins the word before


def rows(words: list[Word], padding: int = 0) -> WordRows:
    """One row of words, with so many empty places behind it."""
    probs, weights, roles, joins = zip(*[*words, *[(0.0, 0.0, 0, False)] * padding], strict=True)
    among = [True] * len(words) + [False] * padding
    tensors = [torch.tensor([values]) for values in (probs, weights, among, roles, joins)]
    return WordRows(*tensors)


def select(words: list[Word], selector: SelectorConfig, padding: int = 0, **options: Any) -> list[int]:
    found = decide(rows(words, padding), selector, THRESHOLD, **options)[0]
    return found.nonzero().flatten().tolist()


# ---- the rule, as a loop -------------------------------------------------------------------------------------------------


def with_links(members: set[int], words: list[Word]) -> set[int]:
    links = set()
    for first in sorted(members):
        for gap in (1, 2):
            between = list(range(first + 1, first + 1 + gap))
            after = first + gap + 1
            if after in members and all(i < len(words) and words[i][2] == LINK and i not in members for i in between):
                links |= set(between) if all(words[i][3] for i in [*between, after]) else set()
    return members | links


def runs_of(members: set[int], words: list[Word]) -> list[list[int]]:
    runs: list[list[int]] = []
    for i in sorted(members):
        if runs and runs[-1][-1] == i - 1 and words[i][3]:
            runs[-1].append(i)
        else:
            runs.append([i])
    return runs


def expected(words: list[Word], selector: SelectorConfig, rate: float | None, threshold: float | None) -> list[int]:
    everything = range(len(words))
    of_words = selector.unit in ("word", "name")
    content = [i for i in everything if not of_words or words[i][2] == 0 or words[i][0] > THRESHOLD]
    ranked = sorted(everything, key=lambda i: (i not in content, -words[i][0]))
    if selector.unit == "name":
        likely = {i for i in content if words[i][0] > 0.7 * THRESHOLD}
        runs = [run for run in runs_of(with_links(likely, words), words) if any(words[i][0] > THRESHOLD for i in run)]
        if rate is None:
            bar = THRESHOLD if threshold is None else threshold
            chosen = {i for i in everything if words[i][0] > bar}
            return sorted(chosen | {i for run in runs if set(run) & chosen for i in run})
        inside = {i: run for run in runs for i in run}
        best = {id(run): min(ranked.index(i) for i in run) for run in runs}
        count, chosen = count_at_rate(len(words), rate), set()
        for i in sorted(everything, key=lambda i: best[id(inside[i])] if i in inside else ranked.index(i)):
            if i not in chosen and len(chosen) < count:
                chosen |= set(inside.get(i, [i]))
        return sorted(chosen)
    if rate is not None:
        return sorted(ranked[: count_at_rate(len(words), rate)])
    if threshold is not None:
        return [i for i in everything if words[i][0] > threshold]
    if selector.unit == "word" and all(word[2] for word in words):
        return []
    if selector.share is None:
        chosen = {i for i in everything if words[i][0] > THRESHOLD}
        return sorted(chosen or (set(ranked[:1]) if selector.unit == "word" else set()))
    chosen, held = set(), 0.0
    total, least = sum(words[i][0] for i in content), max(2, count_at_rate(len(words), selector.least_rate))
    for i in sorted(content, key=lambda i: -words[i][0]):
        if held < selector.share * (1 - 1e-6) * total or len(chosen) < least:
            chosen.add(i)
        held += words[i][0]
    likely = chosen | {i for i in content if words[i][1] >= selector.phrase_gate}
    chosen |= {i for run in runs_of(with_links(likely, words), words) if set(run) & chosen for i in run}
    added = set()
    for i in everything:
        if words[i][2] == NEGATION and i not in chosen:
            for distance in (1, 2, 3):
                if i + distance in chosen and all(words[j][3] for j in range(i + 1, i + distance + 1)):
                    added |= set(range(i, i + distance))
                    break
    return sorted(chosen | added)


VALUES = st.sampled_from([0.0, 0.1, 0.2, 0.26, 0.3, 0.4, 0.5, 0.6, 0.9])
WORDS = st.lists(
    st.tuples(VALUES, VALUES, st.sampled_from([0, 0, 0, FUNCTION, LINK, NEGATION]), st.booleans()), min_size=1, max_size=9
)


@settings(deadline=None, max_examples=600, derandomize=True)
@given(
    words=WORDS,
    unit=st.sampled_from(["word", "name", "token", "part"]),
    share=st.sampled_from([None, 0.3, 0.5, 1.0]),
    options=st.sampled_from([{}, {"rate": 0.2}, {"rate": 0.5}, {"rate": 1.0}, {"threshold": 0.1}, {"threshold": 0.55}]),
    padding=st.integers(0, 3),
)
def test_the_rule_is_that_of_a_loop(
    words: list[Word], unit: str, share: float | None, options: dict[str, float], padding: int
) -> None:
    # Sums of like numbers in another order may differ by rounding; a tenth of a thousandth apart they do not.
    words = [(p + i * 1e-4, w, role, joins) for i, (p, w, role, joins) in enumerate(words)]
    selector = SelectorConfig(unit=unit, share=share if unit == "word" else None)
    found = select(words, selector, padding, **options)
    assert found == expected(words, selector, options.get("rate"), options.get("threshold"))


@pytest.mark.parametrize("rate", [0.01, 0.1, 0.13, 0.2, 0.29, 0.3, 0.35, 0.5, 0.95, 1.0])
def test_one_count_for_a_number_and_for_tensors(rate: float) -> None:
    numbers = torch.arange(0, 513)
    among = torch.arange(512) < numbers[:, None]
    probs, none = torch.rand(513, 512), torch.zeros(513, 512, dtype=torch.long)
    words = WordRows(probs, probs, among, none, among)
    chosen = decide(words, SelectorConfig(), THRESHOLD, rate).sum(-1).tolist()
    assert chosen == [count_at_rate(number, rate) for number in numbers.tolist()]
    assert chosen == [math.ceil(round(rate * number, 6)) for number in numbers.tolist()]


@pytest.mark.parametrize("rate", [0.0, -0.1, 1.01, 20, float("nan")])
def test_a_rate_is_a_fraction(rate: float) -> None:
    with pytest.raises(ValueError, match=rf"rate must be a fraction in \(0, 1\], got {rate}"):
        select([(0.5, 0.5, 0, False)], SelectorConfig(unit="word"), rate=rate)


def test_phrases_are_an_option_of_a_rate() -> None:
    words = [(0.9, 0.9, 0, False), (0.3, 0.3, 0, True), (0.1, 0.1, 0, True), (0.8, 0.8, 0, True)]
    selector = SelectorConfig(unit="word", share=0.5)
    assert select(words, selector, rate=0.25) == [0]
    assert select(words, selector, rate=0.25, phrases=True) == [0, 1]
    assert select(words, selector, threshold=0.85, phrases=True) == [0, 1]


# ---- what like words share -----------------------------------------------------------------------------------------------


def test_shared_gates_against_a_loop() -> None:
    torch.manual_seed(0)
    probs, among = torch.rand(2, 70), torch.rand(2, 70) > 0.1
    vectors = torch.nn.functional.normalize(torch.randn(2, 70, 4), dim=-1)
    found = share_gates(probs, vectors, among, 0.4)
    for row in range(2):
        top = sorted(range(70), key=lambda i: -float(probs[row, i] * among[row, i]))[:64]
        for w in range(70):
            like = {v: max(0.0, (float(vectors[row, w] @ vectors[row, v]) - 0.4) / 0.6) for v in top if v != w}
            shared = sum(float(probs[row, v] * among[row, v]) * min(value, 1.0) for v, value in like.items())
            assert float(found[row, w]) == pytest.approx(float(probs[row, w]) + shared * bool(among[row, w]), abs=1e-4)


def spans(text: str, model: HardKumaModel | None = None) -> list[str]:
    return [span["text"] for span in (model or load_released()[0]).gate_records([text])[0]["spans"]]


def test_words_that_stand_for_each_other_do_not_lose() -> None:
    """One of two like words would be enough, so each has half of the gate; together they are what the text is about."""
    text = "Bitcoin plunges 20% as China bans crypto mining"
    model = load_released()[0]
    assert {"Bitcoin", "crypto"} <= set(" ".join(spans(text, model)).split())
    model.config.selectors["meaning"].like_cosine = 0.999
    assert "Bitcoin" not in " ".join(spans(text, model)), "without what they share"


def test_negations_stay_with_what_they_deny() -> None:
    assert "not kill" in spans("He did not kill the bird.")
    assert spans("No evidence of metastatic disease was found.") == ["No evidence of metastatic disease"]
    assert spans("to be or not to be") == []


@torch.no_grad()
def test_tensors_and_texts_agree() -> None:
    """The same words by `forward` and by `gate_records`, where no text knows more than its tokens."""
    model, tokenizer = load_released()
    texts = [*SENTENCES, "the senate passed a sweeping climate bill", "he did not kill the bird", "it is what it is"]
    gates = model(**tokenizer(texts, padding=True, return_tensors="pt"), selector="meaning").gates
    for row, record in zip(gates, model.gate_records(texts), strict=True):
        encoded = tokenizer(record["text"], return_offsets_mapping=True)
        chosen = {i for i, word in enumerate(record["words"]) if word["selected"]}
        for gate, (start, end) in zip(row.tolist(), encoded["offset_mapping"], strict=False):
            touched = [i for i, word in enumerate(record["words"]) if start < end and word["start"] <= start < word["end"]]
            assert bool(gate) == bool(set(touched) & chosen), (record["text"], start, end)


def test_the_rule_does_not_depend_on_batch_mates(make_two: Callable) -> None:
    model = make_two(selectors={"meaning": {"share": 0.5, "unit": "word", "reads": ["state", "isolated"]}}).eval()
    model.build_isolated_table()
    together = model.gate_records(SENTENCES)
    assert [record["spans"] for record in together] != [[] for _ in SENTENCES]
    for text, record in zip(SENTENCES, together, strict=True):
        alone = model.gate_records([text])[0]
        assert [word["selected"] for word in record["words"]] == [word["selected"] for word in alone["words"]]


# ---- what is kept -------------------------------------------------------------------------------------------------------


TEXTS = [
    "Marie Curie moved from Warsaw to Paris in 1891 and shared the Nobel Prize in Physics.",
    "Our flight to Oslo was delayed by heavy snow.",
    "No evidence of metastatic disease.",
    "Hello",
]


@pytest.fixture(scope="module")
def model() -> HardKumaModel:
    return load_released()[0]


def kept_by(model: HardKumaModel, text: str, words: list[tuple[int, int]], chosen: list[bool]) -> tuple[float, float]:
    """Kept and lost by the benchmark's own code."""
    scores = WordScores(text, words, [float(value) for value in chosen])
    found = faithfulness(SentenceEncoder.from_model(model), [scores], [sum(chosen) / len(chosen)])
    return float(found.sufficiency[0, 0]), float(found.comprehensiveness[0, 0])


@pytest.mark.parametrize("keep", [0.5, 0.8, 0.95])
def test_what_a_record_says_is_kept_is_kept(model: HardKumaModel, keep: float) -> None:
    for text, record in zip(TEXTS, model.gate_records(TEXTS, keep=keep), strict=True):
        words = [(word["start"], word["end"]) for word in record["words"]]
        chosen = [word["selected"] for word in record["words"]]
        kept, lost = kept_by(model, text, words, chosen)
        assert record["kept"] == pytest.approx(kept, abs=1e-5) and record["lost"] == pytest.approx(lost, abs=1e-5)
        assert record["kept"] >= keep or all(chosen)


def test_one_word_less_would_not_do(model: HardKumaModel) -> None:
    words = [(0, 3), (4, 10), (11, 13), (14, 18), (19, 22), (23, 30), (31, 33), (34, 39), (40, 44)]
    ranks = [8, 1, 7, 0, 6, 2, 5, 4, 3]
    found = keep_words(model, [TEXTS[1]], [words], [ranks], keep=0.8)[0]
    kept = [kept_by(model, TEXTS[1], words, [rank < count for rank in ranks])[0] for count in range(1, len(words))]
    count = next(count for count, value in enumerate(kept, 1) if value >= 0.8)
    without = [[rank < count and rank != count - 1 - i for rank in ranks] for i in range(min(SPARED, count))]
    best = max(without, key=lambda chosen: kept_by(model, TEXTS[1], words, chosen)[0])
    fewer = kept_by(model, TEXTS[1], words, best)[0] >= 0.8
    assert found.chosen == (best if fewer else [rank < count for rank in ranks]) and found.kept >= 0.8


def test_a_word_that_says_nothing_new_is_left_out(model: HardKumaModel) -> None:
    text, words = "Oslo Oslo snow", [(0, 4), (5, 9), (10, 14)]
    found = keep_words(model, [text], [words], [[0, 1, 2]], keep=0.9)[0]
    assert sum(found.chosen) == 2 and found.chosen[2] and found.kept >= 0.9
    assert kept_by(model, text, words, [True, True, False])[0] < 0.9


def test_a_negation_is_kept_with_what_it_denies(model: HardKumaModel) -> None:
    for text, pair in (
        ("Terrible service, we will never come back.", ("never", "back")),
        ("The room was not dirty, not noisy and not expensive.", ("not", "dirty")),
    ):
        words = {word["word"]: word["selected"] for word in reversed(model.gate_records([text], keep=0.8)[0]["words"])}
        assert words[pair[0]] and words[pair[1]] and not all(words.values())


def test_batches_do_not_matter(model: HardKumaModel) -> None:
    together, one_by_one = (model.gate_records(TEXTS, keep=0.8, batch_size=size) for size in (4, 1))
    for first, second in zip(together, one_by_one, strict=True):
        assert [word["selected"] for word in first["words"]] == [word["selected"] for word in second["words"]]
        assert first["kept"] == pytest.approx(second["kept"], abs=1e-5)


def test_a_search_of_64_words_takes_six_passes(model: HardKumaModel) -> None:
    assert (PREFIXES + 1) ** 3 == 64
    passes: list[int] = []
    hook = model.encoder.register_forward_hook(lambda *_: passes.append(1))
    try:
        text = " ".join(f"word{i} rain" for i in range(32))
        assert len(model.gate_records([text], keep=0.8)[0]["words"]) == 64
    finally:
        hook.remove()
    assert len(passes) <= 6


def test_texts_that_cannot_be_encoded_whole(model: HardKumaModel) -> None:
    empty, long = model.gate_records(["", "rain fell on Oslo " * 200], keep=0.8)
    assert empty["kept"] is None and empty["lost"] is None and not empty["spans"]
    assert long["windows"] > 1 and long["kept"] is None and long["spans"]
    assert set(model.faithfulness([""])[0].values()) == {None}


def test_faithfulness_of_an_answer(model: HardKumaModel) -> None:
    (found,) = model.faithfulness(TEXTS[:1], rate=0.3)
    record = model.gate_records(TEXTS[:1], rate=0.3)[0]
    words = [(word["start"], word["end"]) for word in record["words"]]
    kept, lost = kept_by(model, TEXTS[0], words, [word["selected"] for word in record["words"]])
    assert found["kept"] == pytest.approx(kept, abs=1e-5) and found["lost"] == pytest.approx(lost, abs=1e-5)
    assert found["kept"] > found["random_kept"] and found["lost"] > found["random_lost"]
    every = [
        kept_by(model, "Rain fell hard", [(0, 4), (5, 9), (10, 14)], [i in pair for i in range(3)])[0]
        for pair in combinations(range(3), 2)
    ]
    (drawn,) = model.faithfulness(["Rain fell hard"], rate=0.5)
    assert min(every) - 1e-5 <= drawn["random_kept"] <= max(every) + 1e-5


@pytest.mark.parametrize("keep", [0, -0.1, 1.5, float("nan"), "0.8", True])
def test_a_wrong_keep_is_refused(model: HardKumaModel, keep: object) -> None:
    with pytest.raises(ValueError, match=r"keep must be a cosine in \(0, 1\]"):
        model.gate_records(TEXTS, keep=keep)


def test_keep_goes_alone(model: HardKumaModel) -> None:
    with pytest.raises(ValueError, match=r"give one of rate, threshold and keep; got rate=0.2 and keep=0.8"):
        model.gate_records(TEXTS, rate=0.2, keep=0.8)
    with pytest.raises(ValueError, match="goes by one selector"):
        model.gate_records(TEXTS, keep=0.8, selector="all")


def test_nothing_is_remembered_of_a_search(model: HardKumaModel) -> None:
    before = {name: value.clone() for name, value in model.gate_head.state_dict().items()}
    model.gate_records(TEXTS, keep=0.8)
    assert all(torch.equal(value, before[name]) for name, value in model.gate_head.state_dict().items())
