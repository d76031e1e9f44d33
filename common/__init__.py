"""What several rooms share: models by name, optional packages, whole files, versions, our own sentences to show."""
