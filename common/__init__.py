"""What several packages share: models by name, optional packages, whole files, command lines, texts, rendering."""
