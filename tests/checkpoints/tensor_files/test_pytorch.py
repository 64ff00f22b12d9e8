"""Pickled PyTorch files: what torch.save wrote comes back, and nothing that a file asks for is ever run."""

import argparse
import collections
import operator
import os
import pickle
import struct
import zipfile

import ml_dtypes
import numpy as np
import pytest

from bert_tf.checkpoints.tensor_files.pickles import Namespace
from bert_tf.checkpoints.tensor_files.pytorch import check_allowed, open_nested, open_pickled
from bert_tf.errors import DataError
from tests.checkpoints.tensor_files.pickles import (
    NUMBERS,
    archive,
    group,
    number,
    pickled,
    sequence,
    state,
    tensor,
    text,
)


@pytest.fixture(params=[archive, sequence])
def form(request, tmp_path):
    return lambda *arguments, **options: request.param(tmp_path / "file.bin", *arguments, **options)


def test_a_tensor_made_by_hand_is_read(form):
    store = open_pickled(form(state(tensor())))
    assert list(store) == ["weight"]
    assert (store["weight"].shape, store["weight"].dtype, store["weight"].source) == ((2, 3), "float32", "weight")
    np.testing.assert_array_equal(store["weight"].read(), NUMBERS.reshape(2, 3))


def test_a_namespace_is_read_as_a_record_of_its_attributes(form):
    for protocol in (2, 3, 4, 5):
        payload = pickle.dumps({"args": argparse.Namespace(layers=4, name="é", rates=[0.1, None])}, protocol)
        (args,) = open_nested(form(payload)).values()
        assert type(args) is Namespace
        assert args.fields == {"layers": 4, "name": "é", "rates": [0.1, None]}


def test_plain_containers_are_read_of_every_protocol_that_torch_may_use(form):
    value = {"a": [1, -2, 3.5, (True, None, b"x")], 7: collections.OrderedDict(b=2**40), "é": {}, None: (), "t": (1, 2)}
    for protocol in (2, 3, 4, 5):
        expected = value if protocol > 2 else value | {"a": value["a"][:3]}  # bytes of protocol 2 are a call
        assert open_nested(form(pickle.dumps(expected, protocol))) == expected


# Everything below is refused. The victims' side effects would show.

FLAG = []


def fire(*_, **__):
    FLAG.append(1)
    return {}


class Reduced:
    """Calls `function` when it is unpickled."""

    def __init__(self, function, *arguments, state=None):
        self.answer = (function, arguments) + ((state,) if state is not None else ())

    def __reduce__(self):
        return self.answer


class Stateful:
    def __setstate__(self, _):
        fire()


def calling(function, *arguments):
    return lambda protocol: pickle.dumps({"weight": Reduced(function, *arguments)}, protocol)


ATTACKS = {
    "a function of a module": (calling(fire), "test_pytorch.fire'"),
    "eval": (calling(eval, f"__import__('{__name__}', fromlist='x').FLAG.append(1)"), r"\.eval'"),
    "a chain of calls": (calling(operator.attrgetter("append"), FLAG), "operator.attrgetter'"),
    "an object's own state": (
        lambda protocol: pickle.dumps({"a": Stateful()}, protocol),
        "test_pytorch.Stateful'|copy",
    ),
    "a state for a function": (calling(getattr, FLAG, "append"), r"\.getattr'"),
}


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("name", ATTACKS)
def test_what_would_run_code_is_refused_by_its_name_and_does_not_run(form, name, protocol):
    make, culprit = ATTACKS[name]
    file = form(make(protocol))
    FLAG.clear()
    for opened in (open_pickled, open_nested):
        with pytest.raises(DataError, match=rf"asks for '.*({culprit}).*only tensors and plain containers are read"):
            opened(file)
    assert not FLAG


