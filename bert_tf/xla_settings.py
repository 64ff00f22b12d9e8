"""What XLA reads from the environment: its folder of compiled programs when TensorFlow looks for devices, and its flags
before it compiles the first program. Without effect later.
"""

import contextlib
import glob
import hashlib
import importlib.metadata
import os
import re
import shutil
from collections.abc import Sequence

_CACHE_FLAG = "--tf_xla_persistent_cache_directory"
# NVIDIA's driver says there what it is and which cards it has.
_DRIVER = "/proc/driver/nvidia"
_SPACE = 2**30  # bytes that must be free: base has 0.1 GB of programs
_PARTS = {1, 2, 3}  # of a file: the key of a program, its HLO, what it was compiled to


def keep_roundings() -> None:
    """On a GPU, has XLA keep the roundings to bfloat16, unless XLA_FLAGS says something else.

    By default it leaves them out where it can, and then writes and reads float32: 6% more memory traffic in a block of
    base.
    """
    import tensorflow as tf

    if tf.config.list_physical_devices("GPU"):
        _add("XLA_FLAGS", "--xla_allow_excess_precision", "false")


def keep_programs(argv: Sequence[str], driver: str = _DRIVER) -> str:
    """Has XLA keep what it compiles for a GPU, and what it measures for it, in the folder of the flag --xla_cache.

    Call it before TensorFlow looks for devices. Programs of other versions of TensorFlow, CUDA's libraries, driver or
    cards, or of other XLA_FLAGS, have other folders in it. Files that are incomplete are removed: XLA would end at one.

    Args:
        argv: of this program.
        driver: the folder of NVIDIA's driver.

    Returns:
        Why nothing is kept, "" if something is or without this flag.
    """
    folder = given(argv)
    if not folder:
        return ""
    if re.search(r"\s", folder):
        return f"{folder}: XLA takes no path with spaces"
    kept = re.search(f"{_CACHE_FLAG}=(\\S+)", os.environ.get("TF_XLA_FLAGS", ""))
    if kept:  # by the user, or by the program that started this one
        return "" if os.path.dirname(kept[1]) == folder else f"TF_XLA_FLAGS names another folder, {kept[1]}"
    cards = sorted(glob.glob(os.path.join(driver, "gpus", "*", "information")))
    if not cards:
        return "there is no NVIDIA GPU"
    folder = os.path.join(folder, _version([os.path.join(driver, "version"), *cards]))
    tuning = os.path.join(folder, "tuning")
    try:
        os.makedirs(tuning, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise PermissionError(13, "Permission denied", folder)
        for path in glob.glob(os.path.join(glob.escape(folder), "*.pb")):
            with contextlib.suppress(FileNotFoundError):  # another process has removed it
                if not _is_complete(path):
                    os.remove(path)
        free = shutil.disk_usage(folder).free
    except OSError as error:
        return f"{error.filename or folder}: {error.strerror or error}"
    if free < _SPACE:
        return f"{folder}: only {free / 2**20:.0f} MB are free"
    _add("TF_XLA_FLAGS", _CACHE_FLAG, folder)
    _add("TF_XLA_FLAGS", "--tf_xla_persistent_cache_device_types", "XLA_GPU_JIT")
    _add("XLA_FLAGS", "--xla_gpu_per_fusion_autotune_cache_dir", tuning)
    return ""


def given(argv: Sequence[str]) -> str:
    """The absolute value of the flag on a command line, "" without one."""
    found = ""
    for argument, following in zip(argv, [*argv[1:], ""], strict=True):
        if argument == "--":
            break
        if value := re.fullmatch("--?xla_cache(?:=(.*))?", argument, re.DOTALL):
            found = following if value[1] is None else value[1]
    return os.path.abspath(os.path.expanduser(found)) if found else ""


def _version(files: Sequence[str]) -> str:
    """Changes with everything that decides what XLA compiles a program to, except the program."""
    digest = hashlib.sha256()
    libraries = [one for one in importlib.metadata.distributions() if re.match("nvidia|tensorflow$", one.name or "")]
    for text in (*sorted({f"{one.name} {one.version}" for one in libraries}), os.environ.get("XLA_FLAGS", "")):
        digest.update(f"{text}\n".encode())
    for path in files:
        with open(path, encoding="utf-8", errors="replace") as file:
            # Not where the card is plugged in.
            kept = [line for line in file if re.match("Model|NVRM|Video BIOS", line)]
        digest.update("".join(kept).encode())
    return digest.hexdigest()[:16]


def _is_complete(path: str) -> bool:
    """Whether a file is a protocol buffer with all parts of a program, to its last byte."""
    with open(path, "rb") as file:
        size, found = os.fstat(file.fileno()).st_size, set()
        while file.tell() < size:
            tag, length = _number(file.read(1)), 0
            for shift in range(0, 63, 7):
                byte = _number(file.read(1))
                length |= (byte & 127) << shift
                if byte < 128:
                    break
            if tag & 7 != 2 or file.tell() + length > size:
                return False
            found.add(tag >> 3)
            file.seek(length, os.SEEK_CUR)
    return found >= _PARTS


def _number(byte: bytes) -> int:
    """0 at the end of a file."""
    return byte[0] if byte else 0


def _add(variable: str, flag: str, value: str) -> None:
    """Adds a flag to those in an environment variable, unless it is among them."""
    given = os.environ.get(variable, "").split()
    if flag not in (one.split("=")[0] for one in given):
        os.environ[variable] = " ".join([*given, f"{flag}={value}"])
