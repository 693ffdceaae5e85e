"""A model directory uploaded to the model hub."""

from __future__ import annotations

from pathlib import Path

from raytriever.errors import ModelError


def push_to_hub(folder: Path, name: str) -> str:
    """Upload a directory as one commit; a repository that is not there yet is made, private.

    Args:
        folder: what is uploaded, all of it.
        name: OWNER/NAME.

    Returns:
        The address of the commit.

    Raises:
        ModelError: the hub cannot be reached or refuses.
    """
    from huggingface_hub import HfApi

    api = HfApi()
    try:
        api.create_repo(name, private=True, exist_ok=True)
        return str(api.upload_folder(repo_id=name, folder_path=folder, commit_message="Hand the model over").commit_url)
    except Exception as error:  # of the client, which has changed its HTTP library, and its exceptions, more than once
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelError(
            f"the hub did not take it ({reason})",
            f"--push-to-hub {name}",
            f"check the name, the connection and HF_TOKEN; what was written stands in {folder}",
        ) from error
