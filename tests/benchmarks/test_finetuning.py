"""The benchmark of fine-tuning trains and evaluates on the first sentences."""

import importlib

from benchmarks.side_by_side import ROOT


def test_data_are_the_first_sentences(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))  # where a script's own folder is
    finetuning = importlib.import_module("finetuning")
    source, folder = tmp_path / "source", tmp_path / "data"
    source.mkdir()
    folder.mkdir()
    for name in ("train", "dev"):
        (source / f"{name}.tsv").write_text("".join(f"{name} {number}\t{number % 2}\n" for number in range(3000)))
    finetuning.write_data(str(source), str(folder))
    train, dev = ((folder / f"{name}.tsv").read_text().splitlines() for name in ("train", "dev"))
    assert (len(train), train[0], train[-1]) == (2000, "train 0\t0", "train 1999\t1")
    assert (len(dev), dev[-1]) == (400, "dev 399\t1")
