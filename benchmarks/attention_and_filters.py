"""Why attention features and the frequency filter do not help, and where they could: docs/experiments.md has the answers.

    python benchmarks/attention_and_filters.py --data FOLDER
    python benchmarks/attention_and_filters.py --data FOLDER --other-encoder FOLDER_OR_ID

FOLDER holds ud-ewt/dev.conllu (sentences alone), stsb/sts-dev.csv and wnut17/dev.conll. What a word is worth is what the
embedding loses without it, re-encoded; values and predictions are compared within sentences. Three seeds are three
divisions of the sentences into two halves, or three orders of the dimensions; a cell is mean [smallest, largest].
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from hardkuma.common.models import load_released
from hardkuma.evaluation.corpora import labels_of, read_corpus, texts_of
from hardkuma.evaluation.metrics import Ranking
from hardkuma.evaluation.statistics import bootstrap, spearman
from hardkuma.modeling_hardkuma import HardKumaModel
from hardkuma.pooling_hardkuma import frequency_filter
from hardkuma.scoring_hardkuma import score_texts

SEEDS = (0, 1, 2)
SENTENCES, LONGEST, PAIRS, TAGGED = 150, 20, 300, 300
RIDGE = 10.0


@dataclass
class Tokens:
    """Content tokens of sentences: which sentence, what each is worth, and what can be read of it."""

    sentence: np.ndarray
    worth: np.ndarray  # 1 - cos(anchor, encoded without this token)
    state: np.ndarray  # (tokens, hidden), normalised
    norm: np.ndarray  # (tokens, 1)
    received: np.ndarray  # (tokens, layers, heads)
    given: np.ndarray


@torch.inference_mode()
def read_tokens(model: HardKumaModel, texts: list[str]) -> Tokens:
    """One pass for states and attention, and one without each token."""
    model.encoder.set_attn_implementation("eager")  # the only one that hands out its weights
    rows: list[list[np.ndarray]] = []
    for number, text in enumerate(texts):
        inputs = model.tokenizer(text, return_tensors="pt")
        out = model(**inputs, output_attentions=True, return_embeddings=False)
        ids = inputs["input_ids"][0]
        content = ~torch.isin(ids, torch.tensor(model.config.special_token_ids))
        inside, total = content.nonzero()[:, 0], len(ids)
        attention = torch.stack([weights[0] for weights in out.attentions]).float()  # (layers, heads, query, key)
        among = attention[:, :, inside][..., inside]
        own = among.diagonal(dim1=-2, dim2=-1)
        received = among.sum(-2) * total / len(inside)
        given = (among.sum(-1) - own) * total / max(1, len(inside) - 1)
        kept = 1 - torch.eye(total)[inside]
        without = model.encode_subsets(inputs["input_ids"], inputs["attention_mask"], kept=kept[None])[0]
        lost = 1 - torch.nn.functional.cosine_similarity(without, out.anchor_embedding, dim=-1)
        states = out.last_hidden_state[0, inside].float()
        parts = [lost, torch.nn.functional.layer_norm(states, states.shape[-1:]), states.norm(dim=-1, keepdim=True)]
        parts += [received.permute(2, 0, 1), given.permute(2, 0, 1)]
        rows.append([np.full(len(inside), number), *(part.numpy() for part in parts)])
    return Tokens(*(np.concatenate(column) for column in zip(*rows, strict=True)))


def centred(values: np.ndarray, sentence: np.ndarray) -> np.ndarray:
    """Minus the mean of each sentence."""
    means = np.array([values[sentence == number].mean(0) for number in range(sentence.max() + 1)])
    return values - means[sentence]


def fit(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Ridge regression on standardised columns: spread of x, weights; y is centred already."""
    spread = x.std(0) + 1e-9
    z = x / spread
    return spread, np.linalg.solve(z.T @ z + RIDGE * np.eye(z.shape[1]), z.T @ y), y


def explained(x: np.ndarray, y: np.ndarray, sentence: np.ndarray, seed: int) -> float:
    """R^2 on the other half of the sentences, within sentences, mean over the columns of y."""
    x, y = centred(x, sentence), centred(y.reshape(len(y), -1), sentence)
    first = np.random.default_rng(seed).permutation(sentence.max() + 1) < (sentence.max() + 1) // 2
    inside = first[sentence]
    spread, weights, _ = fit(x[inside], y[inside])
    error = y[~inside] - x[~inside] / spread @ weights
    return float((1 - error.var(0) / y[~inside].var(0)).mean())


