"""BERT's, DistilBERT's and ELECTRA's files against Transformers' own tokenizers."""

import pytest

from tests.checkpoints.tokenizer_files.directories import TEXTS, assert_same_ids, directory, read, rewritten, write
from tests.learned import learned

transformers = pytest.importorskip("transformers", reason="needs pip install 'bert_tf[peers]'")

FAMILIES = {"bert": "Bert", "distilbert": "DistilBert", "electra": "Electra"}


@pytest.mark.parametrize("model_type", FAMILIES)
@pytest.mark.parametrize("ending", ["", "Fast"])
def test_files_are_read_as_by_transformers_and_written_with_the_class_of_the_family(model_type, ending, tmp_path):
    pieces, name = learned("wordpiece").tokenizer.vocab, f"{FAMILIES[model_type]}Tokenizer"
    settings = {"tokenizer_class": name + ending, "do_lower_case": False, "strip_accents": True}
    config = {"tokenizer_config.json": settings, "config.json": {"model_type": model_type}}
    files = directory(tmp_path / "files", config | {"vocab.txt": "".join(f"{piece}\n" for piece in pieces)})
    theirs = transformers.AutoTokenizer.from_pretrained(files)
    tokenizer, warnings = read(files, len(pieces))
    assert not warnings
    assert_same_ids(tokenizer, theirs)

    again = rewritten(tokenizer, tmp_path / "again", model_type, FAMILIES[model_type])
    assert_same_ids(tokenizer, again)
    found, warnings = read(tmp_path / "again", len(pieces))
    assert not warnings and found.description == tokenizer.description
    assert f'"{name}"' in (tmp_path / "again" / "tokenizer_config.json").read_text(encoding="utf-8")

    theirs.save_pretrained(tmp_path / "library")
    write(tmp_path / "library", "config.json", {"model_type": model_type})
    assert read(tmp_path / "library", len(pieces))[0].tokenize(TEXTS).to_list() == tokenizer.tokenize(TEXTS).to_list()
