"""A training run: its processes, model and text, and the output folder that belongs to it."""

from __future__ import annotations

import json
import shutil
import signal
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from functools import cached_property, partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import InitProcessGroupKwargs, broadcast_object_list
from tqdm import tqdm

from ..checkpoint_hardkuma import HardKumaPreTrainedModel
from ..common.files import write_atomically
from ..modeling_hardkuma import HardKumaModel
from ..words_hardkuma import ENGLISH
from .criterion import calibration_rows
from .language import learn_function_words, learn_words, set_language
from .loop import checkpoints
from .objectives import make_objective
from .objectives.base import Objective
from .objectives.settings import ContrastiveSettings
from .recipe import Recipe
from .store import StateStore, TokenFile, encode_sentences, usable_rows, write_tokens
from .texts import TextFile, split_held_out, spool_labelled_texts, spool_training_texts

if TYPE_CHECKING:
    from .encoder.recipe import EncoderRecipe

PATIENCE = timedelta(hours=3)  # of processes that wait while one of them tokenises, encodes or fits
COMPARED = 1000  # sentences by whose embeddings a run sees whether there is anything to tell apart

Result = TypeVar("Result")


class Run:
    """What objectives work with.

    Attributes:
        recipe, model, accelerator: what is trained, and by which processes.
        objectives: in the order of fitting.
        resume: whether to go on from a checkpoint.
        store: the text, tokenised and, where the encoder is frozen, encoded.
        rows, held_out: numbers of the sentences to train on, and of those kept back for the label-free criterion.
        history: entries of the log.
        result: what is saved: the model, or the classifier that an objective has put on it.
    """

    store: StateStore
    rows: np.ndarray
    held_out: np.ndarray

    def __init__(self, recipe: Recipe, model: HardKumaModel, accelerator: Accelerator | None = None, resume: bool = False):
        self.recipe, self.model, self.resume = recipe, model, resume
        self.accelerator = Accelerator() if accelerator is None else accelerator
        self.output, self.started = Path(recipe.output), time.time()
        self.objectives: list[Objective[Any]] = [make_objective(*group) for group in recipe.groups()]
        self.history: list[dict[str, Any]] = []
        self.interrupt = InterruptFlag()
        self.result: HardKumaPreTrainedModel = model

    @property
    def quiet(self) -> bool:
        """Whether another process speaks for all."""
        return not self.accelerator.is_main_process

    @property
    def texts(self) -> TextFile:
        """All sentences, read when first asked for; on the main process alone."""
        return self._labelled[0]

    @property
    def labels(self) -> list[str]:
        """The class of every text, where the recipe names a column of them; on the main process alone."""
        return self._labelled[1]

    @cached_property
    def _labelled(self) -> tuple[TextFile, list[str]]:
        folder = next(path for path in (self.output, *self.output.absolute().parents) if path.is_dir())
        if self.recipe.label is not None:
            return spool_labelled_texts(self.recipe, self.recipe.label, self.log, folder)
        return spool_training_texts(self.recipe, self.log, folder), []

    def log(self, text: str) -> None:
        """Tell the user, once for all processes."""
        if not self.quiet:
            tqdm.write(text, file=sys.stderr)

    def record(self, entry: dict[str, Any]) -> None:
        """Add an entry to the log; its numbers also go to the trackers."""
        self.history.append(entry)
        if self.recipe.trackers:
            prefix = "/".join(str(entry[key]) for key in ("phase", "selector") if key in entry)
            numbers = {key: value for key, value in entry.items() if key != "step" and isinstance(value, (int, float))}
            self.accelerator.log({f"{prefix}/{key}" if prefix else key: numbers[key] for key in numbers}, entry.get("step"))

    def write_log(self) -> None:
        """Write `log.jsonl`."""
        write_atomically(self.output / "log.jsonl", "".join(json.dumps(entry) + "\n" for entry in self.history))

    def on_main(self, work: Callable[..., Result], *arguments: Any) -> Result:
        """Do something on the main process, while the others wait; all get its result, or its error as a ValueError."""
        outcome: list[Any] = [None, None]
        if self.accelerator.is_main_process:
            try:
                outcome = [work(*arguments), None]
            except (OSError, ValueError, FloatingPointError) as error:
                if self.accelerator.num_processes == 1:
                    raise
                outcome = [None, str(error)]
        result, failure = broadcast_object_list(outcome)
        if failure is not None:
            raise ValueError(failure)
        return result

    def fit_on_main(self, fit: Callable[..., Result], *arguments: Any) -> Result:
        """The same for a fit that changes the gate head: all processes then have its weights and settings."""
        result = self.on_main(fit, *arguments)
        if self.accelerator.num_processes > 1:
            head, config = self.model.gate_head, self.model.config
            weights = {name: value.cpu() for name, value in head.state_dict().items()}
            known = broadcast_object_list([weights, config.selectors, config.language])
            weights, config.selectors, config.language = known
            head.load_state_dict(weights)
        return result

    def is_interrupted(self) -> bool:
        """Whether any process was asked to stop; all of them get the same answer."""
        if self.accelerator.num_processes > 1:
            flag = torch.tensor(float(self.interrupt.is_set), device=self.accelerator.device)
            self.interrupt.is_set = bool(self.accelerator.reduce(flag, "sum") > 0)
        return self.interrupt.is_set

    def fill_isolated_table(self) -> None:
        """Encode every token of the vocabulary by itself, where a selector reads that and nobody has done it."""
        if self.model.config.reads("isolated") and not bool(self.model.gate_head.isolated_scale.any()):
            self.model.build_isolated_table(progress=not self.quiet)

    def learn_words(self) -> None:
        """Learn the scripts of the text and the words of scripts without spaces, before it is tokenised."""
        set_language(self.model, learn_words(self.texts, self.model.tokenizer, self.recipe.seed))

    def learn_function_words(self) -> None:
        """Learn the function words of the text by the gates, when they are trained."""
        self.fit_on_main(self._learn_function_words)

    def _learn_function_words(self) -> None:
        set_language(self.model, learn_function_words(self.model.eval(), self.texts, self.recipe.seed))
        if self.model.config.language.function_words != ENGLISH.function_words:
            self.log(f"function words of this text: {self.model.config.language.function_words:.300}")

    def adapt_surface(self) -> None:
        """Estimate the log-odds of written forms on the training text, if the recipe says so."""
        if self.recipe.surface:
            self.fit_on_main(self._adapt_surface)

    def _adapt_surface(self) -> None:
        batches = self.store.batches(self.rows, self.model)
        self.model.adapt_surface({**batch.inputs, "surface_ids": batch.forms} for batch in batches)


