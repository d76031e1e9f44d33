"""A tiny encoder folder and a small corpus, as gates are trained on; accelerate's singletons are reset between runs."""

from tests.training.conftest import _fresh_accelerator, corpus, encoder_folder

__all__ = ["_fresh_accelerator", "corpus", "encoder_folder"]