def cell(values: list[float]) -> str:
    """Mean, smallest and largest."""
    return f"{np.mean(values):.3f} [{min(values):.3f}, {max(values):.3f}]"


def flat(values: np.ndarray) -> np.ndarray:
    return values.reshape(len(values), -1)


def attention_rows(tokens: Tokens) -> None:
    """Are the scalars redundant, and which heads carry news?"""
    sentence, layers = tokens.sentence, tokens.received.shape[1]
    means = {"received": tokens.received.mean(-1), "given": tokens.given.mean(-1)}
    for name, values in means.items():
        for layer in range(layers):
            scores = [explained(tokens.state, values[:, layer], sentence, seed) for seed in SEEDS]
            print(f"| {name}, layer {layer + 1}, from the last state: R^2 | {cell(scores)} |")
    last = np.stack([values[:, -1] for values in means.values()], axis=1)
    layered = np.concatenate(list(means.values()), axis=1)
    heads = np.concatenate([flat(tokens.received), flat(tokens.given)], axis=1)
    inputs = {
        "norm of the state": tokens.norm,
        "the two scalars of the last layer": last,
        "received and given of every layer": layered,
        "received and given of every head": heads,
        "state": tokens.state,
        "state + the two scalars": np.concatenate([tokens.state, last], axis=1),
        "state + every layer": np.concatenate([tokens.state, layered], axis=1),
        "state + every head": np.concatenate([tokens.state, heads], axis=1),
    }
    for name, x in inputs.items():
        print(f"| worth from {name}: R^2 | {cell([explained(x, tokens.worth, sentence, seed) for seed in SEEDS])} |")
    news, alone = [], float(np.mean([explained(tokens.norm, tokens.worth, sentence, seed) for seed in SEEDS]))
    for layer in range(layers):
        for head in range(tokens.received.shape[2]):
            pair = np.stack([tokens.received[:, layer, head], tokens.given[:, layer, head]], axis=1)
            x = np.concatenate([tokens.norm, pair], axis=1)
            both = float(np.mean([explained(x, tokens.worth, sentence, seed) for seed in SEEDS]))
            news.append((both - alone, layer + 1, head))
    best = ", ".join(f"layer {layer} head {head} {gain:+.3f}" for gain, layer, head in sorted(news, reverse=True)[:4])
    print(f"| heads that add most to the norm: R^2 | {best} |", flush=True)


def transfer_rows(tokens: Tokens, other: Tokens) -> None:
    """A linear selector of attention alone, fitted on one encoder, ranks the tokens of another."""

    def layered(of: Tokens) -> np.ndarray:
        depth = np.linspace(0, of.received.shape[1] - 1, 6).round().astype(int)  # six depths, whatever the encoder
        x = np.concatenate([of.received.mean(-1)[:, depth], of.given.mean(-1)[:, depth]], axis=1)
        return centred(x, of.sentence)

    def ranked(values: np.ndarray, halves: np.ndarray) -> float:
        inside = ~halves[other.sentence]
        scores = [
            spearman(values[rows], other.worth[rows])
            for number in np.unique(other.sentence[inside])
            for rows in [other.sentence == number]
            if rows.sum() > 2
        ]
        return float(np.nanmean(scores))

    results: dict[str, list[float]] = {}
    for seed in SEEDS:
        half = lambda of: np.random.default_rng(seed).permutation(of.sentence.max() + 1) < (of.sentence.max() + 1) // 2  # noqa: B023, E731
        mine, theirs = half(tokens), half(other)
        rows = mine[tokens.sentence]
        spread, weights, _ = fit(layered(tokens)[rows], centred(tokens.worth, tokens.sentence)[rows])
        own_rows = theirs[other.sentence]
        own_spread, own_weights, _ = fit(layered(other)[own_rows], centred(other.worth, other.sentence)[own_rows])
        for name, values in {
            "attention alone, fitted on the first encoder": layered(other) / spread @ weights,
            "attention alone, fitted on itself": layered(other) / own_spread @ own_weights,
            "norm of its state": other.norm[:, 0],
            "attention received, last layer": other.received[:, -1].mean(-1),
        }.items():
            results.setdefault(name, []).append(ranked(values, theirs))
    for name, scores in results.items():
        print(f"| other encoder, {name}: Spearman with worth within sentences | {cell(scores)} |", flush=True)


@torch.inference_mode()
def embed(model: HardKumaModel, texts: list[str]) -> Tensor:
    parts = []
    for start in range(0, len(texts), 64):
        inputs = model.tokenizer(texts[start : start + 64], padding=True, truncation=True, return_tensors="pt")
        parts.append(model(**inputs, return_embeddings=False).anchor_embedding)
    return torch.cat(parts).float()