def start_run(recipe: Recipe, resume: bool = False, overwrite: bool = False) -> Run:
    """Processes, model and text of a run. Nothing is written before every objective has checked what it needs.

    Args:
        resume: go on from the last checkpoint, if there is one.
        overwrite: take an output folder that holds something else.
    """
    recipe.check_model()
    contrastive = [settings for settings in recipe.objectives.values() if isinstance(settings, ContrastiveSettings)]
    accelerator = Accelerator(
        mixed_precision=contrastive[0].mixed_precision if contrastive else "no",
        kwargs_handlers=[InitProcessGroupKwargs(timeout=PATIENCE)],
        **({"log_with": recipe.trackers, "project_dir": recipe.output} if recipe.trackers else {}),
    )
    torch.manual_seed(recipe.seed)
    check_output(recipe, resume, overwrite)
    accelerator.wait_for_everyone()  # all have looked before anyone writes
    model = HardKumaModel.from_encoder(recipe.encoder, **recipe.config_settings()).to(accelerator.device).eval()
    run = Run(recipe, model, accelerator, resume)
    run.on_main(_check, run)
    run.fit_on_main(run.learn_words)
    run.on_main(_write_store, run)
    open_store(run)
    if recipe.trackers:
        accelerator.init_trackers("hardkuma", config={"recipe": recipe.to_yaml()})
    return run


def check_output(
    recipe: Recipe | EncoderRecipe, resume: bool, overwrite: bool, complete: Callable[[Path], object] = checkpoints
) -> None:
    """Raise ValueError where this run would destroy what another one has left in the output folder.

    Args:
        complete: tells of a folder whether it has checkpoints to go on from.
    """
    output = Path(recipe.output)
    made_by = output / "model" / "recipe.yaml"
    if overwrite:
        return
    if (output / "model").exists() and not recipe.is_saved_as(made_by):
        raise ValueError(
            f"{output / 'model'} was made by another recipe: use another --output, or --overwrite to replace it."
        )
    if complete(output / "checkpoints"):
        if not resume:
            raise ValueError(
                f"{output} has checkpoints of an unfinished run: go on with --resume, or start over with --overwrite."
            )
        recipe.check_same(output / "recipe.yaml")


