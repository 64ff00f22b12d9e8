"""Distillations of encoders on two devices of a process of its own.

    python -m tests.training.distilled_replicas CORPORA FOLDER

trains with each objective, in the folder of its name.
"""

import pathlib
import sys

from bert_tf.training.strategy import create
from tests.training.processes import virtual_devices


def main(corpora, folder):
    virtual_devices(2)
    from tests.training.test_encoder_distillation import LOSSES, distil  # which uses the devices

    strategy = create("mirrored")
    assert strategy.num_replicas_in_sync == 2
    for objective in LOSSES:
        distil(pathlib.Path(corpora), pathlib.Path(folder) / objective, objective, strategy=strategy)


if __name__ == "__main__":
    main(*sys.argv[1:])
