"""Kill a training run with SIGKILL at random moments, resume it each time, and compare the result with an undisturbed run.

    python benchmarks/kill_and_resume.py --kills 20

Kills fall anywhere: during imports, while the state store is written, between and within steps and checkpoints. The run's
length is set so that it cannot finish between two kills; after the last kill it is left alone. Exit code 0 means that every
resume worked and the final weights are the same to the bit.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from hardkuma.training.resuming import checkpoints

ROOT = Path(__file__).resolve().parents[1]


def command(output: Path, steps: int) -> list[str]:
    settings = {
        "model.view": "input",
        "model.temperature": "0.1",
        "model.selector_dropout": "0.1",
        "max_sentences": "800",
        "epochs": "100000",
        "max_steps": str(steps),
        "evaluate_every": "200",
        "checkpoint_every": "20",
        "log_every": "20",
        "output": str(output),
    }
    words = [sys.executable, str(ROOT / "train.py"), "--resume"]
    return words + [word for key, value in settings.items() for word in (f"--{key}", value)]


def run(words: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20, help="how often to kill (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=1500, help="steps of the run (default: %(default)s)")
    parser.add_argument(
        "--longest", type=float, default=16.0, help="latest kill after a start, in seconds (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the kill times (default: %(default)s)")
    arguments = parser.parse_args()
    draw = random.Random(arguments.seed)
    with tempfile.TemporaryDirectory() as folder:
        whole, cut = Path(folder) / "whole", Path(folder) / "cut"
        run(command(whole, arguments.steps)).check_returncode()
        for kill in range(arguments.kills):
            process = subprocess.Popen(
                command(cut, arguments.steps),
                start_new_session=True,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
            delay = draw.uniform(0.5, arguments.longest)
            try:
                error = process.communicate(timeout=delay)[1]
                print(f"the run ended by itself before kill {kill + 1} (exit code {process.returncode}); use more --steps")
                print(error[-2000:])
                return 1
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            written = checkpoints(cut / "checkpoints")
            reached = int(written[-1].name.removeprefix("step-")) if written else 0
            print(f"kill {kill + 1:2d} after {delay:5.2f} s, last checkpoint at step {reached}", flush=True)
        start = time.time()
        done = run(command(cut, arguments.steps))
        if done.returncode != 0:
            print(f"the last resume failed:\n{done.stderr[-2000:]}")
            return 1
        same = (whole / "model/model.safetensors").read_bytes() == (cut / "model/model.safetensors").read_bytes()
        print(f"finished in {time.time() - start:.0f} s more; weights {'are the same to the bit' if same else 'DIFFER'}")
        return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
