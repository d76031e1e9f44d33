"""The parts of `train.py`: recipe, state store, steps, label-free criterion, checkpoints, reports."""
