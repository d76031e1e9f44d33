"""One run of `hardkuma encoder`: text or pairs, views, objective, and sentence-transformers' trainer, which does the rest.

Of several processes each reads and scores the text for itself and takes its part of every batch; the first one writes.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import PartialState
from accelerate.utils import broadcast_object_list
from datasets import Dataset
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.base.evaluation import BaseEvaluator
from sentence_transformers.base.sampler import DefaultBatchSampler
from sentence_transformers.sentence_transformer.evaluation import EmbeddingSimilarityEvaluator
from torch.utils.data import SequentialSampler
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from ...checkpoint_hardkuma import staged
from ...common.files import SEAL, check_seal, seal_folder, write_atomically
from ...common.models import load_model
from ...encoder_hardkuma import resolve_encoder
from ...evaluation.baselines.encoder import SentenceEncoder
from ...evaluation.encoder_tasks import read_scored_pairs
from ..report import write_record
from ..run import PATIENCE, InterruptFlag, check_output, claim_output
from ..texts import load_training_texts, split_held_out
from .collator import DRAW, ROW, ViewCollator
from .geometry import GeometryEvaluator
from .layers import freeze_lower_layers, reset_top_layers, seeded, switch_off_dropout
from .objectives import Objective, encoder_of, mean_over_processes
from .pairs import Pair, mine_negatives, read_pairs
from .recipe import EncoderRecipe
from .scorers import score_sentences
from .sentence import Sentence, read_sentences
from .views import GATES, make_augmentation

OBJECTIVE = "objective.safetensors"


class EncoderRun:
    """One run; the folder of the recipe belongs to it.

    Attributes:
        model: the encoder that is trained.
        trainer: sentence-transformers' own.
        total: steps of the whole run.
    """

    def __init__(self, recipe: EncoderRecipe, resume: bool = False, quiet: bool = False, overwrite: bool = False):
        self.recipe, self.output, self.started = recipe, Path(recipe.output), time.time()
        self.processes = start_processes(recipe)
        self.quiet = quiet or not self.processes.is_main_process
        check_output(recipe, resume, overwrite, last_checkpoint)
        self.processes.wait_for_everyone()  # all have looked before anyone writes
        self.model = SentenceTransformer(
            resolve_encoder(recipe.encoder), device=None if torch.cuda.is_available() else "cpu"
        )
        self.model.model_card_data.generate_widget_examples = False  # rows of our dataset are numbers
        encoder = encoder_of(self.model)
        augmentation = make_augmentation(recipe.view, encoder.config.hidden_size, self.model.tokenizer)
        if not recipe.dropout:
            switch_off_dropout(encoder)
        pairs = self._read_pairs()
        rows, held_out = split_held_out(np.arange(len(pairs)), recipe.held_out, recipe.seed)
        _check_enough(len(pairs), len(rows), len(held_out), recipe.batch_size)
        texts = list(dict.fromkeys(text for pair in pairs for text in pair))
        number = {text: place for place, text in enumerate(texts)}
        sentences = score_texts(self.model, recipe, texts, augmentation.measures)  # by the intact encoder
        reset_top_layers(encoder, recipe.reset_layers, recipe.seed)
        freeze_lower_layers(encoder, recipe.freeze_layers)
        collator = ViewCollator(
            sentences,
            augmentation,
            self.model.tokenizer,
            encoder,
            recipe.views,
            recipe.seed,
            recipe.mlm_weight > 0,
            recipe.both_sides,
            [[number[text] for text in pair] for pair in pairs],
        )
        order = draw_rows(rows, recipe)
        self.total = len(order) // recipe.batch_size
        with seeded(recipe.seed, self.model.device):  # the head for masked words starts from random weights
            self.objective = Objective(self.model, recipe)
        if self.processes.is_main_process:
            claim_output(recipe, resume, self.log, last_checkpoint)  # all is checked
        self.processes.wait_for_everyone()
        self.checkpoint = last_checkpoint(self.output / "checkpoints", self.log)
        if self.checkpoint is not None:
            self.log(f"resuming from {self.checkpoint.name}.")
        self.interrupt = InterruptFlag()
        self.trainer = SentenceTransformerTrainer(
            model=self.model,
            args=self._arguments(),
            train_dataset=Dataset.from_dict({ROW: order, DRAW: list(range(len(order)))}),
            loss=self.objective,
            evaluator=self._evaluators(collator, held_out.tolist()),
            data_collator=collator,  # type: ignore[arg-type] # it makes the same features from other columns
            callbacks=[_Checkpointing(self.objective, self.interrupt)],
        )

    def _read_pairs(self) -> list[Pair]:
        """Every sentence with itself, or rows of columns; with hard negatives, which the first process mines for all."""
        recipe = self.recipe
        pairs: list[Pair]
        if recipe.columns:
            pairs = read_pairs(recipe, self.log)
        else:
            pairs = [(text, text) for text in load_training_texts(recipe, self.log)]
        if recipe.mine_negatives and pairs:
            mined = None
            if self.processes.is_main_process:
                mined = mine_negatives(pairs, self.model, recipe.mine_negatives, self.quiet)
                self.log(f"hard negatives: {len(mined):,} of {len(pairs):,} rows have {recipe.mine_negatives}.")
            pairs = broadcast_object_list([mined])[0]
        return pairs

    def log(self, text: str) -> None:
        """Tell the user, unless they want quiet."""
        if not self.quiet:
            print(text, file=sys.stderr)

    def _arguments(self) -> SentenceTransformerTrainingArguments:
        recipe = self.recipe
        schedule = {"constant": "constant_with_warmup"}.get(recipe.schedule, recipe.schedule)
        return SentenceTransformerTrainingArguments(
            output_dir=str(self.output / "checkpoints"),
            max_steps=self.total,
            per_device_train_batch_size=recipe.batch_size // self.processes.num_processes,
            learning_rate=recipe.learning_rate,
            weight_decay=recipe.weight_decay,
            warmup_steps=int(recipe.warmup * self.total),
            lr_scheduler_type=schedule,
            max_grad_norm=recipe.clip,
            bf16=recipe.mixed_precision == "bf16",
            fp16=recipe.mixed_precision == "fp16",
            seed=recipe.seed,
            batch_sampler=in_order,
            eval_strategy="steps",
            eval_steps=recipe.evaluate_every,
            save_strategy="steps",
            save_steps=recipe.checkpoint_every,
            save_total_limit=recipe.keep,
            logging_strategy="steps",
            logging_steps=recipe.log_every,
            report_to=recipe.trackers or "none",
            disable_tqdm=self.quiet,
            use_cpu=not torch.cuda.is_available(),
            dataloader_pin_memory=False,
            remove_unused_columns=False,
        )

    def _evaluators(self, collator: ViewCollator, held_out: list[int]) -> list[BaseEvaluator]:
        evaluators: list[BaseEvaluator] = [GeometryEvaluator(collator, held_out)]
        if self.recipe.dev is not None:
            pairs = read_scored_pairs(Path(self.recipe.dev))
            evaluators.append(EmbeddingSimilarityEvaluator(pairs.first, pairs.second, pairs.scores, write_csv=False))
        return evaluators

    def run(self) -> bool:
        """Train to the end or to Ctrl-C; False in the last case."""
        if self.checkpoint is not None:
            self.objective.load_state_dict(load_file(self.checkpoint / OBJECTIVE), strict=False)
        if self.total == 0:
            return True
        with self.interrupt:
            try:
                self.trainer.train(resume_from_checkpoint=None if self.checkpoint is None else str(self.checkpoint))
            except (SafetensorError, RuntimeError) as error:
                if isinstance(error, RuntimeError) and "inline_container" not in str(error):  # of torch, while it writes
                    raise
                raise OSError(f"a checkpoint could not be written ({error}); the last one before it is intact.") from error
        done = self.trainer.state.global_step >= self.total
        if not done:
            self.log(f"stopped at step {self.trainer.state.global_step}; go on with --resume.")
        return done

    def complete(self) -> Path:
        """Write `model/`, a sentence-transformers folder, with recipe, record and log; the checkpoints go."""
        folder = self.output / "model"
        if self.processes.is_main_process:
            with staged(folder) as stage:
                self.model.save_pretrained(str(stage), create_model_card=False)
                write_record(stage, self.recipe, time.time() - self.started, self.processes.num_processes)
                history = "".join(json.dumps(entry) + "\n" for entry in self.trainer.state.log_history)
                write_atomically(stage / "log.jsonl", history)
            shutil.rmtree(self.output / "checkpoints", ignore_errors=True)
        self.processes.wait_for_everyone()
        return folder


class _Checkpointing(TrainerCallback):
    """Ctrl-C ends a run after its step and a checkpoint; what the objective has learned is saved beside the encoder."""

    def __init__(self, objective: Objective, interrupt: InterruptFlag):
        self.objective, self.interrupt = objective, interrupt

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.objective.average_gradients()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        asked = torch.tensor(float(self.interrupt.is_set), device=args.device)
        if mean_over_processes(asked) > 0:  # any of them
            control.should_save = control.should_training_stop = True
        return control

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        folder = Path(args.output_dir or ".") / f"checkpoint-{state.global_step}"
        PartialState().wait_for_everyone()  # each process writes its own state of what is random
        if state.is_world_process_zero:
            own = {name: value.detach().cpu().clone() for name, value in self.objective.own_state().items()}
            save_file(own, folder / OBJECTIVE)
            seal_folder(folder)


def last_checkpoint(folder: Path, log: Callable[[str], None] = lambda text: None) -> Path | None:
    """The newest whole checkpoint.

    Args:
        log: told of those that are damaged.

    >>> last_checkpoint(Path("/no/such/folder")) is None
    True
    """
    sealed = [path for path in folder.glob("checkpoint-*") if (path / SEAL).is_file()]
    for path in sorted(sealed, key=lambda path: int(path.name.rpartition("-")[2]), reverse=True):
        try:
            check_seal(path)
        except OSError as error:
            log(f"{path} cannot be used ({error}): trying the checkpoint before it.")
            continue
        return path
    return None


def in_order(dataset: Dataset, batch_size: int, drop_last: bool, **options: Any) -> DefaultBatchSampler:
    """Batches in the dataset's own order, which `draw_rows` has made."""
    return DefaultBatchSampler(SequentialSampler(dataset), batch_size=batch_size, drop_last=True)


