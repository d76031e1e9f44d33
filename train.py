"""Train gates on unlabelled text.

    python train.py                                              the default recipe: bundled corpus, embedded encoder
    python train.py specialise                                         another recipe, by name or as a file
    python train.py my.yaml --epochs 2 --model.target_rate 0.3 --data '[my.txt, more.jsonl]'
    accelerate launch train.py recipes/default.yaml              on whatever `accelerate config` describes
    accelerate launch --config_file recipes/accelerate/multi_gpu.yaml train.py
    python train.py --resume                                     go on from the last checkpoint, to the bit
    python train.py --push-to-hub me/my-gates                    and upload the result

Every key of a recipe can be given on the command line, with dashes or underscores; `--help` lists them (they are declared
in training/recipe.py). Keys of the model are `--model.NAME` (see HardKumaConfig in configuration_hardkuma.py).
The output folder holds `model/` (ready to load or push), `recipe.yaml`, `run.json`, `log.jsonl`, plots and checkpoints.
Ctrl-C finishes the step, saves a checkpoint and stops; `--resume` goes on from there.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from hardkuma.common.files import push_folder
from hardkuma.training.arguments import parse_arguments
from hardkuma.training.recipe import load_recipe

if TYPE_CHECKING:
    from hardkuma.modeling_hardkuma import HardKumaModel


def main(words: list[str] | None = None, prog: str = "train.py") -> int:
    """Parse, train, save, show; 0 when done, 130 after Ctrl-C, 1 (2 for an argument) with one sentence on what is wrong.

    Args:
        prog: the command's name, for help and errors.
    """
    try:
        try:
            manual = (__doc__ or "").replace("python train.py", prog) if prog != "train.py" else __doc__ or ""
            arguments = parse_arguments(sys.argv[1:] if words is None else words, prog, manual)
            if isinstance(arguments, str):
                print(arguments)
                return 0
            recipe = load_recipe(arguments.recipe, arguments.overrides)
        except ValueError as error:
            print(f"{prog}: {error}", file=sys.stderr)
            return 2
        # Importing these takes seconds, which `--help` and a wrong argument should not.
        from transformers.utils import logging as transformers_logging

        from hardkuma.training.trainer import Trainer

        transformers_logging.disable_progress_bar()
        trainer = Trainer(recipe, arguments.resume)
        if not trainer.run():
            return 130
        folder = trainer.complete()
        if trainer.accelerator.is_main_process:
            show(trainer.base, folder)
            if arguments.push_to_hub is not None:
                print(f"pushed to {push_folder(folder, arguments.push_to_hub, 'Upload HardKuma model')}")
        return 0
    except (OSError, ValueError, FloatingPointError) as error:
        print(f"{prog}: {error}", file=sys.stderr)
        return 1


def show(model: HardKumaModel, folder: Path) -> None:
    """Gates on sentences that no corpus of ours holds."""
    from hardkuma.common.rendering.terminal import paint, use_colour
    from hardkuma.common.text import SHOWCASE
    from hardkuma.scoring_hardkuma import gate_records

    colour, names = use_colour(sys.stdout), model.config.names
    print(f"\nSaved {folder}. Selected words {'are underlined' if colour else 'in brackets'}:")
    for name in names:
        print(f"\n{name}:" if len(names) > 1 else "")
        for record in gate_records(model, SHOWCASE, selector=name):
            print("  " + paint(record, colour))
    print(f'\nTry: hardkuma gates --model {folder} "your own sentence"')
    if len(names) > 1:
        print(f"     with --selector {names[-1]} for the words of that selector")


if __name__ == "__main__":
    sys.exit(main())
