"""A dispatcher or worker of a tf.data service, which makes batches for a training run on another machine.

The dispatcher: python -m bert_tf.data_service --port=5000 --workers=host1:5001,host2:5001
Each worker: python -m bert_tf.data_service --port=5001 --dispatcher=host0:5000 --address=host1:5001
"""

import re

from absl import flags

from bert_tf.app import run
from bert_tf.errors import ConfigError
from bert_tf.inputs.corpus.service import SERVICE

_PORT = flags.DEFINE_integer("port", None, "Port to listen on.", lower_bound=0, upper_bound=65535, required=True)
_WORKERS = flags.DEFINE_list("workers", [], "Dispatcher only: HOST:PORT of every worker, separated by commas.")
_DISPATCHER = flags.DEFINE_string("dispatcher", "", "Worker only: HOST:PORT of the dispatcher.")
_ADDRESS = flags.DEFINE_string(
    "address", "", "Worker only: its own HOST:PORT, as listed in the dispatcher's --workers."
)


def main(_: list[str]) -> None:
    import bert_tf.text.operations  # noqa: F401  registers the operations that make the batches

    if bool(_WORKERS.value) == bool(_DISPATCHER.value) or bool(_DISPATCHER.value) != bool(_ADDRESS.value):
        raise ConfigError("expected --workers for the dispatcher, or --dispatcher and --address for a worker")
    for flag in (_WORKERS, _DISPATCHER, _ADDRESS):
        for address in [flag.value] if isinstance(flag.value, str) else flag.value:
            if address and not re.fullmatch(r"[^\s/]+:[1-9]\d{0,4}", address):
                raise ConfigError(f"--{flag.name}={address}: expected HOST:PORT, such as host1:5001")
    if _WORKERS.value:
        server = SERVICE.DispatchServer(SERVICE.DispatcherConfig(port=_PORT.value, worker_addresses=_WORKERS.value))
        print(f"dispatcher of {len(_WORKERS.value)} workers on port {_PORT.value}", flush=True)
    else:
        server = SERVICE.WorkerServer(
            SERVICE.WorkerConfig(dispatcher_address=_DISPATCHER.value, worker_address=_ADDRESS.value, port=_PORT.value)
        )
        print(f"worker {_ADDRESS.value} of {_DISPATCHER.value}", flush=True)
    server.join()


if __name__ == "__main__":
    run(main)
