"""Files of torch.save: values written by PyTorch are read back, and no code in a file is ever run."""

import collections
import operator
import os
import pickle
import struct
import subprocess
import sys
import types
import zipfile

import ml_dtypes
import numpy as np
import pytest

from bert_tf.checkpoints.tensor_files.pytorch import check_allowed, open_pickled
from bert_tf.errors import ConfigError, DataError
from tests.errors import raises


def test_pickled_files_are_opened_only_on_request():
    check_allowed("x.bin", True)
    with raises(DataError, "x.bin", "--allow_pickle"):
        check_allowed("x.bin", False)


def test_without_pytorch_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with raises(ConfigError, "x.bin", "PyTorch", "'bert_tf[torch]'", "CPU"):
        open_pickled("x.bin")


def deep(levels, kind):
    value = kind()
    for _ in range(levels):
        value = kind([value]) if kind is not dict else {"x": value}
    return value


DEEP = {
    "lists": deep(3000, list),
    "dicts": {"model": deep(3000, dict)},
    "a key": {deep(3000, tuple): 1.0},
    "each ten times": deep(3000, lambda inner=(): list(inner) * 10),
    "keys in a setting": {"args": {"x": {deep(3000, tuple): 1.0}}},
}


@pytest.mark.parametrize("case", DEEP)
def test_containers_nested_too_deeply_are_one_line(monkeypatch, tmp_path, case):
    file = tmp_path / "x.bin"
    file.write_bytes(b"")  # what is in it, the library says
    monkeypatch.setitem(
        sys.modules, "torch", types.SimpleNamespace(__version__="2.10", load=lambda *_, **__: DEEP[case])
    )
    with raises(DataError, "x.bin", "100 levels"):
        open_pickled(str(file))


@pytest.fixture
def torch():
    return pytest.importorskip("torch", reason="needs PyTorch: pip install 'bert_tf[torch]'; make test-all has it")


def test_a_vulnerable_version_of_pytorch_is_not_used(torch, monkeypatch):
    monkeypatch.setattr(torch, "__version__", torch.torch_version.TorchVersion("2.9.1+cpu"))
    with raises(ConfigError, "PyTorch", "2.10", "2.9.1+cpu"):
        open_pickled("x.bin")


@pytest.fixture(params=[True, False], ids=["archive", "before 1.6"])
def save(request, torch, tmp_path):
    """Writes a value in one of the two formats of torch.save; returns the file."""

    def saved(value, protocol=2):
        file = tmp_path / "file.bin"
        torch.save(value, file, _use_new_zipfile_serialization=request.param, pickle_protocol=protocol)
        return str(file)

    return saved


def values_of(torch):
    generator = torch.Generator().manual_seed(0)
    base = torch.randn(6, 8, generator=generator)
    return {
        "plain": base,
        "transposed": base.T,
        "rows": base[1:4],
        "steps": base[::2, 1::3],
        "permuted": torch.randn(2, 3, 4, generator=generator).permute(2, 0, 1),
        "parameter": torch.nn.Parameter(torch.randn(3, generator=generator)),
        "view of a parameter": torch.nn.Parameter(base[2:4, 3:5]),
        "scalar": torch.tensor(2.5),
        "empty": torch.zeros(0, 4),
        "positions": torch.arange(5).expand(1, -1),
        "transposed bfloat16": base.T.to(torch.bfloat16).T[1:3],
        "bfloat16 parameter": torch.nn.Parameter(base.to(torch.bfloat16)),
        **{
            str(dtype): (torch.randn(3, 2, generator=generator) * 50).to(dtype)
            for dtype in (torch.float64, torch.float16, torch.bfloat16)
        },
        **{
            str(dtype): torch.tensor([[1, 0], [77, -1]]).to(dtype)
            for dtype in (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)
        },
    }


