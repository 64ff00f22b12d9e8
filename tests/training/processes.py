"""Programs in separate processes: the number of devices has to be set before TensorFlow starts."""

import contextlib
import json
import os
import socket
import subprocess
import sys

import tensorflow as tf


def start(module, *arguments, environment=None):
    """Starts `python -m module arguments` on CPUs; its output is kept for `finish`."""
    return subprocess.Popen(
        [sys.executable, "-m", module, *map(str, arguments)],
        env=os.environ | {"CUDA_VISIBLE_DEVICES": "-1"} | (environment or {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(*processes, timeout=900):
    """Waits for all processes; if one fails, raises an error with its output and ends the others."""
    try:
        for process in processes:
            output, _ = process.communicate(timeout=timeout)
            assert process.returncode == 0, output[-4000:]
    finally:
        for process in processes:
            process.kill()


def cluster(workers):
    """The environments of this number of worker processes on this machine, for MultiWorkerMirroredStrategy."""
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(workers)]
        addresses = [f"127.0.0.1:{server.getsockname()[1]}" for server in servers]
    return [
        {"TF_CONFIG": json.dumps({"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}})}
        for index in range(workers)
    ]


def virtual_devices(count):
    """Makes `count` devices of this process' CPU; must be called before anything uses the devices."""
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * count)
