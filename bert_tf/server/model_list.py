"""Which models are served: checked lists, and those made from the folders of exports."""

import os
import re

from tensorflow_serving.config import model_server_config_pb2

from bert_tf.errors import ConfigError
from bert_tf.server.status import Code, ServingError, invalid


def check_models(config: model_server_config_pb2.ModelServerConfig) -> None:
    """Raises ServingError for a configuration that TF Serving refuses: what works here works there, too."""
    if config.HasField("custom_model_config"):
        raise ServingError(Code.UNIMPLEMENTED, "custom_model_config is not supported; expected a model_config_list")
    names = set()
    for one in config.model_config_list.config:
        if not one.name or not one.base_path:
            shown = " ".join(str(one).split())[:200]
            raise invalid(f"a model has no name or no base_path: {shown}")
        if one.name in names:
            raise invalid(f"model {one.name} is listed twice")
        names.add(one.name)
        if not _is_absolute(one.base_path):
            raise invalid(f"{one.name}: base_path is {one.base_path!r}; expected an absolute path, such as /models/m")
        # model_type is the deprecated form of model_platform.
        platform = model_server_config_pb2.ModelType.Name(one.model_type).lower() if one.model_type else ""
        if platform and one.model_platform:
            raise invalid(f"{one.name}: has model_type and model_platform; remove model_type")
        platform = platform or one.model_platform
        if platform != "tensorflow":
            found = f"is {platform!r}" if platform else "is missing"
            raise invalid(f'{one.name}: model_platform {found}; expected model_platform: "tensorflow"')
        if one.HasField("logging_config"):
            raise invalid(f"{one.name}: logging_config is not supported, nor by TF Serving's own program; remove it")


def _is_absolute(path: str) -> bool:
    return path.startswith("/") or bool(re.match(r"[A-Za-z][A-Za-z0-9.]*://", path))


def one_model(name: str, base_path: str) -> model_server_config_pb2.ModelServerConfig:
    """The configuration of one model, of which the newest version is served."""
    base_path = base_path if _is_absolute(base_path) else os.path.abspath(base_path)
    config = model_server_config_pb2.ModelServerConfig()
    config.model_config_list.config.add(name=name, base_path=base_path, model_platform="tensorflow")
    return config


def models_in(folder: str) -> model_server_config_pb2.ModelServerConfig:
    """The configuration of the models in a folder of exports.

    Args:
        folder: of one model, with its versions inside; of several models; or of one version.

    Raises:
        ConfigError: there is none.
    """
    folder = os.path.abspath(folder)
    if os.path.isfile(folder):
        raise ConfigError(f"--export_dir={folder}: a file; expected the folder of an exported model, or of several")
    if not os.path.isdir(folder):
        raise ConfigError(f"--export_dir={folder}: no such folder; export a model with `python -m bert_tf.export`")
    if not os.access(folder, os.R_OK | os.X_OK):
        raise ConfigError(f"--export_dir={folder}: this folder may not be read; change its rights")
    if os.path.exists(os.path.join(folder, "saved_model.pb")):
        parent, name = os.path.split(folder)
        version = version_number(name)
        if version is None:
            raise ConfigError(
                f"--export_dir={folder} is a SavedModel whose folder is not named by a number; move what is in it to a "
                f"new folder {folder}/1 and pass {folder}"
            )
        config = one_model(os.path.basename(parent), parent)
        policy = config.model_config_list.config[0].model_version_policy
        policy.specific.versions.append(version)
        return config
    if _has_versions(folder):
        return one_model(os.path.basename(folder), folder)
    config = model_server_config_pb2.ModelServerConfig()
    for name in sorted(os.listdir(folder)):
        path = os.path.join(folder, name)
        if not name.startswith(".") and _has_versions(path):
            config.MergeFrom(one_model(name, path))
    if not config.model_config_list.config:
        raise ConfigError(
            f"--export_dir={folder}: no exported model; expected folders named by numbers, such as {folder}/1, or "
            "folders of models that contain them"
        )
    return config


def _has_versions(path: str) -> bool:
    try:
        return any(version_number(name) is not None for name in os.listdir(path))
    except OSError:  # a file, or such as lost+found, which is not for the server's user
        return False


def version_number(name: str) -> int | None:
    """The version in a folder of this name, or None; like in TF Serving, 007 is 7, and it is an int64."""
    number = int(name) if name.isascii() and name.isdigit() and len(name) < 100 else 2**63
    return number if number < 2**63 else None
