"""Makes the bundled Korean text from two Debian packages; running it again gives identical bytes.

    apt-get download gnome-user-docs=43.0-2 libreoffice-help-ko=4:7.4.7-1+deb12u14   # Debian 12
    python data/build_korean.py --gnome=gnome-user-docs_43.0-2_all.deb \\
        --libreoffice=libreoffice-help-ko_4%3a7.4.7-1+deb12u14_all.deb --output=data

`data/README.md` says what comes out and under which licences.
"""

import hashlib
import html.parser
import io
import os
import pathlib
import re
import tarfile
import xml.etree.ElementTree

from absl import app, flags
from build import write_documents

SHA256 = {
    "gnome": "0d635a840747958ca84da778b40d341f1155603851f922c9a171f5a181d6a39f",
    "libreoffice": "7ef2d854e9ed58e6bf861cfa9fa2579555233f9df874baf327fcb07ccd190669",
}
PAGES = {
    "gnome": re.compile(r"\./usr/share/help/ko/.*\.page"),
    "libreoffice": re.compile(r"\./usr/share/libreoffice/help/ko/text/.*\.html"),
}
LEAST_SENTENCES = 3  # shorter pages are lists of links and entries of a reference
HELDOUT_EVERY, HELDOUT_FIRST = 16, 7

# ---- Sentences ---------------------------------------------------------------------------------------------------

# Not after a figure: "1. " numbers what follows. Korean has no full stop after abbreviations, and hardly any capitals.
_END = re.compile(r"(?<=[^\W\d][.?!])\s+|(?<=[^\s\w][.?!])\s+|(?<=[.?!][)\"”’」])\s+")
_SENTENCE = re.compile(r".*[.?!][)\"”’」]?")


def korean_sentences(paragraph):
    """Sentences of a paragraph that is Korean; fragments (headings, menu entries) and English are left out."""
    text = re.sub(r"\s+([.,?!:)])", r"\1", re.sub(r"\s+", " ", paragraph)).strip()
    return [
        sentence
        for sentence in _END.split(text)
        if _SENTENCE.fullmatch(sentence)
        and sentence.isprintable()  # a few are in a wrong encoding
        and len(sentence.split()) >= 2
        and _hangul_share(sentence) >= 0.5
    ]


def _hangul_share(text):
    letters = sum(map(str.isalpha, text))
    return sum("가" <= char <= "힣" for char in text) / letters if letters else 0.0


# ---- GNOME Help: Mallard pages -----------------------------------------------------------------------------------

_MALLARD = "{http://projectmallard.org/1.0/}"
# Between the parts of a key combination or of a way through menus there is no text.
_JOINTS = {"keyseq": "+", "guiseq": " > "}


def mallard_paragraphs(page, titles):
    """Yields the running text of every paragraph of a Mallard page but for those about the page (`info`).

    Args:
        page: str, the XML.
        titles: dict, titles of the pages by their ids: a link without words shows the title of what it leads to.
    """
    root = xml.etree.ElementTree.fromstring(page)
    for info in root.findall(f"{_MALLARD}info"):
        root.remove(info)
    for paragraph in root.iter(f"{_MALLARD}p"):
        yield _mallard_text(paragraph, titles)


def _mallard_text(element, titles):
    name = element.tag.removeprefix(_MALLARD)
    if name in _JOINTS:
        return _JOINTS[name].join(_mallard_text(part, titles).strip() for part in element)
    text = (element.text or "") + "".join(_mallard_text(part, titles) + (part.tail or "") for part in element)
    return text if text.strip() or name != "link" else titles.get(element.get("xref"), "")


def mallard_titles(pages):
    """dict: the title of every page by its id."""
    roots = [xml.etree.ElementTree.fromstring(page) for _, page in pages]
    return {root.get("id"): _mallard_text(root.find(f"{_MALLARD}title"), {}).strip() for root in roots}


def mallard_authors(pages):
    """Names of the people whom the pages credit (authors, editors, translators), in alphabetical order."""
    names = set()
    for _, page in pages:
        for element in xml.etree.ElementTree.fromstring(page).iter():
            if element.tag == f"{_MALLARD}credit":
                names.update(name.text.strip() for name in element.findall(f"{_MALLARD}name"))
    return sorted(names)


# ---- LibreOffice Help: HTML pages --------------------------------------------------------------------------------


# Of texts that differ between systems the one for Linux stays; navigation, code and lists of links go.
_SKIPPED = {"MAC", "WIN", "relatedtopics", "howtoget", "code", "codeintable", "bascode", "pycode", "noteicon"}
# A sentence with a word that depends on the module has no one form.
_MODULES = {"WRITER", "CALC", "IMPRESS", "DRAW", "CHART", "MATH", "BASE", "BASIC"}
_VOID = {"meta", "link", "img", "br", "input", "hr", "base", "col"}  # elements that are never closed


