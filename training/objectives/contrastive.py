"""The contrastive objective: the rationale of a sentence finds its sentence again among others, its complement does not.

    loss = L_rat - lambda_cmp L_cmp + lambda_s sparsity + lambda_tv TV + lambda_e constraint (+ lambda_kl KL)

over all selectors of this objective together (losses_hardkuma.py); gates are sampled. It alone can train the encoder too
(`model.freeze_encoder: false`), runs in several processes by DistributedDataParallel, and resumes from checkpoints, to the
bit. The weights that are kept are those of the best evaluation on the held-out text.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from accelerate.utils import broadcast_object_list
from torch import Tensor
from tqdm import tqdm

from ...losses_hardkuma import LossRows
from ..criterion import Quality, calibrate_rate, mean_quality, selection_quality
from ..loop import (
    Progress,
    epoch_batches,
    learning_rate,
    load_last_checkpoint,
    load_trained_state,
    local_batch,
    local_rate,
    prefetched,
    save_checkpoint,
    step_seed,
    train_step,
    trained_state,
)
from ..report import plot_history
from ..store import TokenFile
from ..words import standardise_measures
from .base import Objective, Report
from .settings import ContrastiveSettings

if TYPE_CHECKING:
    from ..run import Run


class Contrastive(Objective[ContrastiveSettings]):
    """Trains its selectors together, by sampled gates."""

    UNITS = ("token", "word", "name")
    fitting: _Fitting

    def check(self, run: Run) -> None:
        super().check(run)
        size, processes = self.settings.batch_size, run.accelerator.num_processes
        if size % processes:
            raise ValueError(f"batch_size {size} cannot be shared by {processes} processes; use a multiple.")
        _check_size(len(run.texts) - min(run.recipe.held_out, len(run.texts) // 5), size)

    def fit(self, run: Run) -> bool:
        _check_size(len(run.rows), self.settings.batch_size)
        run.fit_on_main(self._prepare, run)
        self.fitting = _Fitting(run, self)
        if not self.fitting.run_all():
            return False
        if run.model.config.rate_constraint != "none":
            numbers = self.numbers(run.model.config)
            run.fit_on_main(calibrate_rate, run.model, run.store, run.rows, run.recipe.seed, numbers)
        return True

    def _prepare(self, run: Run) -> None:
        run.fill_isolated_table()
        for number in self.numbers(run.model.config):
            standardise_measures(run.model, number, run.store, run.rows)

    def report(self, run: Run) -> Report:
        progress, settings = self.fitting.progress, self.settings
        names = " and ".join(f"`{name}`" for name in self.selectors)
        paragraph = (
            f"Gates of {names}: by the contrastive objective, in {progress.step:,} steps over batches of "
            f"{settings.batch_size} ({settings.batches}); the state of step {progress.best_step} was best by the "
            "label-free criterion below."
        )
        entry = {"phase": "contrastive", "steps": progress.step, "best_step": progress.best_step}
        rates = [run.model.config.selectors[name].target_rate for name in self.selectors]
        return Report(paragraph, [entry], plots=plot_history(run.history, rates, run.output))

    def needed_rows(self, run: Run, tokens: TokenFile, rows: np.ndarray, stores_states: bool) -> np.ndarray | None:
        # Neighbours are found by the embeddings of all sentences.
        return None if stores_states or self.settings.batches == "neighbours" else rows[:0]


def _check_size(sentences: int, batch_size: int) -> None:
    if sentences < batch_size:
        raise ValueError(
            f"{sentences} sentences are left for training, fewer than one batch of {batch_size}: "
            "give more text or a smaller batch_size."
        )


class _Fitting:
    """One fit: the optimizer, where it stands, and the best and the last weights."""

    def __init__(self, run: Run, contrastive: Contrastive):
        self.run, self.base, self.accelerator = run, run.model, run.accelerator
        self.settings, self.names = contrastive.settings, contrastive.selectors
        self.numbers = contrastive.numbers(run.model.config)
        # What another objective trains gets no gradient here, which DistributedDataParallel would wait for.
        self.others = [
            parameter
            for number, selector in enumerate(self.base.gate_head.selectors)
            if number not in self.numbers
            for parameter in selector.parameters()
        ]
        for parameter in self.others:
            parameter.requires_grad_(False)
        trained = [parameter for parameter in self.base.parameters() if parameter.requires_grad]
        settings = self.settings
        optimizer = torch.optim.AdamW(trained, lr=settings.learning_rate, weight_decay=settings.weight_decay)
        self.model, self.optimizer = self.accelerator.prepare(self.base, optimizer)
        self.folder = run.output / "checkpoints"
        self.progress, self.best = Progress(history=run.history), None
        if run.resume:
            self._resume()
        self.steps_per_epoch = len(run.rows) // settings.batch_size
        self.total = min(settings.epochs * self.steps_per_epoch, settings.max_steps or sys.maxsize)

    progress: Progress
    best: dict[str, Tensor] | None
    last: dict[str, Tensor]

    def _resume(self) -> None:
        self.progress, self.best = load_last_checkpoint(self.folder, self.base, self.optimizer, self.run.log)
        if self.progress.step:
            self.run.history[:] = self.progress.history
            self.run.log(f"resuming from step {self.progress.step}.")
        self.progress.history = self.run.history

    def run_all(self) -> bool:
        """Train to the end, or to Ctrl-C; False in the latter case."""
        run, progress = self.run, self.progress
        bar = tqdm(total=self.total, initial=progress.step, desc="training", unit="step", disable=run.quiet)
        with run.interrupt, bar:
            for inputs in self._batches():
                if progress.step >= self.total or self._is_interrupted():
                    break
                self._take_step(inputs, bar)
        if run.interrupt.is_set:
            self._save_checkpoint()
            run.log(f"stopped at step {progress.step}; go on with --resume.")
            return False
        self.last = trained_state(self.base)
        if self.best is not None:
            load_trained_state(self.base, self.best)
        # Mixed precision and processes end here: what follows is in full precision, on the model itself.
        self.accelerator.unwrap_model(self.model, keep_fp32_wrapper=False)
        for parameter in self.others:
            parameter.requires_grad_(True)
        self.base.eval()
        return True

    def _batches(self) -> Iterator[dict[str, Any]]:
        """This process's inputs from the current step on, over as many epochs as it takes."""
        run, seed = self.run, self.run.recipe.seed

        def read(step: int, batch: np.ndarray) -> dict[str, Any]:
            return local_batch(run.store, batch, self.base.config, self.names, seed, step, self.accelerator)

        epoch, skip = divmod(self.progress.step, self.steps_per_epoch)
        while True:
            batches = epoch_batches(self.settings, run.store, run.rows, seed, epoch, self.accelerator)[skip:]
            yield from prefetched(read, batches, first=epoch * self.steps_per_epoch + skip)
            epoch, skip = epoch + 1, 0

    def _is_interrupted(self) -> bool:
        if self.accelerator.num_processes > 1 and self.progress.step % 10:  # agreeing costs a message
            return False
        return self.run.is_interrupted()

    def _loss(self, rows: LossRows) -> tuple[Tensor, dict[str, Tensor]]:
        """Total and terms, over the selectors of this objective."""
        return self.base.losses_of(rows, self.names)

    def _take_step(self, inputs: dict[str, Any], bar: tqdm) -> None:
        """One update, and what is due after it: a log entry, an evaluation, a checkpoint."""
        settings, step = self.settings, self.progress.step
        torch.manual_seed(step_seed(self.run.recipe.seed, step, self.accelerator.process_index))
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(settings, step, self.total)
        self.model.train()
        loss, terms, rows = train_step(self.model, self.optimizer, inputs, settings, self.accelerator, self._loss)
        self.progress.step += 1
        bar.update()
        last = self.progress.step == self.total
        if step % settings.log_every == 0 or last:
            entry = self._log_step(step, loss, terms, local_rate(rows.probs.detach(), rows.content))
            bar.set_postfix(loss=f"{entry['loss']:.3f}", rate=f"{entry['rate']:.2f}")
        if self.progress.step % settings.evaluate_every == 0 or last:
            self._evaluate()
        if self.progress.step % settings.checkpoint_every == 0 and not last:
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
        self.run.record(entry)
        return entry

    def _evaluate(self) -> None:
        """Score the held-out text on the main process; all processes act on the same number."""
        qualities = [self._measure() if self.accelerator.is_main_process else None]
        quality: Quality | None = broadcast_object_list(qualities)[0]
        if quality is None:
            return
        progress = self.progress
        self.run.record({"step": progress.step, **quality.as_dict(), "held_out_rate": quality.rate})
        if quality.score > progress.best_score:
            progress.best_score, progress.best_step = quality.score, progress.step
            self.best = trained_state(self.base)
        if self.accelerator.is_main_process:
            self.run.write_log()

    def _measure(self) -> Quality | None:
        """The label-free criterion on the held-out text, if any was held out, of the gates that are being trained."""
        if not len(self.run.held_out):
            return None
        return mean_quality(
            [selection_quality(self.base, self.run.store, self.run.held_out, number) for number in self.numbers]
        )

    def _save_checkpoint(self) -> None:
        if self.accelerator.is_main_process:
            save_checkpoint(self.folder, self.base, self.optimizer, self.best, self.progress)
            self.run.write_log()
        self.accelerator.wait_for_everyone()