def test_a_command_is_not_executed(form, tmp_path):
    command = f"touch {tmp_path / 'run'}"
    payload = pickle.dumps({"weight": Reduced(os.system, command)}, 2)
    file = form(payload)
    with pytest.raises(DataError, match=r"asks for '(posix|nt)\.system'; only tensors"):
        open_pickled(file)
    assert not (tmp_path / "run").exists()
    pickle.loads(payload)  # the same bytes do run it where they are let
    assert (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "value, culprit",
    [
        (b"cos\nsystem\n" + group(text("true")) + b"R", "asks for 'os.system'"),
        (b"(" + text("true") + b"ios\nsystem\n", "asks for 'os.system'"),
        (b"(icollections\nOrderedDict\n", "asks for 'collections.OrderedDict'"),
        (text("collections") + text("OrderedDict.fromkeys.__func__") + b"\x93", "OrderedDict.fromkeys.__func__'"),
        (text("os") + text("system\x1b[2J\n") + b"\x93", r"asks for 'os.system\\x1b\[2J\\n'"),
        (number(1) + number(2) + b"\x93", "asks for something unnamed"),
        (text("o" * 10**6) + text("s") + b"\x93", r"asks for 'o{100}'\.\.\.;"),
        (b"ctorch._utils\n_rebuild_wrapper_subclass\n", "asks for 'torch._utils._rebuild_wrapper_subclass'"),
        (b"ctorch._utils\n_import_dotted_name\n" + group(text("os.system")) + b"R", "_import_dotted_name'"),
        (b"ctorch.storage\n_load_from_bytes\n", "asks for 'torch.storage._load_from_bytes'"),
        (b"ctorch\nload\n", "asks for 'torch.load'"),
        (b"ctorch\nFloatStorage\n)\x81", "creates an object of something other than a class"),
        (b"cargparse\nNamespace\n" + group(number(1)) + b"\x81", "creates an object of something other than a class"),
        (b"cargparse\nNamespace\n)R", "calls something other than a function"),
        (b"ctorch\nFloatStorage\n)R", "calls something other than a function"),
        (text("os.system") + group(text("true")) + b"R", "calls something other than a function"),
        (b"ccollections\nOrderedDict\n" + group(b"]") + b"R", "creates an OrderedDict with arguments"),
        (b"ccollections\nOrderedDict\n}b", "sets the state of a _Builder"),
        (tensor() + b"}b", "sets the state of a Tensor"),
        (b"cargparse\nNamespace\n)\x81" + text("x") + b"b", "sets the state of a Namespace"),
        (b"\x82\x01", "has the instruction EXT1"),
        (b"}cargparse\nNamespace\n)}\x92", "has the instruction NEWOBJ_EX"),
        (b"(cargparse\nNamespace\no", "has the instruction OBJ"),
        (b"Pname\n", "has the instruction PERSID"),
        (text("module") + b"Q", "uses a str as a tuple"),
        (group(text("module"), text("x")) + b"Q", "asks for an object that is not a storage"),
        (
            b"ctorch._utils\n_rebuild_parameter\n" + group(b"}", b"\x88", b"}") + b"R",
            "a parameter that is not made from",
        ),
        (b"ctorch\nSize\n" + group(text("ab")) + b"R", "torch.Size that is not made from a tuple"),
    ],
)
def test_every_instruction_reaches_only_inert_values(form, value, culprit):
    with pytest.raises(DataError, match=culprit):
        open_pickled(form(state(value)))


@pytest.mark.parametrize(
    "change, culprit",
    [
        ({"offset": 1}, "in the storage '0' that is larger than its 6 numbers"),
        ({"offset": -1}, "with a shape, strides and an offset that do not fit"),
        ({"shape": (3, 3)}, "larger than its 6 numbers"),
        ({"strides": (4, 1)}, "larger than its 6 numbers"),
        ({"strides": (-3, 1)}, "with a shape, strides and an offset that do not fit"),
        ({"strides": (3,)}, "with a shape, strides and an offset that do not fit"),
        ({"shape": (2, True)}, "with a shape, strides and an offset that do not fit"),
        ({"shape": (10**6, 10**6), "strides": (0, 0)}, "larger than its 6 numbers"),
        ({"shape": (2**80,), "strides": (0,)}, "with a shape, strides and an offset that do not fit"),
        ({"shape": (0, 2**62), "strides": (1, 1)}, "larger than its 6 numbers"),
        ({"shape": (1,) * 65, "strides": (1,) * 65}, "with a shape, strides and an offset that do not fit"),
        ({"tail": b"}" + text("conj") + b"\x88s"}, "marked as conjugate or negative"),
        ({"extra": group(text("9"), number(0), number(3))}, "a storage that is part of another"),
        ({"count": 2**90}, "a storage without name or size"),
        ({"kind": "torch\nComplexFloatStorage"}, "asks for 'torch.ComplexFloatStorage'"),
        ({"rebuild": "torch._utils\n_rebuild_tensor_v3"}, "asks for 'torch._utils._rebuild_tensor_v3'"),
    ],
)
def test_a_tensor_that_leaves_its_storage_is_refused(form, change, culprit):
    with pytest.raises(DataError, match=culprit):
        open_pickled(form(state(tensor(**change))))


