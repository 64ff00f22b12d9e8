"""Models of the Hugging Face Hub by name: hf://OWNER/NAME, or hf://OWNER/NAME@REVISION."""

import re

from absl import logging

from bert_tf.checkpoints.tensor_files.pytorch import check_allowed
from bert_tf.errors import ConfigError, DataError

SCHEME = "hf://"
_NAME = re.compile(r"hf://(?P<repo_id>[\w.-]+/[\w.-]+)(@(?P<revision>[\w./-]+))?", re.ASCII)
# What the formats read, by their own names: a repository may hold the same weights for other libraries, too.
_WEIGHTS = ("model.safetensors", "model-*-of-*.safetensors", "model.safetensors.index.json", "bert_model.ckpt.*")
_PICKLED = ("pytorch_model.bin", "pytorch_model-*-of-*.bin", "pytorch_model.bin.index.json")
_OTHERS = (
    "config.json",
    "bert_config.json",
    "vocab.txt",
    "tokenizer.json",
    "tokenizer_config.json",
    "added_tokens.json",
    "special_tokens_map.json",
)


def fetch(name, allow_pickle=False):
    """The folder of a model, fetched into the cache of huggingface_hub if it is not there yet.

    The library says what is new on the Hub; where that can not be reached or refuses, or HF_HUB_OFFLINE is set, the
    revision that the cache has is used.

    Args:
        name: "hf://OWNER/NAME" or "hf://OWNER/NAME@REVISION", a branch, tag or commit.
        allow_pickle: fetch pickled weights if the model has no others.

    Returns:
        path of a directory in the cache; nothing in it may be changed.

    Raises:
        ConfigError: another kind of name, or huggingface_hub is not installed.
        DataError: no such model or revision, one that asks for an account, no network and not in the cache, or none of
            the weights that are read here.
    """
    match = _NAME.fullmatch(name)
    if not match:
        raise ConfigError(f"{name}: not the name of a model on the Hub; expected hf://OWNER/NAME[@REVISION]")
    try:
        from huggingface_hub import errors, snapshot_download
    except ImportError:
        raise ConfigError(f"{name}: models of the Hub need huggingface_hub: pip install 'bert_tf[hub]'") from None
    wanted = match.groupdict()
    try:
        # A question first: what the Hub has decides what to fetch.
        listed = snapshot_download(**wanted, allow_patterns=[*_WEIGHTS, *_PICKLED, *_OTHERS], dry_run=True)
    except errors.HFValidationError as error:
        raise ConfigError(f"{name}: {_line(error)}") from None
    except errors.RevisionNotFoundError:
        revision = wanted["revision"]
        raise DataError(f"{name}: the model has no revision {revision!r}; name a branch, tag or commit") from None
    except (OSError, errors.HTTPError) as error:  # the second is the base of what the transport raises
        return _cached(name, wanted, error.__cause__ if isinstance(error, errors.DryRunError) else error)
    patterns = [*_choose({file.filename for file in listed}, name, allow_pickle), *_OTHERS]
    try:
        return snapshot_download(**wanted, allow_patterns=patterns)
    except (OSError, errors.HTTPError) as error:
        raise DataError(f"{name}: could not be fetched: {_line(error)}; try again") from None


def _choose(files, name, allow_pickle):
    """The patterns of the weights to fetch."""
    if any(file.endswith((".safetensors", ".index")) for file in files):
        return _WEIGHTS
    if not any(file.endswith(".bin") for file in files):
        raise DataError(f"{name}: no weights that bert_tf reads; expected model.safetensors in the repository")
    check_allowed(f"{name}, pytorch_model.bin", allow_pickle)
    return _PICKLED


def _cached(name, wanted, cause):
    """The folder that the cache has; `cause`: why the Hub could not be asked."""
    from huggingface_hub import errors, snapshot_download

    try:
        # Pickled weights are taken as they are there: a cache without them is whole for whoever did not ask for them.
        path = snapshot_download(**wanted, allow_patterns=[*_WEIGHTS, *_OTHERS], local_files_only=True)
    except errors.LocalEntryNotFoundError:
        raise DataError(f"{name}: {_why(wanted['repo_id'], cause, errors)}") from None
    logging.warning("%s: the Hub is not asked (%s); the copy in the cache is used: %s", name, _line(cause), path)
    return path


def _why(repo_id, cause, errors):
    """What is wrong and what to do, where neither the Hub nor the cache has the model."""
    if isinstance(cause, errors.GatedRepoError):
        return f"its authors ask for your consent: give it at https://huggingface.co/{repo_id}, then hf auth login"
    if isinstance(cause, errors.RepositoryNotFoundError):
        return "no such model on the Hub, or a private one: check the name, or hf auth login"
    if isinstance(cause, errors.OfflineModeIsEnabled):
        return "not, or not whole, in the cache, and HF_HUB_OFFLINE forbids to fetch it; unset it"
    return f"not, or not whole, in the cache, and the Hub does not answer ({_line(cause)}); connect and try again"


def _line(error):
    """An error's first line: the library adds advice and addresses below."""
    return next(iter(str(error).splitlines()), type(error).__name__)
