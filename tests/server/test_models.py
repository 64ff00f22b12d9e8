"""Versions are found, loaded and unloaded without a request being lost."""

import asyncio
import contextlib
import json
import logging
import os
import shutil
import tempfile

import numpy as np
import pytest
import tensorflow as tf
from google.protobuf import text_format
from tensorflow_serving.apis import prediction_log_pb2
from tensorflow_serving.config import model_server_config_pb2

from bert_tf.server.models import AVAILABLE, END, Models, PollingOptions
from bert_tf.server.monitoring import Metrics
from bert_tf.server.servable import RunOptions, Runtime
from bert_tf.server.status import Code, ServingError
from tests.server.saved_models import half_plus_two


@pytest.fixture(scope="module")
def versions(tmp_path_factory):
    """Three versions of a model, which answer 2, 3 and 4 to 0."""
    folder = tmp_path_factory.mktemp("versions")
    for version in (1, 2, 3):
        half_plus_two(folder, version, b=1.0 + version)
    return folder


def config(*models):
    """A ModelServerConfig from (name, base path, more fields in text format)."""
    entries = [
        f'config {{ name: "{name}" base_path: "{path}" model_platform: "tensorflow" {more} }}'
        for name, path, more in models
    ]
    text = "model_config_list {" + "\n".join(entries) + "}"
    return text_format.Parse(text, model_server_config_pb2.ModelServerConfig())


@contextlib.asynccontextmanager
async def serving(*entries, **options):
    runtime = Runtime(RunOptions(), Metrics())
    models = Models(runtime, PollingOptions(0.01), **options)
    try:
        if entries:
            await models.reload(config(*entries))
        yield models
    finally:
        await models.close()
        runtime.close()


async def ask(models, x=0.0, **which):
    with models.acquire("half", **which) as servable:
        answer = await servable.predict("", {"x": np.array([x], np.float32)})
        return float(answer["y"][0])


async def settled(models, state):
    """Polls until the states of the model are `state`, version -> state."""
    for _ in range(500):
        await models.poll()
        found = {status.version: status.state for status in models.known("half")}
        if found == state:
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"{found} instead of {state}")


def states(models):
    return {status.version: status.state for status in models.status("half")}


def run(coroutine):
    asyncio.run(asyncio.wait_for(coroutine, 120))


def copied(versions, folder, *numbers):
    for number in numbers:
        shutil.copytree(versions / str(number), folder / str(number))


def test_a_new_version_replaces_the_old_one_while_requests_run(versions, tmp_path):
    copied(versions, tmp_path, 1)

    async def main():
        async with serving(("half", tmp_path, "")) as models:
            assert models.ready() and await ask(models) == 2

            async def client():
                while states(models).get(2) != AVAILABLE or states(models)[1] != END:
                    answers.append(await ask(models))

            clients = [asyncio.create_task(client()) for _ in range(4)]
            copied(versions, tmp_path, 2)
            await settled(models, {1: END, 2: AVAILABLE})
            await asyncio.gather(*clients)  # none failed
            assert await ask(models) == 3
            with pytest.raises(ServingError, match="version 1 of model half"):
                await ask(models, version=1)

    answers = []
    run(main())
    assert set(answers) == {2, 3} and answers == sorted(answers)


def test_a_version_stays_loaded_until_its_last_request_is_answered(versions, tmp_path):
    copied(versions, tmp_path, 1)

    async def main():
        async with serving(("half", tmp_path, "")) as models:
            with models.acquire("half") as servable:
                copied(versions, tmp_path, 2)
                await settled(models, {1: "UNLOADING", 2: AVAILABLE})
                answer = await servable.predict("", {"x": np.zeros([1], np.float32)})
                assert answer["y"] == 2
            await settled(models, {1: END, 2: AVAILABLE})

    run(main())


@pytest.mark.parametrize("copied_half", [False, True])
def test_a_version_that_cannot_be_loaded_leaves_the_old_one_and_says_why(versions, tmp_path, copied_half, caplog):
    copied(versions, tmp_path, 1)

    async def main():
        async with serving(("half", tmp_path, "")) as models:
            (tmp_path / "2").mkdir()
            graph = (versions / "2" / "saved_model.pb").read_bytes() if copied_half else b"no graph"
            (tmp_path / "2" / "saved_model.pb").write_bytes(graph)
            await settled(models, {1: AVAILABLE, 2: END})
            newest = models.status("half", 2)[0]
            assert newest.code is not Code.OK and "not copied completely" in newest.message
            assert "version 2 cannot be loaded" in caplog.text and "; version 1 goes on serving" in caplog.text
            assert await ask(models) == 2
            shutil.copytree(versions / "2", tmp_path / "2", dirs_exist_ok=True)
            await settled(models, {1: END, 2: AVAILABLE})

    run(main())


