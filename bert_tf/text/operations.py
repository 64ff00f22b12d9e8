"""The operations of tokenizers: those of TensorFlow Text where it can be imported, otherwise those of TensorFlow alone.

Both modules have the same classes, `Replacer`, `WordPiece` and `SentencePiece`, which return the same.
"""

import importlib.metadata
from typing import TYPE_CHECKING


def _tf_text_works() -> bool:
    try:
        import bert_tf.text.tf_text  # noqa: F401
    except Exception:  # not installed, or made for another TensorFlow, for which it ends in errors of many kinds
        return False
    return True


TF_TEXT = _tf_text_works()

if TYPE_CHECKING or TF_TEXT:
    from bert_tf.text.tf_text import Replacer as Replacer
    from bert_tf.text.tf_text import SentencePiece as SentencePiece
    from bert_tf.text.tf_text import WordPiece as WordPiece
else:
    from bert_tf.text.without_tf_text import Replacer as Replacer
    from bert_tf.text.without_tf_text import SentencePiece as SentencePiece
    from bert_tf.text.without_tf_text import WordPiece as WordPiece


def versions() -> dict[str, str]:
    """The versions of TensorFlow and Keras, and of TensorFlow Text where it is used, by the names of their packages."""
    packages = ("tensorflow", *(["tensorflow-text"] if TF_TEXT else []), "keras")
    return {package: importlib.metadata.version(package) for package in packages}
