"""transformers' own common model tests on the three model classes, by the kit that runs them on two.

    python tests/conformance.py KIT [pytest options]        KIT holds test_conformance.py and transformers/; the package
                                                            `parameterized` must be installed

Not part of the suite: the kit is not ours, and takes minutes.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    kit = Path(sys.argv[1]).resolve()
    # The kit has a package `tests` of its own: ours, and its conftest.py, must not be found.
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--disable-warnings", "--noconftest"]
    command += [
        "--import-mode=importlib",
        f"--rootdir={kit}",
        str(kit / "test_conformance.py"),
        str(Path(__file__).resolve()),
    ]
    paths = os.pathsep.join(map(str, (kit / "transformers", kit)))
    variables = {**os.environ, "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1", "HF_HUB_OFFLINE": "1"}
    sys.exit(subprocess.run(command + sys.argv[2:], cwd=kit / "transformers", env=variables).returncode)

import test_conformance  # the module: a class of its would be collected here once more
import torch

from hardkuma import HardKumaForSequenceClassification


class SequenceClassifierConformance(test_conformance.HardKumaConformance):
    all_model_classes = (HardKumaForSequenceClassification,)

    def _prepare_for_class(
        self, inputs_dict: dict[str, Any], model_class: type, return_labels: bool = False
    ) -> dict[str, Any]:
        inputs: dict[str, Any] = super()._prepare_for_class(inputs_dict, model_class)
        return {**inputs, "labels": torch.zeros(len(inputs["input_ids"]), dtype=torch.long)} if return_labels else inputs