@pytest.mark.parametrize(
    "policy, served",
    [
        ("", [3]),
        ("model_version_policy { latest { num_versions: 2 } }", [2, 3]),
        ("model_version_policy { all {} }", [1, 2, 3]),
        ("model_version_policy { specific { versions: 1 versions: 3 } }", [1, 3]),
    ],
)
def test_policies_choose_versions(versions, policy, served):
    async def main():
        async with serving(("half", versions, policy)) as models:
            assert states(models) == dict.fromkeys(served, AVAILABLE)
            assert [await ask(models, version=version) for version in served] == [1 + version for version in served]
            assert await ask(models) == 1 + max(served)

    run(main())


def test_labels_name_versions_that_are_loaded(versions):
    policy = "model_version_policy { specific { versions: 1 versions: 2 } }"
    labels = 'version_labels { key: "stable" value: 1 } version_labels { key: "canary" value: %d }'

    async def main():
        async with serving(("half", versions, policy + labels % 2)) as models:
            assert await ask(models, label="stable") == 2 and await ask(models, label="canary") == 3
            with pytest.raises(ServingError, match="label x") as error:
                await ask(models, label="x")
            assert error.value.code is Code.INVALID_ARGUMENT
            with pytest.raises(
                ServingError, match=r"version 3, which is not loaded; .*--allow_version_labels"
            ) as error:
                await models.reload(config(("half", versions, policy + labels % 3)))
            assert error.value.code is Code.FAILED_PRECONDITION
            assert await ask(models, label="canary") == 3

    run(main())


def test_only_a_new_label_may_be_early(versions):
    """As in TF Serving (server_core.cc): clients of a label that exists would be refused."""
    policy = "model_version_policy { specific { versions: 1 versions: 2 } }"
    label = 'version_labels { key: "canary" value: %d }'

    async def main():
        async with serving(("half", versions, policy), early_labels=True) as models:
            await models.reload(config(("half", versions, policy + label % 3)))
            with pytest.raises(ServingError) as error:
                await ask(models, label="canary")
            assert error.value.code is Code.NOT_FOUND
            await models.reload(config(("half", versions, policy + label % 3)))  # as it is
            await models.reload(config(("half", versions, policy + label % 2)))
            assert await ask(models, label="canary") == 3
            with pytest.raises(ServingError, match=r"label canary .* version 3, which is not loaded; load it") as error:
                await models.reload(config(("half", versions, policy + label % 3)))
            assert error.value.code is Code.FAILED_PRECONDITION and "--allow" not in error.value.message
            assert await ask(models, label="canary") == 3

    run(main())


def test_a_reload_waits_for_new_models_only(versions, tmp_path):
    copied(versions, tmp_path / "model", 1)
    empty = tmp_path / "empty"
    empty.mkdir()

    async def main():
        async with serving() as models:
            with pytest.raises(ServingError, match=r"empty: no version in .*empty; expected folders") as error:
                await models.reload(config(("empty", empty, "")))
            assert error.value.code is Code.UNKNOWN
            await models.reload(config(("empty", empty, ""), ("half", tmp_path / "model", "")))
            assert await ask(models) == 2 and not models.ready()

    run(main())


def test_a_version_that_the_policy_names_and_the_folder_lacks_is_logged_once(versions, caplog):
    policy = "model_version_policy { specific { versions: 1 versions: 7 versions: 9 } }"

    async def main():
        async with serving(("half", versions, policy)) as models:
            await models.poll()
            assert states(models) == {1: AVAILABLE}

    with caplog.at_level(logging.WARNING, "bert_tf.server"):
        run(main())
    assert caplog.messages == [f"half: no version 7, 9 in {versions}, as model_version_policy asks for"]


def test_labels_do_not_wait_for_other_models(versions, tmp_path):
    label = 'version_labels { key: "stable" value: 3 }'

    async def main():
        async with serving() as models:
            with pytest.raises(ServingError, match="empty: no version"):
                await models.reload(config(("empty", tmp_path, ""), ("half", versions, label)))
            assert await ask(models, label="stable") == 4

    run(main())


def test_reloading_adds_removes_and_moves_models(versions, tmp_path):
    copied(versions, tmp_path, 1)

    async def main():
        async with serving(("half", versions, "")) as models:
            await models.reload(config(("half", tmp_path, ""), ("other", versions, "")))
            assert models.names() == ["half", "other"] and await ask(models) == 2
            with pytest.raises(ServingError, match=r"half: .*nowhere: Could not find directory"):
                await models.reload(config(("half", tmp_path / "nowhere", "")))
            assert await ask(models) == 2  # still from the old folder
            assert models.names() == ["half"]
            await models.reload(config())
            with pytest.raises(ServingError) as error:
                await ask(models)
            assert error.value.code is Code.NOT_FOUND

    run(main())


