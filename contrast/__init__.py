"""The sentence encoder itself, trained by contrast with sentence-transformers: recipe, batches of views, objectives, a run."""
