"""bert_tf: BERT on today's TensorFlow and Keras 3."""

import re
from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent
PROGRAMS = ("quickstart", "learn_vocab", "prepare", "serve_inputs", "pretrain")
PROGRAMS += ("finetune", "evaluate", "predict", "export", "extract", "convert", "ablate")
# TFDS 4.9.10 imports importlib_resources on every Python, and requires it on old ones only.
TFDS = ("tensorflow-datasets>=4.9.9", "importlib_resources")

setup(
    name="bert_tf",
    version=re.search(r'__version__ = "(.+)"', (HERE / "bert_tf/__init__.py").read_text())[1],
    description="BERT on TensorFlow and Keras 3: from raw text to a SavedModel that TF Serving answers from",
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    python_requires=">=3.11,<3.14",
    # configs/ and data/ lie at the top of the checkout and inside the package once it is installed.
    packages=[*find_packages(include=["bert_tf", "bert_tf.*"]), "bert_tf.configs", "bert_tf.data"],
    package_dir={"bert_tf": "bert_tf", "bert_tf.configs": "configs", "bert_tf.data": "data"},
    package_data={"bert_tf.configs": ["*/*.py"], "bert_tf.data": ["*.md", "*/*"]},
    install_requires=[
        # The two pairs that work: the ops of TF Text are built for one TensorFlow, and 2.21.0's wheel is broken.
        "tensorflow>=2.20,<2.22",
        "tensorflow-text>=2.20.1,<2.22,!=2.21.0",
        "keras>=3.13",
        "tensorboard>=2.20",  # no longer comes with TensorFlow 2.21
        "absl-py",
        "ml_collections>=1.0",
        "numpy",
        "ml_dtypes",  # bfloat16 for NumPy
        "safetensors",
        "PyYAML",  # settings of TF Model Garden
        "tensorflow-serving-api>=2.20,<2.22",  # warm-up requests of exports
        "tokenizers>=0.20",  # learns vocabularies
        "matplotlib",  # the curves of the report
        "tqdm",
        "scipy",  # correlations
        "scikit-learn",  # F1 of classes, Matthews' coefficient
    ],
    extras_require={
        # Other people's implementations, which the slow tests compare this one with.
        "peers": ["torch", "transformers>=5", "onnx", "onnxruntime"],
        "beam": ["apache-beam>=2.70"],  # prepare, predict --runner
        "hub": ["huggingface_hub>=1.0"],  # hf:// names
        "tfds": TFDS,  # tfds: names
        "test": [*("apache-beam>=2.70", "pytest", "hypothesis", "ruff", "huggingface_hub>=1.0"), *TFDS],
    },
    entry_points={"console_scripts": [f"bert-tf-{name.replace('_', '-')}=bert_tf.{name}:cli" for name in PROGRAMS]},
)
