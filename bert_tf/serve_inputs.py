"""One process of a tf.data service that makes batches for a training run elsewhere.

On one machine: python -m bert_tf.serve_inputs --port=5000 --workers=host1:5001,host2:5001
On each worker: python -m bert_tf.serve_inputs --port=5001 --dispatcher=host0:5000 --address=host1:5001
"""

from absl import flags

from bert_tf.app import run
from bert_tf.errors import ConfigError
from bert_tf.inputs.corpus.service import SERVICE

_PORT = flags.DEFINE_integer("port", None, "Port to listen at.", lower_bound=0, upper_bound=65535, required=True)
_WORKERS = flags.DEFINE_list("workers", [], "The dispatcher's: HOST:PORT of every worker, separated by commas.")
_DISPATCHER = flags.DEFINE_string("dispatcher", "", "A worker's: HOST:PORT of the dispatcher.")
_ADDRESS = flags.DEFINE_string("address", "", "A worker's: its HOST:PORT as it stands in the dispatcher's --workers.")


def main(_):
    import tensorflow_text  # noqa: F401  the operations that the batches are made with

    if bool(_WORKERS.value) == bool(_DISPATCHER.value) or bool(_DISPATCHER.value) != bool(_ADDRESS.value):
        raise ConfigError("give a dispatcher --workers, or a worker --dispatcher and --address")
    if _WORKERS.value:
        server = SERVICE.DispatchServer(SERVICE.DispatcherConfig(port=_PORT.value, worker_addresses=_WORKERS.value))
        print(f"dispatcher of {len(_WORKERS.value)} workers at port {_PORT.value}", flush=True)
    else:
        server = SERVICE.WorkerServer(
            SERVICE.WorkerConfig(dispatcher_address=_DISPATCHER.value, worker_address=_ADDRESS.value, port=_PORT.value)
        )
        print(f"worker {_ADDRESS.value} of {_DISPATCHER.value}", flush=True)
    server.join()


def cli():
    """The console command."""
    run(main)


if __name__ == "__main__":
    cli()
