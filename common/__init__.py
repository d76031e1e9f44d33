"""What several rooms share: models by name, optional packages, whole files, checks, versions, our own sentences to show."""
