"""Runs that were interrupted, made from finished ones."""

import shutil


def stopped(finished, folder):
    """A copy of a run's directory, as if its machine had stopped after the last checkpoint but one."""
    shutil.copytree(finished, folder)
    steps = sorted(int(file.stem.removeprefix("step-")) for file in folder.glob("checkpoints/step-*.index"))
    for pattern in (f"checkpoints/*-{steps[-1]}.*", "*.safetensors", "config.json", "results.json"):
        for file in folder.glob(pattern):
            file.unlink()
    state = folder / "checkpoints" / "checkpoint"
    state.write_text(state.read_text().replace(f"step-{steps[-1]}", f"step-{steps[-2]}"))
    return folder
