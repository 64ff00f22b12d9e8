"""The state of a run on disk: checkpoints, input position, manifest, history."""
