"""Does the contrastive recipe still collapse? Many seeds, and a sweep of the target rate: every run must end near its own.

    python benchmarks/collapse.py

Early versions flipped to "select everything" for some seeds and weights. A run counts as sound when the mean selection
probability of tokens on held-out text is within a fifth of the target. Fewer --steps and a smaller --batch make it cheaper.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from hardkuma.training.criterion import selection_quality
from hardkuma.training.recipe import load_recipe
from hardkuma.training.trainer import Trainer

RATES = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5)
TOLERANCE = 0.2


def final_rate(seed: int, rate: float, steps: int, batch: int, folder: str) -> tuple[float, float]:
    """Train once; mean selection probability after the contrastive phase (in training) and at the end (held out)."""
    changes = {
        "seed": seed,
        "model.target_rate": rate,
        "max_steps": steps,
        "batch_size": batch,
        "held_out": 100,
        "evaluate_every": steps,
        "output": folder,  # the same for all: the encoder's states are computed once
    }
    trainer = Trainer(load_recipe("contrastive", changes))
    trainer.run()
    contrastive = [entry["rate"] for entry in trainer.progress.history if "loss" in entry][-1]
    trainer.finish_gates()
    return contrastive, selection_quality(trainer.base, trainer.store, trainer.held_out).rate


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20, help="number of seeds at the default rate (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=50, help="contrastive steps a run (default: %(default)s)")
    parser.add_argument("--batch", type=int, default=64, help="sentences a step (default: %(default)s)")
    parser.add_argument("--output", type=Path, default=Path("runs/collapse.jsonl"))
    options = parser.parse_args()
    default = load_recipe("contrastive").model["target_rate"]
    plan = [(seed, default) for seed in range(options.seeds)] + [(0, rate) for rate in RATES]
    options.output.parent.mkdir(parents=True, exist_ok=True)
    bad, lines = 0, []
    with tempfile.TemporaryDirectory() as folder:
        for seed, target in plan:
            contrastive, final = final_rate(seed, target, options.steps, options.batch, folder)
            sound = abs(final - target) <= TOLERANCE * target
            bad += not sound
            entry = {
                "seed": seed,
                "target": target,
                "contrastive": round(contrastive, 4),
                "final": round(final, 4),
                "sound": sound,
            }
            lines.append(json.dumps(entry))
            print(lines[-1], flush=True)
            options.output.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{len(plan) - bad} of {len(plan)} runs ended within {TOLERANCE:.0%} of the target rate.")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
