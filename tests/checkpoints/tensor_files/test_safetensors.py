"""Safetensors files: read by the library as they were written, and checked by the checksums in their metadata."""

import zlib

import ml_dtypes
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from bert_tf.checkpoints.tensor import tensor_of
from bert_tf.checkpoints.tensor_files.safetensors import metadata, open_tensors, write_tensors
from bert_tf.errors import DataError
from tests.errors import raises

ARRAYS = {
    "wide": np.arange(6, dtype=np.float64).reshape(2, 3),
    "a scalar": np.array(3, np.int64),
    "nothing": np.zeros((0, 4), np.float32),
    "columns": np.arange(12, dtype=np.float32).reshape(3, 4).T,
    "half": np.arange(5).astype(ml_dtypes.bfloat16),
}


@pytest.fixture
def file(tmp_path):
    path = str(tmp_path / "x.safetensors")
    write_tensors(path, {name: tensor_of(array, name) for name, array in ARRAYS.items()}, step="5")
    return path


def test_the_library_reads_the_same_values_and_zlib_the_same_checksums(file):
    assert metadata(file)["step"] == "5"
    tensors = open_tensors(file)
    with safe_open(file, framework="numpy") as theirs:
        listed = theirs.metadata()
        for name, array in ARRAYS.items():
            for found in (theirs.get_tensor(name), tensors[name].read()):
                assert (found.dtype, found.shape, found.tobytes()) == (array.dtype, array.shape, array.tobytes())
            assert listed[f"crc32:{name}"] == f"{zlib.crc32(array.tobytes()):08x}"


def test_a_flipped_bit_is_an_error_of_the_tensor_that_has_it(file):
    with open(file, "r+b") as out:
        out.seek(-1, 2)
        out.write(b"\x01")
    damaged = []
    for name, tensor in open_tensors(file).items():
        try:
            np.testing.assert_array_equal(tensor.read(), ARRAYS[name])
        except DataError as error:
            assert all(part in str(error) for part in (file, name, "CRC-32"))
            damaged.append(name)
    assert len(damaged) == 1


def test_files_of_other_programs_are_read_without_checksums(tmp_path):
    save_file({"a": np.ones(3, np.float32)}, tmp_path / "x.safetensors")
    np.testing.assert_array_equal(open_tensors(str(tmp_path / "x.safetensors"))["a"].read(), np.ones(3))
    assert load_file(tmp_path / "x.safetensors").keys() == {"a"}


def test_a_pointer_of_git_lfs_is_named_with_the_way_to_the_file(tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 133466304\n")
    with raises(DataError, path, "Git LFS", "git lfs pull"):
        open_tensors(str(path))