@pytest.mark.parametrize("count", [7, 2**40, 2**62])
def test_a_storage_that_leaves_the_file_is_refused(form, count):
    with pytest.raises(
        DataError, match=r"the storage '0' (has 24 bytes, not|is not the one that its tensors refer to)"
    ):
        open_pickled(form(state(tensor(count=count))))


def test_a_storage_that_is_described_twice_must_be_the_same(form):
    payload = pickled(b"}" + text("a") + tensor() + b"s" + text("b") + tensor(kind="torch\nIntStorage") + b"s")
    with pytest.raises(DataError, match="describes the storage '0' in two ways"):
        open_pickled(form(payload))


def test_a_storage_that_is_not_there_is_named(form):
    with pytest.raises(DataError, match=r"no ('model/data/1' in the archive|storage '1', which a tensor refers to)"):
        open_pickled(form(state(tensor(key="1")), {}))


def test_a_file_that_repeats_a_storage_is_refused(tmp_path):
    file = sequence(tmp_path / "file.bin", state(tensor()), keys=["0", "0"])
    file.write_bytes(file.read_bytes() + struct.pack("<q", 6) + NUMBERS.tobytes())
    with pytest.raises(DataError, match="the storage '0' is not the one that its tensors refer to"):
        open_pickled(file)


@pytest.mark.parametrize(
    "payload",
    [
        b"\x80\x02}" + b"X\xff\xff\xff\x7fabc",  # 2 GB of text are promised
        b"\x80\x04}" + b"\x8e" + struct.pack("<Q", 2**62),  # BINBYTES8
        b"\x80\x04\x95" + struct.pack("<Q", 2**62) + b"}",  # FRAME without an end
        b"\x80\x02}\x8b" + struct.pack("<i", 2**31 - 1),  # LONG4
        b"\x80\x02}\x8b" + struct.pack("<i", -5),
        b"\x80\x02}Xa",
        b"\x80\x02}",
        b"\x80\x02.",
        b"\x80\x02(.",
        b"\x80\x02h\x05.",
        b"\x80\x02}r\xff\xff\xff\x7fj\x00\x00\x00\x01.",  # kept as number 2**31, recalled as another
        b"\x80\x02t.",
        b"\x80\x02K\x01K\x02s.",
        b"\x80\x02}(K\x01u.",
        b"\x80\x02}](K\x01K\x02u.",
        b"\x80\x02}]K\x01s.",
        b"\xff\xff",
        b"",
    ],
)
def test_damaged_pickles_are_refused_without_taking_memory(form, payload):
    import resource

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(DataError, match=r"file\.bin "):
        open_nested(form(payload))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # kB


def test_depth_does_no_harm(form):
    # A hundred thousand lists in lists; tuples that double at every step, to be hashed 2**5000 times as a key.
    deep = open_nested(form(pickled(b"]" * 10**5 + b"a" * (10**5 - 1))))
    assert isinstance(deep, list)
    doubling = b")" + b"q\x00h\x00\x86" * 5000
    assert isinstance(open_nested(form(pickled(doubling))), tuple)
    with pytest.raises(DataError, match="a dict with keys other than plain values"):
        open_nested(form(pickled(b"}" + doubling + b"Ns")))
    with pytest.raises(DataError, match=r"file\.bin holds a list; expected a dict of tensors"):
        open_pickled(form(pickled(b"]" * 10**5 + b"a" * (10**5 - 1))))