def draw_rows(rows: np.ndarray, recipe: EncoderRecipe) -> list[int]:
    """The sentences of the whole run in the order of training: every epoch shuffles anew, and no batch crosses two.

    >>> order = draw_rows(np.arange(10), EncoderRecipe(batch_size=4, max_steps=5))
    >>> len(order), len(set(order[:8])), len(set(order[8:16]))
    (20, 8, 8)
    """
    random, size = np.random.default_rng(recipe.seed), recipe.batch_size
    steps = recipe.epochs * (len(rows) // size) if recipe.max_steps is None else recipe.max_steps
    order: list[int] = []
    while len(order) < steps * size:
        order += random.permutation(rows)[: len(rows) // size * size].tolist()
    return order[: steps * size]


def score_texts(
    model: SentenceTransformer, recipe: EncoderRecipe, texts: Sequence[str], measures: Sequence[str]
) -> list[Sentence]:
    """Sentences with the scores that a view goes by: attention of the encoder as it was stored, gates of a checkpoint.

    Args:
        model: the recipe's encoder, before anything of it is reset or trained.
    """
    scorer = SentenceEncoder(encoder_of(model), model.tokenizer)
    sentences = read_sentences(scorer.tokenizer, texts, recipe.max_tokens)
    for measure in measures:
        judge = SentenceEncoder.from_model(load_model(recipe.gates)) if measure == GATES else scorer
        judge.max_length = recipe.max_tokens
        sentences = score_sentences(judge, texts, sentences, [measure])
    return sentences


def start_processes(recipe: EncoderRecipe) -> PartialState:
    """The processes of a run, one for each GPU; ValueError where they cannot share its batches."""
    processes = PartialState(cpu=not torch.cuda.is_available(), timeout=PATIENCE)
    number, gpus = processes.num_processes, torch.cuda.device_count()
    if number == 1 and gpus > 1:
        raise ValueError(
            f"{gpus} GPUs are visible to one process: start one for each (`accelerate launch -m hardkuma encoder ...`), or "
            "set CUDA_VISIBLE_DEVICES to one."
        )
    if recipe.batch_size % number:
        raise ValueError(f"batch_size must be a multiple of the {number} processes that share it, got {recipe.batch_size}.")
    return processes


def _check_enough(read: int, trained: int, held_out: int, batch_size: int) -> None:
    if held_out < 2:
        raise ValueError(
            f"{read} sentences are too few: a fifth is held out to measure uniformity, which takes 2 at least. "
            "Give 10 or more."
        )
    if trained < batch_size:
        raise ValueError(
            f"{trained} sentences are left for training, fewer than one batch of {batch_size}: "
            "give more text or a smaller batch_size."
        )
