"""Find the base model's folder: local, remote, or on the model hub.

The pool's administrator names it, not a tenant, so that it may lie outside the roots that jobs are held to.
"""

from __future__ import annotations

from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from multigraft.api.reasons import Reason, RefusalError
from multigraft_trainer.storage.fetch import Options, download_folder
from multigraft_trainer.storage.roots import Location
from multigraft_trainer.storage.uri import LOCAL, ParsedUri, parse_uri, refuse

# Data only: weights as safetensors, configuration, tokenizer. Never Python, never pickles.
WANTED = ("*.json", "*.safetensors", "*.jinja", "*.model", "merges.txt", "vocab.txt")


def fetch_base_model(
    uri: str, *, revision: str | None, base: Path, cache_dir: Path, field: str, options: Options | None = None
) -> Path:
    """Give a local Hugging Face folder of the base model.

    Args:
        uri: Folder, or `hf://owner/name`; a path without scheme is relative to `base`.
        revision: Branch, tag or commit of a hub model.
        cache_dir: Where downloads are kept.
        options: fsspec's storage options; for the hub its `token`.

    Raises:
        RefusalError: `BaseModelInvalid`; `StorageNotAllowed` for a malformed URI; `NotSupported` without its package.
    """
    parsed = parse_uri(uri, field=field)
    if parsed.scheme == "hf":
        return _fetch_from_hub(uri, parsed, revision, cache_dir, field, options or {})
    if revision is not None:
        text = f"{field} {uri[:80]!r} is not on the model hub; revision is allowed with hf:// only"
        raise RefusalError(Reason.INVALID_SPEC, text)
    if parsed.scheme != LOCAL:
        return download_folder(
            Location(uri, field, parsed),
            cache_dir=cache_dir,
            missing=Reason.BASE_MODEL_INVALID,
            only=WANTED,
            options=options,
        )
    folder = base / parsed.path if parsed.is_relative else Path(parsed.path)
    if not folder.is_dir():
        raise refuse(field, uri, "is not a folder" if folder.exists() else "does not exist", Reason.BASE_MODEL_INVALID)
    return folder.resolve()


def _fetch_from_hub(
    uri: str, parsed: ParsedUri, revision: str | None, cache_dir: Path, field: str, options: Options
) -> Path:
    if len(parsed.parts) != 2:
        raise refuse(field, uri, "must be hf://owner/name", Reason.BASE_MODEL_INVALID)
    try:
        return _download_snapshot(parsed, revision, cache_dir, options)
    except GatedRepoError:
        raise refuse(field, uri, "is gated; a token with access is needed", Reason.BASE_MODEL_INVALID) from None
    except RevisionNotFoundError:
        raise refuse(field, uri, f"has no revision {revision!r}", Reason.BASE_MODEL_INVALID) from None
    except RepositoryNotFoundError:
        raise refuse(field, uri, "is not on the hub, or not public", Reason.BASE_MODEL_INVALID) from None
    except LocalEntryNotFoundError:
        what = "is not in the cache, and the hub cannot be reached"
        raise refuse(field, uri, what, Reason.BASE_MODEL_INVALID) from None
    except Exception as error:
        what = f"cannot be downloaded ({type(error).__name__})"
        raise refuse(field, uri, what, Reason.BASE_MODEL_INVALID) from error


def _download_snapshot(parsed: ParsedUri, revision: str | None, cache_dir: Path, options: Options) -> Path:
    def snapshot(*, local_files_only: bool) -> Path:
        folder = snapshot_download(
            repo_id="/".join(parsed.parts),
            revision=revision,
            cache_dir=cache_dir / "hub",
            allow_patterns=list(WANTED),
            token=options.get("token"),
            local_files_only=local_files_only,
        )
        return Path(folder)

    try:
        return snapshot(local_files_only=False)
    except OfflineModeIsEnabled:
        return snapshot(local_files_only=True)
