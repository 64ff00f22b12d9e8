"""Downloads of models from the Hugging Face Hub by name: hf://OWNER/NAME, or hf://OWNER/NAME@REVISION."""

import os
import re
from collections.abc import Collection
from types import ModuleType

from absl import logging

from bert_tf.checkpoints.tensor_files.pytorch import check_allowed
from bert_tf.errors import ConfigError, DataError

SCHEME = "hf://"
_NAME = re.compile(r"hf://(?P<repo_id>[\w.-]+/[\w.-]+)(@(?P<revision>[\w./-]+))?", re.ASCII)


# The files that the formats read: a repository may hold the same weights for other libraries too. Those of an encoder
# are at the top or, with a modules.json, perhaps in its first folder; the next folders have the other modules.
_FOLDERS = ("", "0_*/")
_WEIGHTS, _PICKLED, _OTHERS = (
    tuple(f"{folder}{name}" for folder in _FOLDERS for name in names)
    for names in (
        ("model.safetensors", "model-*-of-*.safetensors", "model.safetensors.index.json", "bert_model.ckpt.*"),
        ("pytorch_model.bin", "pytorch_model-*-of-*.bin", "pytorch_model.bin.index.json"),
        (
            "config.json",
            "bert_config.json",
            "vocab.txt",
            "vocab.json",
            "merges.txt",
            "*.model",
            "tokenizer.json",
            "tokenizer_config.json",
            "added_tokens.json",
            "special_tokens_map.json",
            "adapter_config.json",
            "sentence_*_config.json",
            "modules.json",
            "config_sentence_transformers.json",
            "[1-9]_*/config.json",
            "[1-9]_*/model.safetensors",
        ),
    )
)
_PICKLED_MODULES = ("[1-9]_*/pytorch_model.bin",)


def fetch(name: str, allow_pickle: bool = False) -> str:
    """Downloads a model into the cache of huggingface_hub, unless it is already there.

    huggingface_hub checks for updates; if the Hub cannot be reached or denies access, or HF_HUB_OFFLINE is set, the
    cached revision is used.

    Args:
        name: "hf://OWNER/NAME" or "hf://OWNER/NAME@REVISION", with a branch, tag or commit.
        allow_pickle: download pickled weights if the model has no others.

    Returns:
        The path of a directory in the cache; its files must not be changed.
    """
    match = _NAME.fullmatch(name)
    if not match:
        raise ConfigError(f"{name}: not the name of a model on the Hub; expected hf://OWNER/NAME[@REVISION]")
    try:
        from huggingface_hub import errors, snapshot_download
    except ImportError:
        raise ConfigError(f"{name}: models of the Hub need huggingface_hub: pip install 'bert_tf[hub]'") from None
    repo_id, revision = match["repo_id"], match["revision"]
    # The second is imported there from the HTTP library of its version.
    failures: tuple[type[Exception], ...] = (OSError, ValueError, errors.HTTPError)  # type: ignore[attr-defined]
    try:
        # A dry run first: the files on the Hub decide which to download.
        listed = snapshot_download(
            repo_id, revision=revision, allow_patterns=[*_WEIGHTS, *_PICKLED, *_OTHERS], dry_run=True
        )
    except errors.HFValidationError as error:
        raise ConfigError(f"{name}: {_line(error)}") from None
    except errors.RevisionNotFoundError:
        raise DataError(f"{name}: the model has no revision {revision!r}; name a branch, tag or commit") from None
    except failures as error:
        cause = error.__cause__ if isinstance(error, errors.DryRunError) else error
        return _cached(name, repo_id, revision, cause)
    patterns = [*_choose({file.filename for file in listed}, name, allow_pickle), *_OTHERS]
    try:
        return snapshot_download(repo_id, revision=revision, allow_patterns=patterns)
    except failures as error:
        raise DataError(f"{name}: download failed: {_line(error)}; try again") from None


def _choose(files: Collection[str], name: str, allow_pickle: bool) -> tuple[str, ...]:
    """Patterns of the weight files to download."""
    others = _PICKLED_MODULES if allow_pickle else ()
    files = [file for file in files if not re.match("[1-9]_", file)]
    if any(file.endswith((".safetensors", ".index")) for file in files):
        return *_WEIGHTS, *others
    if not any(file.endswith(".bin") for file in files):
        raise DataError(f"{name}: no weights that bert_tf reads; expected model.safetensors in the repository")
    check_allowed(f"{name}, pytorch_model.bin", allow_pickle)
    return *_PICKLED, *others


def _cached(name: str, repo_id: str, revision: str | None, cause: BaseException | None) -> str:
    """The cached copy; `cause` is the reason why the Hub was not reached."""
    from huggingface_hub import constants, errors, snapshot_download

    try:
        # Pickled weights are not required: without allow_pickle, a cache that lacks them is complete.
        path = snapshot_download(
            repo_id, revision=revision, allow_patterns=[*_WEIGHTS, *_OTHERS], local_files_only=True
        )
    except errors.LocalEntryNotFoundError:
        raise DataError(f"{name}: {_why(repo_id, cause, errors)}") from None
    except (OSError, ValueError) as error:  # such as a name in it that is not UTF-8
        folder = os.path.join(constants.HF_HUB_CACHE, f"models--{repo_id.replace('/', '--')}")
        raise DataError(f"{name}: its copy in the cache, {folder}, is damaged ({_line(error)}); remove it") from None
    logging.warning("%s: using the cached copy, as the Hub was not reached (%s): %s", name, _line(cause), path)
    return path


def _why(repo_id: str, cause: BaseException | None, errors: ModuleType) -> str:
    """Error text for a model that neither the Hub nor the cache provides."""
    if isinstance(cause, errors.GatedRepoError):
        return f"gated by its authors: accept their terms at https://huggingface.co/{repo_id}, then run hf auth login"
    if isinstance(cause, errors.RepositoryNotFoundError):
        return "no such model on the Hub, or a private one: check the name, or run hf auth login"
    if isinstance(cause, errors.OfflineModeIsEnabled):
        return "missing or incomplete in the cache, and HF_HUB_OFFLINE forbids downloads; unset it"
    return f"missing or incomplete in the cache, and the Hub does not answer ({_line(cause)}); connect and try again"


def _line(error: BaseException | None) -> str:
    """The first line of an error: huggingface_hub adds advice and URLs below it."""
    return next(iter(str(error).splitlines()), type(error).__name__)