def test_every_tensor_is_read_bit_for_bit(torch, save):
    expected = values_of(torch)
    store = open_pickled(save(expected))
    assert list(store) == list(expected)
    for name, tensor in store.items():
        theirs = expected[name].detach()
        if theirs.dtype == torch.bfloat16:
            wanted = theirs.to(torch.float32).numpy().astype(ml_dtypes.bfloat16)  # exact, because it has fewer bits
        else:
            wanted = theirs.numpy()
        array = tensor.read()
        assert (tensor.shape, tensor.dtype, tensor.source) == (wanted.shape, wanted.dtype.name, name)
        assert (array.shape, array.dtype) == (wanted.shape, wanted.dtype), name
        np.testing.assert_array_equal(array, wanted, err_msg=name)


def test_a_state_dict_may_be_part_of_a_training_checkpoint(torch, save):
    module = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.LayerNorm(3))
    state = module.state_dict()  # an OrderedDict with an attribute
    for value in (state, {"epoch": 3, "state_dict": state}, {"args": [1.5, None], "model": state}):
        store = open_pickled(save(value))
        assert list(store) == ["0.weight", "0.bias", "1.weight", "1.bias"]
        for name, tensor in store.items():
            np.testing.assert_array_equal(tensor.read(), state[name].numpy())
    for value, found in (({"epoch": 3, 5: {}}, "a dict of 'epoch', 5"), ({}, "a dict of"), ([1], "a <class 'list'>")):
        with raises(DataError, "file.bin", found):
            open_pickled(save(value))


def test_plain_containers_beside_the_tensors_are_read_over(torch, save):
    value = {"a": [1, -2, 3.5, (True, None, b"x")], 7: collections.OrderedDict(b=2**40), "é": {}, None: (), "t": (1, 2)}
    assert list(open_pickled(save(value | {"model": {"x": torch.ones(2)}}))) == ["x"]


def test_opening_an_archive_reads_no_values(torch, tmp_path):
    def resident():
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    torch.save({"weight": torch.ones(1 << 24)}, tmp_path / "file.bin")  # 64 MB
    before = resident()
    store = open_pickled(str(tmp_path / "file.bin"))
    assert resident() - before < 1 << 24
    assert store["weight"].read().sum() == 1 << 24


def test_a_compressed_archive_gives_the_same_values(torch, tmp_path):
    torch.save({"weight": torch.arange(1000.0)}, tmp_path / "stored.bin")
    file = str(tmp_path / "file.bin")
    with zipfile.ZipFile(tmp_path / "stored.bin") as stored, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as out:
        for name in stored.namelist():
            out.writestr(name, stored.read(name))
    np.testing.assert_array_equal(open_pickled(file)["weight"].read(), np.arange(1000.0))


def test_tensors_that_are_not_dense_are_refused(torch, save):
    others = {
        "complex": torch.ones(2, dtype=torch.complex64),
        "sparse": torch.eye(3).to_sparse(),
        "without values": torch.ones(2, device="meta"),
        "of one number": torch.ones(1).expand(10**6, 10**6),
    }
    for name, tensor in others.items():
        with raises(DataError, "file.bin", f"'{name}'", "float64"):
            open_pickled(save({name: tensor}))


# Everything below is refused. Otherwise the side effects would show.

FLAG = []


def fire(*_, **__):
    FLAG.append(1)
    return {}


class Reduced:
    """Calls `function` when unpickled."""

    def __init__(self, function, *arguments):
        self.answer = (function, arguments)

    def __reduce__(self):
        return self.answer


class Stateful:
    def __setstate__(self, _):
        fire()


