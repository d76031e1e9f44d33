"""A finished folder, uploaded."""

from __future__ import annotations

from pathlib import Path


def push_folder(folder: Path, repo: str, message: str) -> str:
    """Upload a folder as it is to a repository of the Hub, made where it is missing; the repository's full name."""
    from huggingface_hub import HfApi

    api = HfApi()
    name = api.create_repo(repo, exist_ok=True).repo_id
    api.upload_folder(repo_id=name, folder_path=folder, commit_message=message)
    return name
