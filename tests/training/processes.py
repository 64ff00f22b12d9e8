"""Programs in processes of their own: how many devices there are must be said before TensorFlow starts."""

import contextlib
import json
import os
import socket
import subprocess
import sys

import tensorflow as tf


def start(module, *arguments, environment=None):
    """Starts `python -m module arguments` on CPUs; its output is for `finish`."""
    return subprocess.Popen(
        [sys.executable, "-m", module, *map(str, arguments)],
        env=os.environ | {"CUDA_VISIBLE_DEVICES": "-1"} | (environment or {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(*processes, timeout=240):
    """Waits for all of them; one that fails fails the caller, with its output, and ends the others."""
    try:
        for process in processes:
            output, _ = process.communicate(timeout=timeout)
            assert process.returncode == 0, output[-4000:]
    finally:
        for process in processes:
            process.kill()


def cluster(workers):
    """The environments of that many worker processes on this machine, for MultiWorkerMirroredStrategy."""
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(workers)]
        addresses = [f"127.0.0.1:{server.getsockname()[1]}" for server in servers]
    return [
        {"TF_CONFIG": json.dumps({"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}})}
        for index in range(workers)
    ]


def virtual_devices(count):
    """Makes `count` devices of this process' processor; call it before anything asks for the devices."""
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * count)