ATTACKS = {
    "a function of a module": (Reduced(fire), "test_pytorch.fire"),
    "eval": (Reduced(eval, f"__import__('{__name__}', fromlist='x').FLAG.append(1)"), "eval"),
    "a chain of calls": (Reduced(operator.attrgetter("append"), FLAG), "operator.attrgetter"),
    "an object's own state": (Stateful(), "test_pytorch.Stateful"),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_code_in_a_pickle_is_refused_by_name_and_not_run(save, name):
    value, culprit = ATTACKS[name]
    FLAG.clear()
    file = save({"weight": value})
    with raises(DataError, "file.bin", "GLOBAL", culprit):
        open_pickled(file)
    assert not FLAG


@pytest.mark.parametrize("protocol", [2, 4])
def test_a_command_is_not_executed(torch, save, tmp_path, protocol):
    file = save({"weight": Reduced(os.system, f"touch {tmp_path / 'run'}")}, protocol)
    with pytest.raises(DataError, match=r"GLOBAL posix\.system" if protocol == 2 else "Unsupported operand"):
        open_pickled(file)
    assert not (tmp_path / "run").exists()
    torch.load(file, weights_only=False)  # the same file does run it if allowed to
    assert (tmp_path / "run").exists()


def test_a_pickled_module_is_refused_by_the_name_of_its_class(torch, save):
    with raises(DataError, "GLOBAL", "torch.nn.modules.linear.Linear"):
        open_pickled(save(torch.nn.Linear(2, 2)))


# Opcodes that torch.save never writes.


def text(value):
    data = value.encode()
    return b"X" + struct.pack("<I", len(data)) + data


def number(value):
    return pickle.dumps(value, 2)[2:-1]  # without the protocol and the stop opcode


def group(*parts):
    return b"(" + b"".join(parts) + b"t"


def tensor(offset=0, shape=(2, 3), strides=(3, 1), count=6, kind="FloatStorage", key="0"):
    storage = group(text("storage"), b"ctorch\n%b\n" % kind.encode(), text(key), text("cpu"), number(count)) + b"Q"
    places = group(*map(number, shape)), group(*map(number, strides))
    return b"ctorch._utils\n_rebuild_tensor_v2\n" + group(storage, number(offset), *places, b"\x89", b"}") + b"R"


@pytest.fixture
def archive(torch, tmp_path):
    """Writes the opcodes of a dict {"weight": value} and the numbers 0 to 5; returns the file."""

    def write(value):
        with zipfile.ZipFile(tmp_path / "file.bin", "w") as out:
            for name, data in (
                ("data.pkl", b"\x80\x02}" + text("weight") + value + b"s."),
                ("version", b"3\n"),
                ("data/0", np.arange(6, dtype=np.float32).tobytes()),
            ):
                out.writestr(f"model/{name}", data)
        return str(tmp_path / "file.bin")

    return write


def test_a_tensor_of_handwritten_opcodes_is_read(archive):
    np.testing.assert_array_equal(open_pickled(archive(tensor()))["weight"].read(), np.arange(6).reshape(2, 3))


@pytest.mark.parametrize(
    "value",
    [
        b"cos\nsystem\n" + group(text("true")) + b"R",
        b"(" + text("true") + b"ios\nsystem\n",
        text("os") + text("system") + b"\x93",
        b"cos\nsystem\x1b[2J\n",
        b"ctorch\nload\n" + group(text("x")) + b"R",
        b"ctorch.storage\n_load_from_bytes\n" + group(text("x")) + b"R",
        b"cargparse\nNamespace\n)\x81" + group(b"N", b"}" + text("__class__") + b"ctorch\nSize\ns") + b"b",
        text("os.system") + group(text("true")) + b"R",
        b"Pname\n",
        group(text("module"), text("x")) + b"Q",
        b"ccollections\nOrderedDict\n" + number(3) + b"R",
        b"h\x05",
        b"t",
        b"X\xff\xff\xff\x7fabc",
        tensor(offset=1),
        tensor(offset=-1),
        tensor(shape=(3, 3)),
        tensor(strides=(4, 1)),
        tensor(strides=(-3, 1)),
        tensor(strides=(3,)),
        tensor(shape=(2**80,), strides=(0,)),
        tensor(count=2**62, shape=(2**62,), strides=(1,)),
        tensor(count=-6),
        tensor(kind="NoStorage"),
        tensor(key="1"),
        tensor(key="../version"),
    ],
)
def test_hostile_opcodes_are_refused_in_one_line(archive, value):
    with raises(DataError, "file.bin", "torch.save") as refused:
        open_pickled(archive(value))
    assert str(refused.value).isprintable()


def test_a_key_of_nested_tuples_is_refused_before_python_hashes_it(archive):
    nested = b")" + b"\x85" * 300_000  # which overflow its stack of 8 MB
    for value in (b"}" + nested + b"K\x01s", b"]" + nested + b"a"):
        with raises(DataError, "50,000"):
            open_pickled(archive(value))


def test_a_pickle_that_would_be_unpacked_to_many_megabytes_is_refused(torch, tmp_path):
    file = tmp_path / "file.bin"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("model/data.pkl", b"\x80\x02" + b"N0" * 5_000_000 + b"}.")
    with raises(DataError, file, "10,000,004", "4,194,304"):
        open_pickled(str(file))
    file.write_bytes(b"\x80\x02" + b"N0" * 3_000_000 + b"}.")  # not even packed
    with raises(DataError, file, "4,194,304"):
        open_pickled(str(file))


@pytest.mark.parametrize("share", [0.0, 0.05, 0.3, 0.6, 0.9, 0.99])
def test_a_truncated_file_is_refused(torch, save, share):
    file = save({"weight": torch.zeros(6000)})
    os.truncate(file, int(os.path.getsize(file) * share))
    with raises(DataError, "file.bin", "torch.save"):
        open_pickled(file)


def test_damage_anywhere_is_refused_or_harmless(torch, save):
    """No other error occurs, and no tensor has another shape than the file states."""
    file = save({"weight": torch.arange(6.0).reshape(2, 3)})
    with open(file, "rb") as intact:
        whole = intact.read()
    rng = np.random.default_rng(0)
    outcomes = {"read": 0, "refused": 0}
    for _ in range(500):
        damaged = bytearray(whole)
        for place in rng.integers(len(whole), size=rng.integers(1, 6)):
            damaged[place] = rng.integers(256)
        with open(file, "wb") as out:
            out.write(damaged)
        try:
            for one in open_pickled(file).values():
                assert one.read().shape == one.shape
            outcomes["read"] += 1
        except DataError as error:
            assert "\n" not in str(error)
            outcomes["refused"] += 1
    assert min(outcomes.values()) > 10


@pytest.mark.parametrize("content", [b"PK\3\4 not an archive", b"version 3\n", b"\0" * 600, b""])
def test_other_files_are_not_read_as_torchs(torch, tmp_path, content):
    (tmp_path / "file.bin").write_bytes(content)
    with raises(DataError, "file.bin", "torch.save"):
        open_pickled(str(tmp_path / "file.bin"))


def test_a_missing_file_is_named(torch, tmp_path):
    with raises(DataError, "file.bin"):
        open_pickled(str(tmp_path / "file.bin"))


PROGRAM = """
import sys
import numpy as np

def read():
    import torch
    torch.save({"weight": torch.ones(256, 256)}, sys.argv[2])
    from bert_tf.checkpoints.tensor_files.pytorch import open_pickled
    return open_pickled(sys.argv[2])["weight"].read()

def compute(values):
    import tensorflow as tf
    return tf.function(tf.linalg.matmul, jit_compile=True)(values, values).numpy()

values = np.ones((256, 256), np.float32)
if sys.argv[1] == "tensorflow first":
    compute(values)
values = read()
assert "triton" not in sys.modules  # PyTorch's compiler for GPUs, whose LLVM clashes with TensorFlow's
assert (compute(values) == 256).all()
"""


@pytest.mark.slow
@pytest.mark.parametrize("order", ["tensorflow first", "torch first"])
def test_tensorflow_works_in_the_process_that_has_read_a_file(torch, tmp_path, order):
    subprocess.run([sys.executable, "-c", PROGRAM, order, str(tmp_path / "file.bin")], check=True)