def claim_output(
    recipe: Recipe | EncoderRecipe,
    resume: bool,
    log: Callable[[str], None],
    complete: Callable[[Path], object] = checkpoints,
) -> None:
    """Make the output folder, which `check_output` has let pass, this recipe's, and say what becomes of what is there."""
    output = Path(recipe.output)
    made, saved, unfinished = output / "model", output / "recipe.yaml", output / "checkpoints"
    if resume and not complete(unfinished):
        log(f"no checkpoint in {output}: starting from the beginning.")
    if made.exists():
        same = "by this very recipe" if recipe.is_saved_as(made / "recipe.yaml") else "before"
        log(f"{made} was made {same}: it is replaced when this run is done.")
    if not resume or not recipe.is_saved_as(saved):
        shutil.rmtree(unfinished, ignore_errors=True)
    recipe.save(saved)


def _check(run: Run) -> None:
    for objective in run.objectives:
        objective.check(run)
    assert run.texts, "reading them fails where there are none"


def _write_store(run: Run) -> None:
    """Claim the output folder, and write the store into it. Neither the text nor its tokens and states are ever in memory
    as a whole."""
    recipe, model = run.recipe, run.model
    claim_output(recipe, run.resume, run.log)
    tokens = write_tokens(model, run.texts, run.output / "store", not run.quiet)
    rows, held_out = _split(tokens, model, recipe)
    cache_type = recipe.cache_type if model.config.freeze_encoder and recipe.cache == "auto" else None
    encode_sentences(model, tokens, cache_type, partial(needed_rows, run, tokens, rows, held_out), run.log)


def open_store(run: Run) -> None:
    """Open the store in every process, and say which sentences to train on."""
    run.store = StateStore(run.output / "store")
    run.rows, run.held_out = _split(run.store, run.model, run.recipe)
    compared = run.rows[run.store.is_encoded(run.rows)][:COMPARED]
    if float(np.ptp(run.store.anchors()[compared], axis=0).max()) < 1e-6:
        raise ValueError("all sentences have the same embedding: there is nothing to tell apart. Check the corpus.")


def _split(tokens: TokenFile, model: HardKumaModel, recipe: Recipe) -> tuple[np.ndarray, np.ndarray]:
    rows, held_out = split_held_out(usable_rows(tokens, model), recipe.held_out, recipe.seed)
    if not len(rows):
        raise ValueError(f"no sentence of {', '.join(recipe.data)} has a token that can be selected: check the files.")
    return rows, held_out


def needed_rows(
    run: Run, tokens: TokenFile, rows: np.ndarray, held_out: np.ndarray, stores_states: bool
) -> np.ndarray | None:
    """Numbers of the sentences whose embeddings, and states, a run reads. None is all of them.

    Args:
        rows, held_out: numbers of the sentences to train on, and of those kept back.
        stores_states: whether states are stored; where they are not, most of a run encodes anew and needs nothing.
    """
    some = [rows[:COMPARED], held_out]
    if stores_states:
        if run.recipe.surface:
            return None  # which goes over all text
        some.append(calibration_rows(rows, run.recipe.seed, bool(run.model.config.parts)))
    for objective in run.objectives:
        needed = objective.needed_rows(run, tokens, rows, stores_states)
        if needed is None:
            return None
        some.append(needed)
    return np.unique(np.concatenate(some))


class InterruptFlag:
    """While active, SIGINT and SIGTERM set the flag and do nothing else; a second one acts as it did before.

    >>> with InterruptFlag() as interrupt:
    ...     signal.raise_signal(signal.SIGTERM)
    >>> interrupt.is_set
    True
    """

    def __init__(self) -> None:
        self.is_set = False
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> InterruptFlag:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._handlers[number] = signal.signal(number, self._set)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def _set(self, number: int, frame: FrameType | None) -> None:
        self.is_set = True
        signal.signal(number, self._handlers[number])
