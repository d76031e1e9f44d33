"""What similarity search pays for rationale embeddings: Spearman's correlation on STS-B, through sentence-transformers.

    python benchmarks/sts.py --data FOLDER                    FOLDER holds stsb/sts-test.csv
    python benchmarks/sts.py --data FOLDER --part dev --model CHECKPOINT

Every line of the output is one embedding of the same checkpoint, asked for by name as users do:
`encode(texts, embedding="anchor")`, `encode(texts, rate=0.2)`. Beside it, as many words of largest norm (sum over
sub-words). Higher is better.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import spearmanr
from sentence_transformers import SentenceTransformer

from hardkuma import HardKumaModel, load_released
from hardkuma.evaluation.baselines.encoder import SentenceEncoder
from hardkuma.evaluation.baselines.registry import METHODS
from hardkuma.evaluation.encoder_tasks import STS_FILES, read_scored_pairs
from hardkuma.evaluation.faithfulness import faithfulness
from hardkuma.pooling_hardkuma import normalize


def cosines(encode: Callable[[list[str]], np.ndarray], first: list[str], second: list[str]) -> np.ndarray:
    """(pairs,) cosine of each pair of unit vectors; every sentence is encoded once."""
    texts = list(dict.fromkeys([*first, *second]))
    vectors = encode(texts)
    row = {text: i for i, text in enumerate(texts)}
    return (vectors[[row[text] for text in first]] * vectors[[row[text] for text in second]]).sum(-1)


def encode_largest(encoder: SentenceEncoder, rate: float, texts: list[str]) -> np.ndarray:
    """(texts, dim) unit embeddings of the words of largest norm."""
    found = faithfulness(encoder, METHODS["norm_sum"].scores(encoder, texts), [rate])
    return normalize(found.rationales[:, 0]).numpy()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--part", choices=("dev", "test"), default="test", help="of STS-B (default: %(default)s)")
    parser.add_argument("--model", help="checkpoint folder or Hub id (default: the released gates)")
    parser.add_argument("--rates", type=float, nargs="+", default=[0.1, 0.2, 0.3, 0.5])
    arguments = parser.parse_args()
    pairs = read_scored_pairs(arguments.data / "stsb" / f"sts-{arguments.part}.csv", STS_FILES["STS-B"][1])
    first, second, scores = pairs.first, pairs.second, np.array(pairs.scores)

    gates = HardKumaModel.from_pretrained(arguments.model).eval() if arguments.model else load_released()[0]
    with tempfile.TemporaryDirectory() as folder:
        gates.save_pretrained(folder)
        model = SentenceTransformer(folder, trust_remote_code=True, device="cpu")

        print(f"{len(scores)} pairs of STS-B {arguments.part}; view {gates.config.view}")
        print("| embedding | rate | Spearman |\n|---|---|---|")
        settings = [("anchor", None), ("rationale", None), ("complement", None)]
        settings += [(name, rate) for name in ("rationale", "complement") for rate in arguments.rates]
        settings += [("largest norm", rate) for rate in arguments.rates]
        encoder = SentenceEncoder.from_model(gates)
        for name, rate in settings:
            if name == "largest norm":
                encode: Any = partial(encode_largest, encoder, rate)
            else:
                options = {"normalize_embeddings": True, "show_progress_bar": False}
                encode = partial(model.encode, embedding=name, rate=rate, **options)
            shown = "-" if name == "anchor" else "the model's own" if rate is None else f"{rate:g}"
            value = spearmanr(cosines(encode, first, second), scores).statistic
            print(f"| {name} | {shown} | {value:.3f} |", flush=True)


if __name__ == "__main__":
    main()