def test_a_wrong_configuration_changes_nothing(versions):
    async def main():
        async with serving(("half", versions, "")) as models:
            with pytest.raises(ServingError, match="half is listed twice"):
                await models.reload(config(("half", "/x", ""), ("half", "/y", "")))
            assert await ask(models) == 4

    run(main())


def test_a_folder_that_disappears_for_a_moment_changes_nothing(versions, tmp_path):
    copied(versions, tmp_path / "model", 1)

    async def main():
        async with serving(("half", tmp_path / "model", "")) as models:
            (tmp_path / "model").rename(tmp_path / "away")
            await models.poll()
            assert await ask(models) == 2
            (tmp_path / "away").rename(tmp_path / "model")
            await models.poll()
            assert states(models) == {1: AVAILABLE}

    run(main())


def extra(version, name, content):
    """Writes a file of assets.extra."""
    (version / "assets.extra").mkdir(exist_ok=True)
    (version / "assets.extra" / name).write_bytes(content)


def warm_up(**inputs):
    """A file of one warm-up request."""
    log = prediction_log_pb2.PredictionLog()
    for name, value in inputs.items():
        log.predict_log.request.inputs[name].CopyFrom(tf.make_tensor_proto(value))
    with tempfile.NamedTemporaryFile() as file:
        with tf.io.TFRecordWriter(file.name) as writer:
            writer.write(log.SerializeToString())
        return file.read()


def test_a_model_card_that_comes_after_its_version_is_used_and_no_request_is_lost(versions, tmp_path):
    copied(versions, tmp_path, 1)
    card = {"format": "bert_tf", "signatures": {"serving_default": {"counted": {}}}}

    async def main():
        async with serving(("half", tmp_path, "")) as models:
            with models.acquire("half") as first:
                assert first.card is None and not first._queues
                extra(tmp_path / "1", "model_card.json", json.dumps(card).encode())
                while True:
                    await models.poll()
                    with models.acquire("half") as servable:
                        if servable.card:
                            break
                assert servable.card == card and "serving_default" in servable._queues  # rows share batches
                answer = await first.predict("", {"x": np.zeros([1], np.float32)})  # of a request that still runs
                assert answer["y"] == 2
            assert states(models) == {1: AVAILABLE} and await ask(models) == 2
            for _ in range(3):
                await models.poll()
            with models.acquire("half") as same:
                assert same is servable

    run(main())


def test_what_comes_after_a_version_is_checked_as_if_it_had_come_with_it(versions, tmp_path):
    copied(versions, tmp_path, 1, 2)
    policy = "model_version_policy { all {} }"

    async def main():
        async with serving(("half", tmp_path, policy)) as models:
            extra(tmp_path / "2", "tf_serving_warmup_requests", warm_up(y=[1.0]))
            await settled(models, {1: AVAILABLE, 2: END})
            assert "a warm-up request failed" in models.status("half", 2)[0].message and await ask(models) == 2
            extra(tmp_path / "2", "tf_serving_warmup_requests", warm_up(x=[1.0, 2.0]))
            await settled(models, {1: AVAILABLE, 2: AVAILABLE})
            assert await ask(models) == 3

    run(main())


@pytest.mark.parametrize("linked", [False, True])
@pytest.mark.parametrize(
    "name", ["saved_model.pb", "variables/variables.index", "assets.extra/model_card.json", "assets/vocab.txt"]
)
def test_a_named_pipe_in_a_version_is_refused_and_not_read(versions, tmp_path, name, linked):
    copied(versions, tmp_path, 1, 2)
    pipe = tmp_path / "2" / name
    pipe.parent.mkdir(exist_ok=True)
    if linked:
        pipe.parent.rename(tmp_path / "elsewhere")
        pipe.parent.symlink_to(tmp_path / "elsewhere")
    pipe.unlink(missing_ok=True)
    os.mkfifo(pipe)

    async def main():
        async with serving(("half", tmp_path, "model_version_policy { all {} }")) as models:
            assert states(models) == {1: AVAILABLE, 2: END} and await ask(models) == 2
            assert f"{pipe} is a pipe, socket or device; expected a regular file" == models.status("half", 2)[0].message

    run(main())


def test_links_that_form_circles_are_followed_once(versions, tmp_path):
    copied(versions, tmp_path, 1)
    for name in ("a", "b"):
        (tmp_path / "1" / "variables" / name).symlink_to(tmp_path / "1")

    async def main():
        async with serving(("half", tmp_path, "")) as models:
            await models.poll()
            assert states(models) == {1: AVAILABLE}

    run(main())


def test_an_empty_configuration_replaces_none(versions):
    empty = model_server_config_pb2.ModelServerConfig()

    async def main():
        async with serving() as models:
            await models.reload(empty)
            assert models.names() == [] and not models.ready()
            await models.reload(config(("half", versions, "")))
            with pytest.raises(ServingError, match="empty") as error:
                await models.reload(empty)
            assert error.value.code is Code.FAILED_PRECONDITION and await ask(models) == 4

    run(main())
