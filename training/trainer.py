"""One training run: its recipe, model and text, where it stands, and the folder that it leaves.

trainer = Trainer(load_recipe("default"))
if trainer.run():                   # the gates of meaning, by the recipe's objective; False after Ctrl-C
    folder = trainer.complete()     # the gates of entities, calibration, surface view, and all that is saved
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType, InitProcessGroupKwargs, broadcast_object_list
from torch import Tensor
from tqdm import tqdm

from ..common.files import write_atomically
from ..configuration_hardkuma import ENTITIES
from ..evaluation.corpora import read_corpus
from ..evaluation.parts import PARTS_OF_SPEECH, Parts, draw_shares, measure_parts
from ..modeling_hardkuma import HardKumaModel
from .calibration import calibrate_rate
from .criterion import Quality, mean_quality, selection_quality
from .fitting import take_meaning
from .form import FormTraining, check_capitals, train_by_form
from .interrupts import InterruptFlag
from .preparing import open_store, prepare_store
from .recipe import Recipe
from .removal import Removal, train_by_removal
from .report import KINDS_PICTURE, Story, card_sections, plot_history, write_record
from .resuming import Progress, checkpoints, load_checkpoint, load_trained_state, save_checkpoint, trained_state
from .sharding import gather_whole, shard_model
from .specialise import name_kinds, specialise
from .steps import epoch_batches, learning_rate, local_batch, prefetched, step_seed, train_step
from .store import StateStore

PATIENCE = timedelta(hours=3)  # of processes that wait while one of them tokenises and encodes the text


class Trainer:
    """One run.

    Attributes:
        base: the model itself; `model` is the same as accelerate wraps it for several processes.
        store: the text, tokenised and, where the encoder is frozen, encoded.
        rows, held_out: numbers of the sentences to train on, and of those kept back for the label-free criterion.
        progress, best: where the run stands, and the best weights so far.
        total: steps of the contrastive phase.
    """

    def __init__(self, recipe: Recipe, resume: bool = False):
        recipe.check_model()  # before anything is read, claimed or loaded
        self.recipe, self.output, self.started = recipe, Path(recipe.output), time.time()
        trackers: dict[str, Any] = {"log_with": recipe.trackers, "project_dir": recipe.output} if recipe.trackers else {}
        patience = InitProcessGroupKwargs(timeout=PATIENCE)
        self.accelerator = Accelerator(mixed_precision=recipe.mixed_precision, kwargs_handlers=[patience], **trackers)
        self.sharded = self.accelerator.distributed_type == DistributedType.FSDP
        self._check_processes()
        self._claim_output(resume)
        torch.manual_seed(recipe.seed)
        self.base = HardKumaModel.from_encoder(recipe.encoder, **recipe.model_settings()).to(self.accelerator.device)
        self.store, self.rows, self.held_out = self._prepare_text()
        if self.sharded:
            shard_model(self.base, self.accelerator)
        trained = [parameter for parameter in self.base.parameters() if parameter.requires_grad]
        optimizer = torch.optim.AdamW(trained, lr=recipe.learning_rate, weight_decay=recipe.weight_decay)
        if self.sharded:
            self.model, self.optimizer = self.base, self.accelerator.prepare_optimizer(optimizer)
        else:
            self.model, self.optimizer = self.accelerator.prepare(self.base, optimizer)
        self.interrupt = InterruptFlag()
        self.progress = Progress()
        self.best: dict[str, Tensor] | None = None
        self.removal: Removal | None = None
        if resume:
            self._resume()
        self.steps_per_epoch = len(self.rows) // recipe.batch_size
        self.total = min(recipe.epochs * self.steps_per_epoch, recipe.max_steps or sys.maxsize)
        if recipe.trackers:
            self.accelerator.init_trackers("hardkuma", config={"recipe": recipe.to_yaml()})

    def log(self, text: str) -> None:
        """Tell the user, once for all processes."""
        if self.accelerator.is_main_process:
            tqdm.write(text, file=sys.stderr)

    # ---- before the first step ----------------------------------------------------------------------------------------

    def _check_processes(self) -> None:
        recipe, processes = self.recipe, self.accelerator.num_processes
        if recipe.batch_size % processes:
            raise ValueError(f"batch_size {recipe.batch_size} cannot be shared by {processes} processes; use a multiple.")
        if self.sharded and not self.accelerator.is_fsdp2:
            raise ValueError(
                "weights are sharded by FSDP2 alone; use fsdp_version: 2, as recipes/accelerate/fsdp.yaml does."
            )
        if self.sharded and recipe.objective == "removal":
            raise ValueError(
                "objective: removal fits a small gate head, of which there is nothing to shard; use "
                "recipes/accelerate/multi_gpu.yaml instead of fsdp.yaml."
            )

    def _claim_output(self, resume: bool) -> None:
        """The output folder belongs to one recipe: another one must not go on with its checkpoints."""
        saved = self.output / "recipe.yaml"
        if resume:
            if not checkpoints(self.output / "checkpoints"):
                self.log(f"no checkpoint in {self.output}: starting from the beginning.")
            else:
                self.recipe.check_same(saved)
        self.accelerator.wait_for_everyone()
        if self.accelerator.is_main_process:
            if not resume:
                shutil.rmtree(self.output / "checkpoints", ignore_errors=True)
            self.recipe.save(saved)
        self.accelerator.wait_for_everyone()

    def _prepare_text(self) -> tuple[StateStore, np.ndarray, np.ndarray]:
        """The store, and the numbers of training and of held-out sentences."""
        self.examples: list[str] = []
        failure: str | None = None
        if self.accelerator.is_main_process:  # the others wait, those of other machines too; where it fails, all do
            try:
                self.examples = prepare_store(self.base.eval(), self.recipe, self.output, self.log)
            except (OSError, ValueError) as error:
                if self.accelerator.num_processes == 1:
                    raise
                failure = str(error)
        failure = broadcast_object_list([failure])[0]
        if failure is not None:
            raise ValueError(failure)
        return open_store(self.base, self.recipe, self.output)

    def _resume(self) -> None:
        complete = checkpoints(self.output / "checkpoints")
        if complete:
            self.progress, self.best = load_checkpoint(complete[-1], self.base, self.optimizer)
            self.log(f"resuming from step {self.progress.step}.")

    # ---- the first phase ----------------------------------------------------------------------------------------------

    def run(self) -> bool:
        """Train to the end, to an early stop, or to Ctrl-C; False in the last case."""
        if self._trains_entities():  # before hours of another phase
            check_capitals(self.base, self.store, self.rows)
        return self._run_removal() if self.recipe.objective == "removal" else self._run_contrastive()

    def _trains_entities(self) -> bool:
        return ENTITIES in self.base.config.names and self.recipe.entities_epochs > 0

    def _run_removal(self) -> bool:
        """The removal objective. What is measured stays on disk: a run that is started again does not measure it again."""
        quiet, meaning = not self.accelerator.is_main_process, self.base.config.find_selector()
        if self.recipe.meaning is not None:
            take_meaning(self.base, self.recipe.meaning)
            return True
        with self.interrupt:
            self.removal = train_by_removal(
                self.base,
                self.store,
                self.rows,
                self.recipe,
                selector=meaning,
                accelerator=self.accelerator,
                interrupted=self._agree_on_interrupt,
                progress=not quiet,
            )
        if self.removal is None:
            self.log("stopped; the same command goes on where it was.")
        return self.removal is not None

    def _run_contrastive(self) -> bool:
        progress, quiet = self.progress, not self.accelerator.is_main_process
        bar = tqdm(total=self.total, initial=progress.step, desc="training", unit="step", disable=quiet)
        with self.interrupt, bar:
            for inputs in self._batches():
                if progress.step >= self.total or progress.stopped_early or self._is_interrupted():
                    break
                self._take_step(inputs, bar)
        if self.interrupt.is_set:
            self._save_checkpoint()
            self.log(f"stopped at step {progress.step}; go on with --resume.")
        return not self.interrupt.is_set

    def _batches(self) -> Iterator[dict[str, Any]]:
        """This process's inputs from the current step on, over as many epochs as it takes."""
        epoch, skip = divmod(self.progress.step, self.steps_per_epoch)
        while True:
            batches = epoch_batches(self.recipe, self.store, self.rows, epoch, self.accelerator)[skip:]
            yield from prefetched(self._read_inputs, batches, first=epoch * self.steps_per_epoch + skip)
            epoch, skip = epoch + 1, 0

    def _read_inputs(self, step: int, batch: np.ndarray) -> dict[str, Any]:
        return local_batch(self.store, batch, self.base.config, self.recipe.seed, step, self.accelerator)

    def _is_interrupted(self) -> bool:
        """Whether any process was asked to stop; all of them get the same answer."""
        if self.accelerator.num_processes > 1 and self.progress.step % 10:  # agreeing costs a message
            return False
        return self._agree_on_interrupt()

    def _agree_on_interrupt(self) -> bool:
        if self.accelerator.num_processes > 1:
            flag = torch.tensor(float(self.interrupt.is_set), device=self.accelerator.device)
            self.interrupt.is_set = bool(self.accelerator.reduce(flag, "sum") > 0)
        return self.interrupt.is_set

    def _take_step(self, inputs: dict[str, Any], bar: tqdm) -> None:
        """One update, and what is due after it: a log entry, an evaluation, a checkpoint."""
        recipe, step = self.recipe, self.progress.step
        torch.manual_seed(step_seed(recipe.seed, step, self.accelerator.process_index))
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(recipe, step, self.total)
        self.model.train()
        loss, terms, rate = train_step(self.model, self.optimizer, inputs, recipe, self.accelerator)
        self.progress.step += 1
        bar.update()
        last = self.progress.step == self.total
        if step % recipe.log_every == 0 or last:
            entry = self._log_step(step, loss, terms, rate)
            bar.set_postfix(loss=f"{entry['loss']:.3f}", rate=f"{entry['rate']:.2f}")
        if self.progress.step % recipe.evaluate_every == 0 or last:
            self.evaluate()
        if self.progress.step % recipe.checkpoint_every == 0 and not last:
            self._save_checkpoint()

    def _log_step(self, step: int, loss: Tensor, terms: dict[str, Tensor], rate: Tensor) -> dict[str, Any]:
        """Means over all processes; a term with a value for each selector becomes as many entries."""
        values = {"loss": loss, "rate": rate}
        for name, term in terms.items():
            for k, value in enumerate(term.flatten()):
                values[f"loss/{name}" + (f"/{k}" if term.numel() > 1 else "")] = value
        means = self.accelerator.reduce(torch.stack(list(values.values())), "mean").tolist()
        entry = {"step": step, **dict(zip(values, means, strict=True))}
        entry["learning_rate"] = self.optimizer.param_groups[0]["lr"]
        self._record(entry)
        return entry

    def evaluate(self) -> None:
        """Score the held-out text on the main process; all processes act on the same number."""
        # With sharded weights a forward pass needs every process.
        qualities = [self._measure() if self.accelerator.is_main_process or self.sharded else None]
        quality: Quality | None = broadcast_object_list(qualities)[0]
        if quality is None:
            return
        progress = self.progress
        self._record({"step": progress.step, **quality.as_dict(), "held_out_rate": quality.rate})
        if quality.score > progress.best_score:
            progress.best_score, progress.best_step, progress.looks_without_gain = quality.score, progress.step, 0
            self.best = trained_state(self.base)
        else:
            progress.looks_without_gain += 1
            progress.stopped_early = 0 < self.recipe.patience <= progress.looks_without_gain
        if self.accelerator.is_main_process:
            self._write_log()

    def _measure(self) -> Quality | None:
        """The label-free criterion on the held-out text, if any was held out, of the gates that are being trained."""
        if not len(self.held_out):
            return None
        each = range(self.base.config.num_selectors)
        return mean_quality([selection_quality(self.base, self.store, self.held_out, k) for k in each])

    def _measure_each(self, phase: str, names: Sequence[str]) -> dict[str, Quality]:
        """The criterion of these selectors, which a phase has changed, by their names; also into the log."""
        qualities = {}
        for name in names if len(self.held_out) else []:
            number = self.base.config.names.index(name)
            qualities[name] = selection_quality(self.base, self.store, self.held_out, number)
            entry = {"step": self.progress.step, "phase": phase, "selector": name, **qualities[name].as_dict()}
            self.progress.history.append(entry)
        return qualities

    def _record(self, entry: dict[str, Any]) -> None:
        self.progress.history.append(entry)
        self.accelerator.log({key: value for key, value in entry.items() if key != "step"}, step=entry["step"])

    def _save_checkpoint(self) -> None:
        main, folder = self.accelerator.is_main_process, self.output / "checkpoints"
        if main or self.sharded:  # of sharded weights every process has a part
            save_checkpoint(folder, self.base, self.optimizer, self.best, self.progress, self.recipe.keep, writes=main)
        if main:
            self._write_log()
        self.accelerator.wait_for_everyone()

    def _write_log(self) -> None:
        write_atomically(self.output / "log.jsonl", "".join(json.dumps(entry) + "\n" for entry in self.progress.history))

    # ---- after the last step ------------------------------------------------------------------------------------------

    def complete(self) -> Path:
        """From the best weights to the folder that can be loaded and pushed: second phase, surface view, plots, card."""
        folder = self.output / "model"
        if self.best is not None:
            load_trained_state(self.base, self.best)
        if self.sharded:
            self._gather_shards()
        if self.accelerator.is_main_process:
            self.base.eval()
            self._save(folder, self.finish_gates())
            for temporary in ("checkpoints", "store"):
                shutil.rmtree(self.output / temporary, ignore_errors=True)
        self.accelerator.wait_for_everyone()
        if self.recipe.trackers:
            self.accelerator.end_training()
        return folder

    def _gather_shards(self) -> None:
        """Put the shards of all processes together in a model of its own, on the main process's device: what is left to do
        may go over all text."""
        main = self.accelerator.is_main_process
        whole = gather_whole(self.base.state_dict(), keeps=main)
        if main:
            tokenizer, self.base = self.base.tokenizer, HardKumaModel(self.base.config)
            self.base.load_state_dict(whole)
            self.base.tokenizer = tokenizer
            self.base.to(self.accelerator.device)

    def finish_gates(self) -> FormTraining | None:
        """Selectors that part and gates of entities, where there are any; rates, where they are held; the surface view."""
        recipe, config, form = self.recipe, self.base.config, None
        if config.kinds:
            parted = specialise(self.base, self.store, self.rows, recipe, selectors=config.kinds)
            self.progress.history.append(
                {"step": self.progress.step, "phase": "kinds", "words": parted.words, **parted.terms}
            )
        meaning = config.names[config.find_selector()]
        self._measure_each(recipe.objective, [meaning] if recipe.objective == "removal" else config.names)
        if self._trains_entities():
            number = config.names.index(ENTITIES)
            form = train_by_form(self.base, self.store, self.rows, recipe, selector=number)
            self._measure_each("form", [ENTITIES])
        if config.rate_constraint != "none" or recipe.objective == "removal":
            calibrate_rate(self.base, self.store, self.rows, recipe.seed)
        if config.kinds:
            name_kinds(self.base, self.examples, recipe.selector_names)
        if recipe.surface:
            batches = self.store.batches(self.rows, self.base)
            self.base.adapt_surface({**batch.inputs, "surface_ids": batch.shapes} for batch in batches)
        return form

    def _save(self, folder: Path, form: FormTraining | None) -> None:
        """Log, plots, card, weights and the record of the run."""
        qualities = self._measure_each("saved", self.base.config.names)
        self._write_log()
        plots = plot_history(self.progress.history, self.base.config.target_rates, self.output)
        kinds = self._measure_kinds()
        if kinds is not None and kinds.tags is not None:
            draw_shares(kinds, self.output / KINDS_PICTURE)
            plots = [*plots, KINDS_PICTURE]
        story = Story(len(self.rows), self.progress.best_step, self.removal, form, plots, kinds)
        card = card_sections(self.base, self.recipe, story, qualities, self._measure_entities())
        self.base.save_pretrained(folder, card=card)
        write_record(folder, self.recipe, time.time() - self.started, self.accelerator.num_processes)
        for name in ("log.jsonl", *plots):
            write_atomically(folder / name, (self.output / name).read_bytes())

    def _measure_entities(self) -> dict[str, float] | None:
        """Against the gold words of the development file, if there is one."""
        if self.recipe.dev is None or self.base.config.kinds:
            return None
        from ..evaluation.measure import entity_numbers

        return entity_numbers(self.base, self.recipe.dev)

    def _measure_kinds(self) -> Parts | None:
        """Of selectors that part: on the development file, if there is one with parts of speech, or else on some text."""
        if not self.base.config.kinds:
            return None
        sentences = [] if self.recipe.dev is None else read_corpus(self.recipe.dev).sentences
        tagged = bool(sentences) and {tag for sentence in sentences for tag in sentence.tags} <= PARTS_OF_SPEECH
        return measure_parts(self.base, sentences if tagged else self.examples)
