"""One training run: its recipe, model and text, where it stands, and the folder that it leaves."""

from __future__ import annotations

import json
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType, broadcast_object_list
from tqdm import tqdm

from ..common.files import write_atomically
from ..modeling_hardkuma import HardKumaModel
from .calibration import calibrate_rate
from .cotraining import Cotraining, cotrain
from .criterion import Quality, selection_quality
from .recipe import Recipe
from .report import card_sections, plot_history, write_record
from .resuming import Progress, checkpoints, load_checkpoint, load_trained_state, save_checkpoint, trained_state
from .steps import epoch_batches, learning_rate, local_batch, prefetched, step_seed, train_step
from .store import StateStore, build_store, usable_rows
from .texts import load_training_texts


class Trainer:
    """One run: its recipe, model, text, and where it stands."""

    def __init__(self, recipe: Recipe, resume: bool):
        recipe.check_model()  # before anything is read, claimed or loaded
        self.recipe, self.output, self.started = recipe, Path(recipe.output), time.time()
        trackers = {"log_with": recipe.trackers, "project_dir": recipe.output} if recipe.trackers else {}
        self.accelerator = Accelerator(mixed_precision=recipe.mixed_precision, **trackers)
        world = self.accelerator.num_processes
        if recipe.batch_size % world:
            raise ValueError(f"batch_size {recipe.batch_size} cannot be shared by {world} processes; use a multiple.")
        self._claim_output(resume)
        torch.manual_seed(recipe.seed)
        self.base = HardKumaModel.from_encoder(recipe.encoder, **recipe.model).to(self.accelerator.device)
        self.texts = load_training_texts(recipe, self.say)
        self.store, self.rows, self.held_out = self._prepare_text()
        trained = [parameter for parameter in self.base.parameters() if parameter.requires_grad]
        optimizer = torch.optim.AdamW(trained, lr=recipe.learning_rate, weight_decay=recipe.weight_decay)
        self.model, self.optimizer = self.accelerator.prepare(self.base, optimizer)
        self.progress, self.best = Progress(), None
        self.sharded = self.accelerator.distributed_type == DistributedType.FSDP
        if resume:
            self._resume()
        per_epoch = len(self.rows) // recipe.batch_size
        self.total = min(recipe.epochs * per_epoch, recipe.max_steps or sys.maxsize)
        self.interrupted = False
        if recipe.trackers:
            self.accelerator.init_trackers("hardkuma", config={"recipe": recipe.to_yaml()})

    def say(self, text: str) -> None:
        if self.accelerator.is_main_process:
            tqdm.write(text, file=sys.stderr)

    def _claim_output(self, resume: bool) -> None:
        """The output folder belongs to one recipe: another one must not go on with its checkpoints."""
        saved = self.output / "recipe.yaml"
        if resume:
            if not checkpoints(self.output / "checkpoints"):
                self.say(f"no checkpoint in {self.output}: starting from the beginning.")
            elif saved.read_text(encoding="utf-8") != self.recipe.to_yaml():
                raise ValueError(
                    f"{saved} differs from this recipe: resume with the same settings, or use another --output."
                )
        self.accelerator.wait_for_everyone()
        if self.accelerator.is_main_process:
            if not resume:
                shutil.rmtree(self.output / "checkpoints", ignore_errors=True)
            self.recipe.save(saved)
        self.accelerator.wait_for_everyone()

    def _prepare_text(self) -> tuple[StateStore, np.ndarray, np.ndarray]:
        """The store, and the numbers of training and of held-out sentences."""
        recipe, config = self.recipe, self.base.config
        cache = recipe.cache_type if config.freeze_encoder and recipe.cache == "auto" else None
        folder = self.output / "store"
        if self.accelerator.is_local_main_process:
            self.base.eval()
            build_store(self.base, self.texts, folder, cache, say=self.say)
        self.accelerator.wait_for_everyone()
        store = StateStore(folder)
        rows = usable_rows(store, self.base)
        rows = rows[np.random.default_rng(recipe.seed).permutation(len(rows))]
        held = min(recipe.held_out, len(rows) // 5)
        train, held_out = np.sort(rows[held:]), np.sort(rows[:held])
        if len(train) < recipe.batch_size:
            raise ValueError(
                f"{len(train)} sentences are left for training, fewer than one batch of {recipe.batch_size}: "
                "give more text or a smaller batch_size."
            )
        anchors = store.anchors()
        if len(train) > 1 and float(np.ptp(anchors[train[:1000]], axis=0).max()) < 1e-6:
            raise ValueError("all sentences have the same embedding: there is nothing to tell apart. Check the corpus.")
        return store, train, held_out

    def _resume(self) -> None:
        if self.sharded:
            raise ValueError("--resume does not work with FSDP, which writes no checkpoints here; start without it.")
        found = checkpoints(self.output / "checkpoints")
        if found:
            self.progress, self.best = load_checkpoint(found[-1], self.base, self.optimizer)
            self.say(f"resuming from step {self.progress.step}.")

    # ---- the loop -----------------------------------------------------------------------------------------------------

    def _batches(self) -> Iterator[dict[str, Any]]:
        """This process's inputs from the current step on, over as many epochs as it takes."""
        per_epoch = len(self.rows) // self.recipe.batch_size
        epoch, skip = divmod(self.progress.step, per_epoch)
        while True:
            batches = epoch_batches(self.recipe, self.store, self.rows, epoch, self.accelerator)[skip:]
            first = epoch * per_epoch + skip
            yield from prefetched(self._inputs, batches, first)
            epoch, skip = epoch + 1, 0

    def _inputs(self, step: int, batch: np.ndarray) -> dict[str, Any]:
        return local_batch(self.store, batch, self.base.config, self.recipe.seed, step, self.accelerator)

    def run(self) -> bool:
        """Train to the end, to an early stop, or to Ctrl-C; False in the last case."""
        recipe, progress, accelerator = self.recipe, self.progress, self.accelerator
        with self._interrupts(), tqdm(total=self.total, initial=progress.step, desc="training", unit="step",
                                      disable=not accelerator.is_main_process) as bar:  # fmt: skip
            for inputs in self._batches():
                if progress.step >= self.total or progress.stopped_early or self._asked_to_stop():
                    break
                step = progress.step
                torch.manual_seed(step_seed(recipe.seed, step, accelerator.process_index))
                for group in self.optimizer.param_groups:
                    group["lr"] = learning_rate(recipe, step, self.total)
                self.model.train()
                result = train_step(self.model, self.optimizer, inputs, recipe, accelerator)
                progress.step += 1
                bar.update()
                last = progress.step == self.total
                if step % recipe.log_every == 0 or last:
                    bar.set_postfix(self._log_step(step, *result))
                if progress.step % recipe.evaluate_every == 0 or last:
                    self._look()
                if progress.step % recipe.checkpoint_every == 0 and not last:
                    self._checkpoint()
        if self.interrupted:
            self._checkpoint()
            self.say(f"stopped at step {progress.step}; go on with --resume.")
        return not self.interrupted

    def _interrupts(self) -> Any:
        """Ctrl-C sets a flag, so that no step is cut in two."""
        return _Handler(lambda: setattr(self, "interrupted", True))

    def _asked_to_stop(self) -> bool:
        if self.accelerator.num_processes == 1:
            return self.interrupted
        if self.progress.step % 10:  # agreeing costs a message
            return False
        flag = torch.tensor(float(self.interrupted), device=self.accelerator.device)
        self.interrupted = bool(self.accelerator.reduce(flag, "sum") > 0)
        return self.interrupted

    def _log_step(
        self, step: int, loss: torch.Tensor, losses: dict[str, torch.Tensor], rate: torch.Tensor
    ) -> dict[str, str]:
        values = {"loss": loss, "rate": rate}
        for name, value in losses.items():
            for k, item in enumerate(value.flatten()):
                values[f"loss/{name}" + (f"/{k}" if value.numel() > 1 else "")] = item
        stacked = self.accelerator.reduce(torch.stack(list(values.values())), "mean").tolist()
        entry = {"step": step, **dict(zip(values, stacked, strict=True))}
        entry["learning_rate"] = self.optimizer.param_groups[0]["lr"]
        self._record(entry)
        return {"loss": f"{entry['loss']:.3f}", "rate": f"{entry['rate']:.2f}"}

    def _look(self) -> None:
        """Score the held-out text on the main process; all processes act on the same number."""
        found: list[Any] = [None]
        # With sharded weights a forward pass needs every process.
        if (self.accelerator.is_main_process or self.sharded) and len(self.held_out):
            found = [selection_quality(self.base, self.store, self.held_out, self.base.config.target_rate)]
        quality: Quality | None = broadcast_object_list(found)[0]
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

    def _record(self, entry: dict[str, Any]) -> None:
        self.progress.history.append(entry)
        self.accelerator.log({key: value for key, value in entry.items() if key != "step"}, step=entry["step"])

    def _checkpoint(self) -> None:
        if self.sharded:
            return
        if self.accelerator.is_main_process:
            save_checkpoint(
                self.output / "checkpoints", self.base, self.optimizer, self.best, self.progress, self.recipe.keep
            )
            self._write_log()
        self.accelerator.wait_for_everyone()

    def _write_log(self) -> None:
        write_atomically(self.output / "log.jsonl", "".join(json.dumps(e) + "\n" for e in self.progress.history))

    # ---- the result ---------------------------------------------------------------------------------------------------

    def finish(self) -> Path:
        """Best state, surface view, plots, card: the folder that can be loaded and pushed."""
        folder = self.output / "model"
        if self.best is not None:
            load_trained_state(self.base, self.best)
        if self.sharded:
            self._collect()
        if self.accelerator.is_main_process:
            self.base.eval()
            cotraining = self._second_phase()
            if self.recipe.surface:
                batches = self.store.batches(self.rows, self.base)
                self.base.adapt_surface({**batch.inputs, "surface_ids": batch.shapes} for batch in batches)
            self._write_log()
            plot_history(self.progress.history, self.base.config.target_rate, self.output)
            quality = None
            if len(self.held_out):
                quality = selection_quality(self.base, self.store, self.held_out, self.base.config.target_rate)
            card = card_sections(
                self.base, self.recipe, len(self.rows), quality, self.progress.best_step, self._dev_numbers(), cotraining
            )
            self.base.save_pretrained(folder, card=card)
            write_record(folder, self.recipe, time.time() - self.started, self.accelerator.num_processes)
            for name in ("losses.png", "rate.png", "log.jsonl"):
                if (self.output / name).is_file():
                    write_atomically(folder / name, (self.output / name).read_bytes())
            shutil.rmtree(self.output / "checkpoints", ignore_errors=True)
            shutil.rmtree(self.output / "store", ignore_errors=True)
        self.accelerator.wait_for_everyone()
        if self.recipe.trackers:
            self.accelerator.end_training()
        return folder

    def _collect(self) -> None:
        """Put the shards of all processes together in a model of its own, on the CPU of the main process."""
        whole = self.accelerator.get_state_dict(self.model)
        if self.accelerator.is_main_process:
            tokenizer, self.base = self.base.tokenizer, HardKumaModel(self.base.config)
            self.base.load_state_dict(whole)
            self.base.tokenizer = tokenizer

    def _second_phase(self) -> Cotraining | None:
        """Co-training, where the recipe asks for it; then the selection rate, where it is constrained."""
        recipe, config, found = self.recipe, self.base.config, None
        if recipe.cotraining_epochs:
            found = cotrain(
                self.base,
                self.store,
                self.rows,
                epochs=recipe.cotraining_epochs,
                weight=recipe.cotraining_weight,
                certainty=recipe.cotraining_certainty,
                seed=recipe.seed,
                log=self.say,
            )
        if config.rate_constraint != "none":
            calibrate_rate(self.base, self.store, self.rows, config.target_rate, recipe.seed)
        return found

    def _dev_numbers(self) -> dict[str, float] | None:
        if self.recipe.dev is None:
            return None
        from ..evaluation.entities import entity_numbers

        return entity_numbers(self.base, self.recipe.dev)


class _Handler:
    """While active, SIGINT and SIGTERM call `action`; a second Ctrl-C interrupts at once."""

    def __init__(self, action: Callable[[], None]):
        self.action, self.old = action, {}

    def _handle(self, number: int, frame: Any) -> None:
        self.action()
        signal.signal(number, self.old[number])

    def __enter__(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            self.old[number] = signal.signal(number, self._handle)

    def __exit__(self, *error: Any) -> None:
        for number, old in self.old.items():
            signal.signal(number, old)
