"""What a program says when it is stopped outside of the updates."""

import os
import signal

import pytest
import tensorflow as tf

from bert_tf.training.state.signals import Signals, Terminated, terminable


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, None])
def test_workers_agree_on_the_signal_that_one_has_received(number, monkeypatch):
    monkeypatch.setattr("bert_tf.training.state.signals.in_multi_worker_mode", lambda strategy: True)
    with Signals(tf.distribute.OneDeviceStrategy("/cpu:0")) as signals:
        assert not signals.any(False) and signals.any(True)
        if number:
            os.kill(os.getpid(), number)
        assert signals.agreed() == number


def test_ctrl_c_says_how_to_resume(capsys):
    with pytest.raises(KeyboardInterrupt), terminable("runs/model"):
        raise KeyboardInterrupt
    assert "run the same command again to resume from runs/model" in capsys.readouterr().err


def test_sigterm_ends_the_block_with_an_error_and_its_handler_is_put_back():
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Terminated, match="to resume from runs/model"), terminable("runs/model"):
        os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) == before
