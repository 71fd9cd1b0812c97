"""Models on the Hugging Face Hub: which names are of it, and their files in the local cache."""

from __future__ import annotations

from pathlib import Path

from fastkernels import registry
from fastkernels.errors import UsageError

PIPELINE = "model_index.json"  # a repository of diffusers: a folder for each part
SCHEDULER = "scheduler"  # of a pipeline: a folder without weights, and a section of the configuration
_TOKENIZERS = "tokenizer*"  # folders of a pipeline, one for each text encoder
_HUB_FILES = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja"]
_PICKLED = "*pytorch_model*.bin"  # where a folder has no safetensors files


def is_hub_id(name: str) -> bool:
    return name.count("/") == 1 and not name.startswith((".", "/", "~"))


def download(repository: str, files: list[str] | None = None) -> Path:
    """The folder of a Hub repository in the local cache (HF_HOME), fetched if need be; HF_TOKEN opens gated
    ones. files: patterns of their names; default all that a model needs."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
    )

    try:
        if files is not None:
            return Path(snapshot_download(repository, allow_patterns=files))
        # A pipeline's repository has more than its parts: the same weights again in one file.
        folder = Path(snapshot_download(repository, allow_patterns=[PIPELINE]))
        further = [name for entry in registry.architectures() for name in entry.further_weights]
        wanted, weights = [*_HUB_FILES, *further], [""]
        if (folder / PIPELINE).is_file():
            parts = registry.architecture_for(registry.read_config(folder / PIPELINE)).components
            weights = [f"{part}/" for part in parts]
            parts = (*parts, SCHEDULER, _TOKENIZERS)
            wanted = [PIPELINE, *(f"{part}/{pattern}" for part in parts for pattern in _HUB_FILES)]
        folder = Path(snapshot_download(repository, allow_patterns=wanted))
        pickled = [part + _PICKLED for part in weights if not any((folder / part).glob("*.safetensors"))]
        return Path(snapshot_download(repository, allow_patterns=pickled)) if pickled else folder
    except GatedRepoError as error:
        raise UsageError(
            f"{repository} is gated: accept its licence on huggingface.co and set HF_TOKEN"
        ) from error
    except RepositoryNotFoundError as error:
        raise UsageError(
            f"No repository {repository} on huggingface.co (a private one needs HF_TOKEN)"
        ) from error
    except (LocalEntryNotFoundError, OfflineModeIsEnabled) as error:
        raise UsageError(
            f"{repository} is not in the local Hugging Face cache, and the Hub cannot be reached "
            "(no network, or HF_HUB_OFFLINE is set). Download it once with network, set HF_HOME to a cache "
            "that has it, or give a folder or an architecture id (random weights)"
        ) from error
    except (HfHubHTTPError, HFValidationError) as error:
        raise UsageError(f"{repository} cannot be downloaded: {error}") from error
