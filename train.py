"""Train gates on unlabelled text, or with the labels of a task.

    python train.py                                              the default recipe: bundled corpus, embedded encoder
    python train.py parts                                        another recipe, by name or as a file
    python train.py --objective task --data reviews.tsv --label COLUMN      with labels: words that decide about a class
    python train.py my.yaml --train.epochs 2 --selectors.meaning.target_rate 0.4 --data '[my.txt, more.jsonl]'
    accelerate launch train.py recipes/default.yaml              on whatever `accelerate config` describes
    accelerate launch --config_file recipes/accelerate/multi_gpu.yaml train.py
    python train.py --resume                                     go on from the last checkpoint, to the bit
    python train.py --push-to-hub me/my-gates                    and upload the result

A recipe names selectors, and for each an objective that trains it: removal, form, parts, contrastive, task or copy
(training/objectives). Every key of a recipe can be given on the command line, with dashes or underscores; `--help` lists
them. The output folder holds `model/` (ready to load or push), `recipe.yaml`, `log.jsonl` and, while it is not done, what a
run needs to go on. Ctrl-C stops between two steps: objective contrastive goes on with `--resume`, removal by the same
command. A folder that another recipe has used is left alone, unless you say `--overwrite`.
"""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING

from hardkuma.common.files import OutputHeld, hold_output, push_folder
from hardkuma.common.packages import available, require
from hardkuma.training.arguments import parse_arguments
from hardkuma.training.recipe import Recipe, load_recipe

if TYPE_CHECKING:
    from hardkuma.training.run import Run


def train(recipe: Recipe, resume: bool = False, overwrite: bool = False) -> Run | None:
    """Train the selectors of a recipe, each by its objective, and save; None if interrupted.

    Args:
        resume: go on from the last checkpoint.
        overwrite: replace what another run has left in the output folder.
    """
    from hardkuma.training.report import save_run
    from hardkuma.training.run import start_run

    # Of several processes the first holds the folder for all.
    with hold_output(recipe.output) if os.environ.get("RANK", "0") == "0" else nullcontext():
        run = start_run(recipe, resume, overwrite)  # processes, model, text; all is checked before anything is written
        for objective in run.objectives:
            if not objective.fit(run):
                return None
        run.learn_function_words()
        run.adapt_surface()
        save_run(run)
    return run


def main(words: list[str] | None = None, prog: str = "train.py") -> int:
    """Parse, train, show; 0 when done, 130 after Ctrl-C, 1 (2 for an argument) with one sentence on what is wrong.

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
            recipe.check_model()
        except ValueError as error:
            print(f"{prog}: {error}", file=sys.stderr)
            return 2
        for package in ("accelerate", "matplotlib"):
            if not available(package):
                require(package, "train")
        from transformers.utils import logging as transformers_logging

        transformers_logging.disable_progress_bar()
        run = train(recipe, arguments.resume, arguments.overwrite)
        if run is None:
            return 130
        if run.accelerator.is_main_process:
            show(run)
            if arguments.push_to_hub is not None:
                address = push_folder(run.output / "model", arguments.push_to_hub, "Upload HardKuma model")
                print(f"pushed to {address}")
        return 0
    except (OSError, ValueError, ImportError, FloatingPointError) as error:
        print(f"{prog}: {error}", file=sys.stderr)
        return 2 if isinstance(error, OutputHeld) else 1


def show(run: Run) -> None:
    """Gates on sentences that no corpus of ours holds; of a classifier, on held-out texts, with the class of each."""
    from hardkuma.common.text import SHOWCASE
    from hardkuma.modeling_hardkuma import HardKumaForSequenceClassification
    from hardkuma.scoring_hardkuma import gate_records, paint, safe, safe_text, use_colour

    model, folder = run.model, run.output / "model"
    texts, classes = list(SHOWCASE), [""] * len(SHOWCASE)
    if isinstance(run.result, HardKumaForSequenceClassification):
        texts = [run.texts[int(row)] for row in run.held_out[: len(SHOWCASE)]] or texts
        inputs = model.tokenizer(texts, padding=True, truncation=True, return_tensors="pt").to(model.device)
        labels = model.config.id2label or {}
        classes = [f"{labels[number]}: " for number in run.result(**inputs).logits.argmax(-1).tolist()]
    colour, names = use_colour(sys.stdout), model.config.names
    print(f"\nSaved {folder}. Selected words {'are underlined' if colour else 'in brackets'}:")
    for name in names:
        print(f"\n{name}:" if len(names) > 1 else "")
        for label, record in zip(classes, gate_records(model, texts, selector=name), strict=True):
            print(f"  {safe_text(label)}{paint(safe(record), colour)}")
    print(f'\nTry: hardkuma gates --model {folder} "your own sentence"')
    if len(names) > 1:
        print(f"     with --selector {names[-1]} for the words of that selector")


if __name__ == "__main__":
    sys.exit(main())
