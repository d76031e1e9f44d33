"""Train a sentence encoder by contrast, on unlabelled text or on pairs; for example:

    hardkuma encoder                                        the default recipe: SimCSE on the bundled corpus
    hardkuma encoder lowest-gates                           another recipe that comes along, or a file
    hardkuma encoder my.yaml --max-steps 500 --view '{cropping: {rate: 0.3}}' --data '[my.txt]'
    hardkuma encoder pairs --data '[my.csv]' --columns '[question, answer]' --mine-negatives 1
    hardkuma encoder --resume                               go on from the last checkpoint
    hardkuma encoder --push-to-hub me/my-encoder            and upload the result
    accelerate launch -m hardkuma encoder lowest-gates      on all GPUs, each with its part of every batch

The folder that it leaves, `OUTPUT/model`, is one for sentence-transformers: `hardkuma evaluate-encoder` measures it, and
`hardkuma train --encoder OUTPUT/model` trains gates on it. Every key of a recipe can be given on the command line.
A folder that another recipe has used is left alone, unless you say `--overwrite`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import nullcontext

from ...common.files import OutputHeld, hold_output, push_folder
from ..arguments import parse_arguments
from .recipe import EncoderRecipe, load_encoder_recipe

DEFAULT = "simcse"


def main(words: Sequence[str], prog: str = "hardkuma encoder") -> int:
    """Parse, train, save; 0 when done, 130 after Ctrl-C, 1 (2 for an argument) with one sentence on what is wrong."""
    try:
        arguments = parse_arguments(words, prog, __doc__ or "", EncoderRecipe, DEFAULT)
        if isinstance(arguments, str):
            print(arguments)
            return 0
        recipe = load_encoder_recipe(arguments.recipe, arguments.overrides)
    except (ValueError, FileNotFoundError) as error:
        print(f"{prog}: {error}", file=sys.stderr)
        return 2
    is_first = os.environ.get("RANK", "0") == "0"  # of several processes; it holds the folder for all
    try:
        # Importing these takes seconds, which `--help` and a wrong argument should not.
        from transformers.utils import logging as transformers_logging

        from .run import EncoderRun

        transformers_logging.disable_progress_bar()
        with hold_output(recipe.output) if is_first else nullcontext():
            run = EncoderRun(recipe, arguments.resume, overwrite=arguments.overwrite)
            if not run.run():
                return 130
            folder = run.complete()
        if is_first:
            print(f"Saved {folder}.\nTry: hardkuma evaluate-encoder {folder} --data DIR")
        if is_first and arguments.push_to_hub is not None:
            print(f"pushed to {push_folder(folder, arguments.push_to_hub, 'Upload sentence encoder')}")
    except (OSError, ValueError) as error:
        print(f"{prog}: {error}", file=sys.stderr)
        return 2 if isinstance(error, OutputHeld) else 1
    return 0
