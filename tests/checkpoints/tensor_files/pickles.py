"""Files of torch.save made by hand, instruction by instruction, so that they can ask for anything."""

import pickle
import struct
import zipfile

import numpy as np

MAGIC, PROTOCOL = 0x1950A86A20F9469CFC6C, 1001


def text(value):
    data = value.encode()
    return b"X" + struct.pack("<I", len(data)) + data


def number(value):
    return pickle.dumps(value, 2)[2:-1]  # without the protocol and the stop


def group(*parts):
    return b"(" + b"".join(parts) + b"t"


def storage(key="0", count=6, kind="torch\nFloatStorage", extra=b""):
    return group(text("storage"), b"c" + kind.encode() + b"\n", text(key), text("cpu"), number(count), extra) + b"Q"


def tensor(offset=0, shape=(2, 3), strides=(3, 1), rebuild="torch._utils\n_rebuild_tensor_v2", tail=b"", **stored):
    places = group(*map(number, shape)), group(*map(number, strides))
    arguments = group(storage(**stored), number(offset), *places, b"\x89", b"}", tail)
    return b"c" + rebuild.encode() + b"\n" + arguments + b"R"


def pickled(value):
    return b"\x80\x02" + value + b"."


def state(value):
    return pickled(b"}" + text("weight") + value + b"s")


NUMBERS = np.arange(6, dtype=np.float32)


def records_for(payload):
    """The storages, dict key -> bytes, that a payload of this file's making asks for."""
    return {"0": NUMBERS.tobytes()} if b"Storage" in payload else {}


def archive(path, payload, records=None, compression=zipfile.ZIP_STORED, order=None):
    """A file of the zip form: the payload and the storages, dict key -> bytes."""
    with zipfile.ZipFile(path, "w", compression) as out:
        out.writestr("model/data.pkl", payload)
        if order:
            out.writestr("model/byteorder", order)
        for key, data in (records_for(payload) if records is None else records).items():
            out.writestr(f"model/data/{key}", data)
    return path


def sequence(path, payload, records=None, magic=MAGIC, protocol=PROTOCOL, keys=None):
    """A file of the form before it."""
    records = records_for(payload) if records is None else records
    parts = [pickle.dumps(part, 2) for part in (magic, protocol, {"little_endian": True})]
    parts += [payload, pickle.dumps(list(records) if keys is None else keys, 2)]
    parts += [struct.pack("<q", len(data) // 4) + data for data in records.values()]
    path.write_bytes(b"".join(parts))
    return path


def dictionary(items):
    """A dict of str and values that are instructions already."""
    return b"}(" + b"".join(text(name) + value for name, value in items.items()) + b"u"


def arrays(named):
    """A state dict of arrays (dict name -> array) as float32, and the storages that go with it."""
    values, records = {}, {}
    for key, (name, array) in enumerate(named.items()):
        array = np.ascontiguousarray(array, np.float32)
        strides = [stride // array.itemsize for stride in array.strides]
        values[name] = tensor(shape=array.shape, strides=strides, key=str(key), count=array.size)
        records[str(key)] = array.tobytes()
    return dictionary(values), records