def filter_rows(model: HardKumaModel, path: Path) -> None:
    """What a filter over dimensions removes: the same as over dimensions in any other order, or as half of them?"""
    lines = [line.rstrip("\n").split("\t") for line in path.open(encoding="utf8")]
    lines = [lines[i] for i in np.random.default_rng(0).permutation(len(lines))[:PAIRS]]
    gold = [float(line[4]) for line in lines]
    vectors = embed(model, [line[5] for line in lines] + [line[6] for line in lines])
    size = vectors.shape[1]

    def agreement(x: Tensor) -> float:
        return spearman(torch.nn.functional.cosine_similarity(x[:PAIRS], x[PAIRS:], dim=-1).numpy(), gold)

    def energy(x: Tensor) -> float:
        return float((frequency_filter(x, "low", 0.0, 0.5).square().sum(-1) / x.square().sum(-1)).mean())

    orders = [torch.from_numpy(np.random.default_rng(seed).permutation(size)) for seed in SEEDS]
    print(f"| energy below half of the highest frequency: own order, others | {energy(vectors):.3f}, ", end="")
    print(f"{cell([energy(vectors[:, order]) for order in orders])} |")
    print(f"| STS-B dev, Spearman, whole embedding | {agreement(vectors):.3f} |")
    for kind, low, high in (("low", 0.0, 0.5), ("high", 0.5, 1.0)):
        shuffled = [agreement(frequency_filter(vectors[:, order], kind, low, high)) for order in orders]
        own = agreement(frequency_filter(vectors, kind, low, high))
        print(f"| the same, {kind}-pass at .5: own order, others | {own:.3f}, {cell(shuffled)} |")
    print(
        f"| the same, a random half of the dimensions | {cell([agreement(vectors[:, o[: size // 2]]) for o in orders])} |"
    )


def token_axis_rows(path: Path) -> None:
    """A filter over words in their order: names are runs of words, so neighbours' log-odds are added."""
    model = load_released()[0]
    sentences = read_corpus(path).sample(TAGGED, 0)
    texts, words = texts_of(sentences)
    labels = labels_of(sentences)
    scored = score_texts(model, texts, words=words, selector="entities", batch_size=64, use_surface=False)
    plain = [np.log(np.clip(item.probabilities, 1e-6, 1 - 1e-6)) for item in scored]
    plain = [row - np.log1p(-np.exp(row)) for row in plain]

    def smooth(row: np.ndarray, weight: float) -> np.ndarray:
        around = np.convolve(row, [0.5, 0.0, 0.5])[1:-1] if len(row) > 1 else row
        return (row + weight * around) / (1 + abs(weight))

    def precision(rows: list[np.ndarray], weights: np.ndarray) -> float:
        drawn = [i for i, times in enumerate(weights.astype(int)) for _ in range(times)]
        return Ranking([labels[i] for i in drawn], [rows[i].tolist() for i in drawn]).curve().average_precision()

    for weight in (0.15, 0.3, 0.6, -0.15):
        rows = [smooth(row, weight) for row in plain]
        gain = bootstrap(lambda w: {"gain": precision(rows, w) - precision(plain, w)}, len(plain), samples=100)["gain"]  # noqa: B023
        name = "low" if weight > 0 else "high"
        print(f"| {name}-pass over words, neighbours' weight {weight}: gain in average precision, WNUT17 dev | ", end="")
        print(f"{gain.value:+.3f} [{gain.low:+.3f}, {gain.high:+.3f}] |", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--other-encoder", help="folder or Hub id, for the rows of transfer")
    parser.add_argument("--parts", nargs="+", choices=("filters", "attention"), default=["filters", "attention"])
    options = parser.parse_args()
    sentences = [item.text for item in read_corpus(options.data / "ud-ewt/dev.conllu").sample(None)]
    texts = [text for text in sentences if 5 <= len(text.split()) <= LONGEST][:SENTENCES]
    model = HardKumaModel.from_encoder("sentence-transformers/all-MiniLM-L6-v2").eval()
    print("| | mean [smallest, largest] of 3 |\n|---|---|")
    if "filters" in options.parts:
        filter_rows(model, options.data / "stsb/sts-dev.csv")
        token_axis_rows(options.data / "wnut17/dev.conll")
    if "attention" not in options.parts:
        return 0
    tokens = read_tokens(model, texts)
    attention_rows(tokens)
    if options.other_encoder:
        transfer_rows(tokens, read_tokens(HardKumaModel.from_encoder(options.other_encoder).eval(), texts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
