import pytest

from bert_tf import xla_settings

ROUNDINGS = "--xla_allow_excess_precision"


@pytest.mark.parametrize(
    "gpus, given, expected",
    [
        (["GPU"], "", f"{ROUNDINGS}=false"),
        (["GPU"], "--xla_dump_to=x", f"--xla_dump_to=x {ROUNDINGS}=false"),
        (["GPU"], f"{ROUNDINGS}=true", f"{ROUNDINGS}=true"),
        ([], "", ""),
    ],
)
def test_xla_keeps_roundings_on_gpus_unless_the_user_says_otherwise(monkeypatch, gpus, given, expected):
    monkeypatch.setenv("XLA_FLAGS", given)
    monkeypatch.setattr(xla_settings.tf.config, "list_physical_devices", lambda kind: gpus)
    xla_settings.keep_roundings()
    assert xla_settings.os.environ["XLA_FLAGS"] == expected