def test_compressed_archives_are_refused(tmp_path):
    file = archive(tmp_path / "file.bin", state(tensor()) + b"\0" * 10**6, compression=zipfile.ZIP_DEFLATED)
    with pytest.raises(DataError, match=r"'model/data\.pkl' is compressed"):
        open_pickled(file)


def test_numbers_of_either_byte_order_are_read(tmp_path):
    swapped = NUMBERS.astype(">f4").tobytes()
    store = open_pickled(archive(tmp_path / "file.bin", state(tensor()), {"0": swapped}, order="big"))
    np.testing.assert_array_equal(store["weight"].read(), NUMBERS.reshape(2, 3))
    brains = NUMBERS.astype(ml_dtypes.bfloat16)
    payload = state(tensor(kind="torch\nBFloat16Storage"))
    file = archive(tmp_path / "file.bin", payload, {"0": brains.view(np.uint16).byteswap().tobytes()}, order="big")
    tensor_read = open_pickled(file)["weight"].read()
    assert tensor_read.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(tensor_read, brains.reshape(2, 3))
    with pytest.raises(DataError, match="the byte order is b'middle'; expected little or big"):
        open_pickled(archive(tmp_path / "file.bin", state(tensor()), order="middle"))


@pytest.mark.parametrize("share", [0.0, 0.05, 0.3, 0.6, 0.9, 0.99])
def test_a_file_cut_short_is_refused(form, share):
    file = form(state(tensor(count=6000, shape=(6000,), strides=(1,))), {"0": bytes(24000)})
    whole = file.read_bytes()
    file.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(DataError, match=r"file\.bin"):
        open_pickled(file)


def test_damage_anywhere_is_refused_or_harmless(form):
    """Never another error, and never a tensor of another shape than it says."""
    file = form(state(tensor()))
    whole, rng = file.read_bytes(), np.random.default_rng(0)
    outcomes = {"read": 0, "refused": 0}
    for _ in range(500):
        damaged = bytearray(whole)
        for place in rng.integers(len(whole), size=rng.integers(1, 6)):
            damaged[place] = rng.integers(256)
        file.write_bytes(damaged)
        try:
            for one in open_pickled(file).values():
                assert one.read().shape == one.shape
            outcomes["read"] += 1
        except DataError as error:
            assert "\n" not in str(error)
            outcomes["refused"] += 1
    assert min(outcomes.values()) > 10


def test_a_record_that_lies_outside_the_archive_is_refused(tmp_path):
    file = archive(tmp_path / "file.bin", state(tensor()), order="little")
    data = file.read_bytes()
    for offset in (2**32 - 2, 10**6):
        place = data.index(b"PK\1\2") + 42  # of the first record's offset, in the directory at the end
        file.write_bytes(data[:place] + struct.pack("<I", offset) + data[place + 4 :])
        with pytest.raises(DataError, match=r"'model/data\.pkl' is not where the archive lists it"):
            open_pickled(file)


def test_a_file_cut_short_after_it_was_opened_is_noticed(form):
    file = form(state(tensor()))
    weight = open_pickled(file)["weight"]
    file.write_bytes(file.read_bytes()[:40])
    with pytest.raises(DataError, match="was truncated since it was opened"):
        weight.read()


@pytest.mark.parametrize(
    "content", [b"PK\3\4 not an archive", b"version https://git-lfs.github.com/spec/v1\n", b"\0" * 600]
)
def test_other_files_are_not_taken_for_torchs(tmp_path, content):
    (tmp_path / "file.bin").write_bytes(content)
    with pytest.raises(DataError, match=r"file\.bin (cannot be read|is neither of the forms that torch\.save writes)"):
        open_pickled(tmp_path / "file.bin")


def test_an_archive_of_something_else_is_said_to_be_one(tmp_path):
    with zipfile.ZipFile(tmp_path / "file.bin", "w") as out:
        out.writestr("word/document.xml", "<xml/>")
    with pytest.raises(DataError, match=r"a zip file with 0 data\.pkl; expected one"):
        open_pickled(tmp_path / "file.bin")