class _HelpPage(html.parser.HTMLParser):
    """Collects the paragraphs of a LibreOffice help page."""

    def __init__(self):
        super().__init__()
        self.paragraphs = []
        self._open = []  # of every open element: its tag and whether its text is left out
        self._text, self._whole = None, True

    def handle_starttag(self, tag, attributes):
        names = dict(attributes)
        classes = set((names.get("class") or "").split())
        if tag == "br" and self._text is not None:
            self._text.append(" ")
        if tag in _VOID:
            return
        outside = self._open[-1][1] if self._open else True
        inside = not outside or names.get("id") == "DisplayArea"
        skipped = not inside or bool(classes & _SKIPPED) or tag in ("script", "footer")
        self._open.append((tag, skipped))
        if tag == "p":
            self._text, self._whole = [], True
        self._whole = self._whole and not classes & _MODULES

    def handle_endtag(self, tag):
        if tag == "p" and self._text is not None:
            if self._whole:
                self.paragraphs.append("".join(self._text))
            self._text = None
        if any(tag == opened for opened, _ in self._open):
            while self._open.pop()[0] != tag:
                pass

    def handle_data(self, data):
        if self._text is not None and self._open and not self._open[-1][1]:
            self._text.append(data)


def help_paragraphs(page):
    """Yields the running text of every paragraph of a LibreOffice help page."""
    parser = _HelpPage()
    parser.feed(page)
    parser.close()
    yield from parser.paragraphs


# ---- Packages ----------------------------------------------------------------------------------------------------


def read_package(path, name):
    """Lists (path, text) of the Korean pages in a .deb, by path.

    Raises:
        ValueError: it is not the file that the bundled text was made from.
    """
    content = pathlib.Path(path).read_bytes()
    if hashlib.sha256(content).hexdigest() != SHA256[name]:
        raise ValueError(f"{path}: its SHA-256 is {hashlib.sha256(content).hexdigest()}, expected {SHA256[name]}")
    with tarfile.open(fileobj=io.BytesIO(_archive_member(content, "data.tar.xz"))) as files:
        pages = sorted((file.name, file) for file in files if file.isfile() and PAGES[name].fullmatch(file.name))
        return [(page, files.extractfile(file).read().decode("utf-8")) for page, file in pages]


def _archive_member(archive, name):
    """One file of an ar archive, which is what a .deb is: headers of 60 bytes, contents padded to even lengths."""
    start = len(b"!<arch>\n")
    while start < len(archive):
        header = archive[start : start + 60].decode("ascii")
        size = int(header[48:58])
        if header[:16].rstrip(" /") == name:
            return archive[start + 60 : start + 60 + size]
        start += 60 + size + size % 2
    raise ValueError(f"no {name} in the package")


def make_documents(pages, paragraphs_of):
    """A document for each page with enough text; a paragraph that was on an earlier page is left out."""
    seen, documents = set(), []
    for _, page in pages:
        document = []
        for paragraph in paragraphs_of(page):
            sentences = tuple(korean_sentences(paragraph))
            if sentences not in seen:
                document += sentences
            seen.add(sentences)
        if len(document) >= LEAST_SENTENCES:
            documents.append(document)
    return documents


def main(argv):
    if len(argv) > 1:
        raise app.UsageError(f"unexpected argument {argv[1]!r}")
    folder = pathlib.Path(flags.FLAGS.output) / "korean"
    os.makedirs(folder, exist_ok=True)
    gnome = read_package(flags.FLAGS.gnome, "gnome")
    titles = mallard_titles(gnome)
    documents = {
        "gnome": make_documents(gnome, lambda page: mallard_paragraphs(page, titles)),
        "libreoffice": make_documents(read_package(flags.FLAGS.libreoffice, "libreoffice"), help_paragraphs),
    }
    for name, every in documents.items():
        heldout = range(HELDOUT_FIRST, len(every), HELDOUT_EVERY)
        write_documents(folder / f"{name}_train.txt.gz", [d for n, d in enumerate(every) if n not in heldout])
        write_documents(folder / f"{name}_heldout.txt.gz", [every[n] for n in heldout])
    authors = "".join(f"{name}\n" for name in mallard_authors(gnome))
    (folder / "gnome_authors.txt").write_text(authors, encoding="utf-8")


if __name__ == "__main__":
    flags.DEFINE_string("gnome", None, "gnome-user-docs_43.0-2_all.deb")
    flags.DEFINE_string("libreoffice", None, "libreoffice-help-ko_4%3a7.4.7-1+deb12u14_all.deb")
    flags.DEFINE_string("output", "data", "folder to write korean/ into")
    flags.mark_flags_as_required(["gnome", "libreoffice"])
    app.run(main)
