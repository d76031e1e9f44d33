"""Train a sentence encoder by contrast, on unlabelled text.

    hardkuma encoder                                        the default recipe: SimCSE on the bundled corpus
    hardkuma encoder lowest-gates                           another recipe that comes along, or a file
    hardkuma encoder my.yaml --max-steps 500 --view '{cropping: {rate: 0.3}}' --data '[my.txt]'
    hardkuma encoder --resume                               go on from the last checkpoint
    accelerate launch -m hardkuma encoder simcse            on whatever `accelerate config` describes

The folder that it leaves, `OUTPUT/model`, is one for sentence-transformers: `hardkuma evaluate-encoder` measures it, and
`hardkuma train --encoder OUTPUT/model` trains gates on it. Every key of a recipe can be given on the command line.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from ..training.arguments import parse_arguments
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
    try:
        from .run import EncoderRun  # takes seconds, which `--help` and a wrong argument should not

        run = EncoderRun(recipe, arguments.resume)
        if not run.run():
            return 130
        folder = run.complete()
    except (OSError, ValueError) as error:
        print(f"{prog}: {error}", file=sys.stderr)
        return 1
    print(f"Saved {folder}.\nTry: hardkuma evaluate-encoder {folder} --data DIR")
    return 0