def test_a_missing_file_and_another_protocol_are_named(tmp_path):
    with pytest.raises(DataError, match=r"file\.bin cannot be read: No such file"):
        open_pickled(tmp_path / "file.bin")
    with pytest.raises(DataError, match=r"protocol 1002 of torch\.save; expected 1001"):
        open_pickled(sequence(tmp_path / "file.bin", state(tensor()), protocol=1002))


def test_only_dicts_of_tensors_are_state_dicts(form):
    for wrapper in ("state_dict", "model"):
        payload = pickled(b"}(" + text("epoch") + number(3) + text(wrapper) + state(tensor())[2:-1] + b"u")
        assert list(open_pickled(form(payload))) == ["weight"]
    with pytest.raises(DataError, match="holds a dict of 'epoch', 5; expected a dict of tensors"):
        open_pickled(form(pickle.dumps({"epoch": 3, 5: {}}, 2)))
    with pytest.raises(DataError, match="holds a dict of nothing; expected a dict of tensors"):
        open_pickled(form(pickle.dumps({}, 2)))


def test_pickled_files_are_opened_on_request_only():
    check_allowed("x.bin", True)
    with pytest.raises(DataError, match=r"x\.bin: a pickled file, which is read only on request: .* --allow_pickle"):
        check_allowed("x.bin", False)


# Against PyTorch itself.


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


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
        **{
            str(dtype): (torch.randn(3, 2, generator=generator) * 50).to(dtype)
            for dtype in (torch.float64, torch.float16, torch.bfloat16)
        },
        **{
            str(dtype): torch.tensor([[1, 0], [77, -1]]).to(dtype)
            for dtype in (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)
        },
    }


def numbers_of(torch, tensor):
    tensor = tensor.detach()
    if tensor.dtype == torch.bfloat16:
        return tensor.contiguous().view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("protocol", [2, 4])
def test_every_tensor_of_torch_comes_back_bit_for_bit(torch, tmp_path, zipped, protocol):
    file = tmp_path / "pytorch_model.bin"
    torch.save(values_of(torch), file, _use_new_zipfile_serialization=zipped, pickle_protocol=protocol)
    expected = torch.load(file, weights_only=False)
    store = open_pickled(file)
    assert store.keys() == expected.keys()
    for name, lazy in store.items():
        array, wanted = lazy.read(), numbers_of(torch, expected[name])
        assert (lazy.shape, lazy.dtype) == (wanted.shape, wanted.dtype.name) == (array.shape, array.dtype.name), name
        np.testing.assert_array_equal(array, wanted, err_msg=name)


@pytest.mark.parametrize("zipped", [True, False])
def test_a_modules_state_dict_is_read(torch, tmp_path, zipped):
    module = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.LayerNorm(3))
    torch.save(module.state_dict(), tmp_path / "bin", _use_new_zipfile_serialization=zipped)
    store = open_pickled(tmp_path / "bin")
    assert list(store) == ["0.weight", "0.bias", "1.weight", "1.bias"]
    for name, lazy in store.items():
        np.testing.assert_array_equal(lazy.read(), module.state_dict()[name].numpy())


def test_a_whole_module_is_refused_by_the_name_of_its_class(torch, tmp_path):
    torch.save(torch.nn.Linear(2, 2), tmp_path / "bin")
    with pytest.raises(DataError, match=r"asks for 'torch\.nn\.modules\.linear\.Linear'; only tensors"):
        open_pickled(tmp_path / "bin")


def test_reading_a_tensor_reads_its_own_bytes_only(torch, tmp_path):
    file = tmp_path / "bin"
    torch.save({"big": torch.zeros(1 << 22), "small": torch.ones(3)}, file)
    read = []
    fromfile = np.fromfile

    def counted(*arguments, **options):
        array = fromfile(*arguments, **options)
        read.append(array.nbytes)
        return array

    store = open_pickled(file)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(np, "fromfile", counted)
        assert store["small"].read().tolist() == [1, 1, 1]
    assert read == [12]
