"""Train gates on unlabelled text.

    python train.py                                              the default recipe: bundled corpus, embedded encoder
    python train.py recipes/as-written.yaml                      another recipe
    python train.py recipes/default.yaml --epochs 2 --model.target_rate 0.3 --data '[my.txt, more.jsonl]'
    accelerate launch train.py recipes/default.yaml              on whatever `accelerate config` describes
    accelerate launch --config_file recipes/accelerate/multi_gpu.yaml train.py
    python train.py --resume                                     go on from the last checkpoint, to the bit
    python train.py --push-to-hub me/my-gates                    and upload the result

Every key of training/recipe.py can be given on the command line; keys of the model are `--model.NAME` (see HardKumaConfig).
The output folder holds `model/` (ready to load or push), `recipe.yaml`, `run.json`, `log.jsonl`, plots and checkpoints.
Ctrl-C finishes the step, saves a checkpoint and stops; `--resume` goes on from there.
"""

from __future__ import annotations

import sys
from pathlib import Path

from transformers.utils import logging as transformers_logging

from hardkuma.common.showcase import SHOWCASE
from hardkuma.modeling_hardkuma import HardKumaModel
from hardkuma.rendering.terminal import paint, use_colour
from hardkuma.training.recipe import load_recipe, parse_overrides
from hardkuma.training.trainer import Trainer
from hardkuma.words_hardkuma import gate_records

DEFAULT_RECIPE = Path(__file__).parent / "recipes" / "default.yaml"


def main(arguments: list[str] | None = None) -> int:
    """Parse, train, save, show; 0 when done, 130 after Ctrl-C, 1 (2 for an argument) with one sentence on what is wrong."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if "--help" in words or "-h" in words:
        print(__doc__)
        return 0
    try:
        resume = "--resume" in words
        if resume:
            words.remove("--resume")
        path = words.pop(0) if words and not words[0].startswith("--") else DEFAULT_RECIPE
        try:
            overrides = parse_overrides(words)
            repo = overrides.pop("push_to_hub", None)
            recipe = load_recipe(path, overrides)
        except ValueError as error:
            print(f"train.py: {error}", file=sys.stderr)
            return 2
        transformers_logging.disable_progress_bar()
        trainer = Trainer(recipe, resume)
        if not trainer.run():
            return 130
        folder = trainer.finish()
        if trainer.accelerator.is_main_process:
            show(trainer.base, folder)
            if repo is not None:
                print(f"pushed to {push(trainer.base, folder, repo)}")
        return 0
    except (OSError, ValueError, FloatingPointError) as error:
        print(f"train.py: {error}", file=sys.stderr)
        return 1


def push(model: HardKumaModel, folder: Path, repo: str) -> str:
    """Upload the finished folder as it is, card, log and plots included."""
    from huggingface_hub import HfApi

    api = HfApi()
    name = api.create_repo(repo, exist_ok=True).repo_id
    api.upload_folder(repo_id=name, folder_path=folder, commit_message="Upload HardKuma model")
    return name


def show(model: HardKumaModel, folder: Path) -> None:
    """Gates on sentences that no corpus of ours holds."""
    colour = use_colour(sys.stdout)
    print(f"\nSaved {folder}. Selected words {'are underlined' if colour else 'in brackets'}:\n")
    for record in gate_records(model, SHOWCASE):
        print("  " + paint(record, colour))
    print(f'\nTry: hardkuma gates --model {folder} "your own sentence"')


if __name__ == "__main__":
    sys.exit(main())
