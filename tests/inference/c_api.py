"""Runs exported models through TensorFlow's C API, like TF Serving, in a process without Python's TensorFlow.

    python c_api.py SITE_PACKAGES < requests.jsonl

SITE_PACKAGES contains tensorflow/ and tensorflow_text/. A line is {"path": folder of a version, "inputs": [[operation,
index, type, shape, values], ...], "outputs": {name: [operation, index]}}; strings are base64. The answer to each is a
line, {"outputs": {name: [shape, type, values]}} or {"error": [code, message]}.
"""

import base64
import ctypes
import functools
import glob
import json
import struct
import sys

# Values of TF_DataType.
FLOAT, INT32, STRING, INT64, BOOL = 1, 3, 7, 9, 10
FORMATS = {FLOAT: "f", INT32: "i", INT64: "q", BOOL: "?"}
STRING_SIZE = 24  # of a TF_TString


class Output(ctypes.Structure):
    _fields_ = (("operation", ctypes.c_void_p), ("index", ctypes.c_int))


def load_library(site_packages):
    libraries = [
        ctypes.CDLL(f"{site_packages}/tensorflow/lib{name}.so.2", ctypes.RTLD_GLOBAL)
        for name in ("tensorflow_framework", "tensorflow_cc")
    ]

    def function(name, result, *arguments):
        found = next(getattr(library, name) for library in libraries if hasattr(library, name))
        found.restype, found.argtypes = result, arguments
        return found

    return function


class Api:
    """The functions of the C API that are used here, and TF Text's ops."""

    def __init__(self, site_packages):
        function, pointer = load_library(site_packages), ctypes.c_void_p
        self.new_status = function("TF_NewStatus", pointer)
        self.code = function("TF_GetCode", ctypes.c_int, pointer)
        self.message = function("TF_Message", ctypes.c_char_p, pointer)
        self.load = function("TF_LoadLibrary", pointer, ctypes.c_char_p, pointer)
        self.new_options = function("TF_NewSessionOptions", pointer)
        self.new_graph = function("TF_NewGraph", pointer)
        self.open = function(
            "TF_LoadSessionFromSavedModel", pointer, pointer, pointer, ctypes.c_char_p,
            ctypes.POINTER(ctypes.c_char_p), ctypes.c_int, pointer, pointer, pointer,
        )  # fmt: skip
        self.operation = function("TF_GraphOperationByName", pointer, pointer, ctypes.c_char_p)
        self.allocate = function(
            "TF_AllocateTensor", pointer, ctypes.c_int, ctypes.POINTER(ctypes.c_int64), ctypes.c_int, ctypes.c_size_t
        )
        self.data = function("TF_TensorData", pointer, pointer)
        self.rank = function("TF_NumDims", ctypes.c_int, pointer)
        self.size = function("TF_Dim", ctypes.c_int64, pointer, ctypes.c_int)
        self.dtype = function("TF_TensorType", ctypes.c_int, pointer)
        self.delete = function("TF_DeleteTensor", None, pointer)
        self.run = function(
            "TF_SessionRun", None, pointer, pointer, ctypes.POINTER(Output), ctypes.POINTER(pointer), ctypes.c_int,
            ctypes.POINTER(Output), ctypes.POINTER(pointer), ctypes.c_int, pointer, ctypes.c_int, pointer, pointer,
        )  # fmt: skip
        self.init_string = function("TF_StringInit", None, pointer)
        self.copy_string = function("TF_StringCopy", None, pointer, ctypes.c_char_p, ctypes.c_size_t)
        self.string_size = function("TF_StringGetSize", ctypes.c_size_t, pointer)
        self.string_data = function("TF_StringGetDataPointer", pointer, pointer)
        for library in sorted(glob.glob(f"{site_packages}/tensorflow_text/python/ops/*.so")):
            self.checked(self.load, library.encode())

    def checked(self, function, *arguments):
        """Calls a function whose last argument is a status; raises OSError(code, message)."""
        status = self.new_status()
        result = function(*arguments, status)
        if self.code(status):
            raise OSError(self.code(status), self.message(status).decode("utf-8", "replace"))
        return result

    @functools.cache  # noqa: B019  one object
    def session(self, path):
        """Session and graph of an exported version."""
        graph, tags = self.new_graph(), (ctypes.c_char_p * 1)(b"serve")
        options = self.new_options()
        return self.checked(self.open, options, None, path.encode(), tags, 1, graph, None), graph

    def tensor(self, kind, shape, flat):
        width = STRING_SIZE if kind == STRING else struct.calcsize(FORMATS[kind])
        tensor = self.allocate(kind, (ctypes.c_int64 * len(shape))(*shape), len(shape), width * len(flat))
        start = self.data(tensor)
        if kind == STRING:
            for place, value in enumerate(flat):
                text = base64.b64decode(value)
                self.init_string(start + place * width)
                self.copy_string(start + place * width, text, len(text))
        elif flat:
            ctypes.memmove(start, struct.pack(f"{len(flat)}{FORMATS[kind]}", *flat), width * len(flat))
        return tensor

    def values(self, tensor):
        shape = [self.size(tensor, place) for place in range(self.rank(tensor))]
        count, kind, start = 1, self.dtype(tensor), self.data(tensor)
        for size in shape:
            count *= size
        if kind == STRING:
            output_array = (start + place * STRING_SIZE for place in range(count))
            texts = (ctypes.string_at(self.string_data(place), self.string_size(place)) for place in output_array)
            return [shape, kind, [base64.b64encode(text).decode() for text in texts]]
        width = struct.calcsize(FORMATS[kind])
        raw = ctypes.string_at(start, width * count) if count else b""
        return [shape, kind, list(struct.unpack(f"{count}{FORMATS[kind]}", raw))]

    def ask(self, path, inputs, outputs):
        session, graph = self.session(path)

        def output_array(names):
            return (Output * len(names))(*(Output(self.operation(graph, name.encode()), at) for name, at in names))

        fed = (ctypes.c_void_p * len(inputs))(*(self.tensor(*value) for _, _, *value in inputs))
        fetched = (ctypes.c_void_p * len(outputs))()
        feeds, fetches = output_array([one[:2] for one in inputs]), output_array(list(outputs.values()))
        self.checked(self.run, session, None, feeds, fed, len(inputs), fetches, fetched, len(outputs), None, 0, None)
        found = {name: self.values(tensor) for name, tensor in zip(outputs, fetched, strict=True)}
        for tensor in (*fed, *fetched):
            self.delete(tensor)
        return found


def main(site_packages):
    api = Api(site_packages)
    for line in sys.stdin:
        try:
            answer = {"outputs": api.ask(**json.loads(line))}
        except OSError as error:
            answer = {"error": error.args}
        print(json.dumps(answer), flush=True)
    assert "tensorflow" not in sys.modules


if __name__ == "__main__":
    main(*sys.argv[1:])
