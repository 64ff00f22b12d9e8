"""What the library tokenizers says of a tokenizer.json, as the reader asks it."""

import pytest
import tokenizers
from tokenizers import models, pre_tokenizers

from bert_tf.checkpoints.tokenizer_files.comparison import spaces
from bert_tf.text.codepoints import WHITE_SPACE


@pytest.mark.parametrize(
    "splitter, expected",
    [
        (pre_tokenizers.Split(" ", "removed"), []),
        (pre_tokenizers.WhitespaceSplit(), list(WHITE_SPACE.replace(" ", ""))),
    ],
)
def test_white_space_that_separates_words_is_what_the_library_splits_at(splitter, expected):
    library = tokenizers.Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    library.pre_tokenizer = splitter
    assert spaces(library) == expected
