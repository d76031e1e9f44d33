"""The sentence encoder itself, trained by contrast: recipe, batches of views, objectives, and a run of them all."""
