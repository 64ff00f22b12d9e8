/** What the model reads: tokens, ids, segment types and offsets. */

import { element, hint, table } from "./dom.js";
import { t } from "./i18n.js";

const MOST_WORDS = 6; // examples in a sentence
const BERT = { unk: "[UNK]", cls: "[CLS]", sep: "[SEP]", mask: "[MASK]" };

/** Names of the special tokens of a model, {unk, cls, sep, mask}; older cards have none. */
export const specialTokens = (model) => model.card?.special_tokens ?? BERT;

/** A token as to be read: a hyphen joins it to the text before it, and white space is visible. */
export const shown = (token) => (token.continues ? "-" : "") + (isSpace(token) ? "␣" : token.piece);

const isSpace = ({ piece }) => !piece.trim();

/**
 * The sequences of one answer of the signature `attention`: one, or one for each choice or separately encoded text.
 *
 * values: of the fields; inputs: their names in the order of the answer's `texts`; sep: the separator's name.
 *
 * Returns [{tokens, layers, heads, b64}]; a token is {piece, continues, id, type, segment, special, input, text, start,
 * end, length}: whether it continues the word of the token before it, its segment (0, or 1 after the first separator;
 * unlike the type in all models), the name of the field, the characters from start to end of it that the token covers,
 * and the field's length.
 */
export function sequencesOf(outputs, values, inputs, sep) {
  const nested = Array.isArray(outputs.tokens[0][0]);
  const of = (name) => (nested ? outputs[name][0] : [outputs[name][0]]);
  return of("tokens").map((pieces, number) => {
    const fields = inputs.map((name) => indexed([values[name]].flat()[Array.isArray(values[name]) ? number : 0] ?? ""));
    const [continues, ids, types, starts, ends, texts] = ["continues", "ids", "types", "starts", "ends", "texts"].map(
      (name) => of(name)[number],
    );
    let segment = 0;
    const tokens = pieces.slice(0, of("token_count")[number]).map((piece, index) => {
      const special = texts[index] < 0;
      const token = { piece, continues: continues[index], id: ids[index], type: types[index], segment, special };
      if (special && piece === sep) segment = 1;
      if (special) return token;
      const field = fields[texts[index]];
      const [start, end] = [starts[index], ends[index]];
      const place = { start: field.position(start), end: field.position(end), length: field.length };
      return { ...token, ...place, input: inputs[texts[index]], text: field.slice(start, end) };
    });
    const [layers, heads] = of("attention_shape")[number];
    return { tokens, layers, heads, b64: of("attention_bytes")[number].b64 };
  });
}

/** A text by its bytes in UTF-8: parts of it, and how many characters precede a byte. */
function indexed(text) {
  const bytes = new TextEncoder().encode(text);
  const before = new Uint32Array(bytes.length + 1);
  bytes.forEach((byte, index) => (before[index + 1] = before[index] + ((byte & 0xc0) !== 0x80)));
  return {
    position: (byte) => before[byte],
    slice: (start, end) => new TextDecoder().decode(bytes.subarray(start, end)),
    length: before[bytes.length],
  };
}

/** The view of one sequence; `names`: of the special tokens. */
export function tokenView({ tokens }, names) {
  const words = [];
  for (const token of tokens) {
    const last = words.at(-1);
    // White space begins the word after it.
    if (last && !token.special && (token.continues || isSpace(last.at(-1)))) last.push(token);
    else words.push([token]);
  }
  const row = (token, index) => [
    String(index),
    shown(token),
    String(token.id),
    String(token.type),
    token.special ? "" : `${token.start}–${token.end}`,
    token.text ?? "",
  ];
  return [
    inWords(
      tokens,
      words.filter(([token]) => !token.special),
      names,
    ).map((sentence) => element("p", {}, sentence)),
    element(
      "p",
      { className: "pieces" },
      words.map((word) => element("span", { className: "word" }, word.map((token) => box(token, names)))),
    ),
    tokens.some(({ type }) => type === 1) && hint(t("secondType")),
    element(
      "details",
      {},
      element("summary", {}, t("asTable")),
      table(
        ["position", "piece", "id", "type", "characters", "text"].map((name) => t(name)),
        tokens.map(row),
      ),
    ),
  ];
}

function box(token, { unk }) {
  const className = `piece${token.special ? " special" : ""}${token.piece === unk ? " unknown" : ""} type${token.type}`;
  return element(
    "span",
    { className, title: token.text ?? "" },
    element("span", {}, shown(token)),
    element("small", {}, String(token.id)),
  );
}

/** Sentences about what tokenization did to the text. */
function inWords(tokens, words, { unk, cls, sep }) {
  const described = words.map((word) => {
    const known = word.every(({ piece }) => piece !== unk);
    // Accents and Hangul may be read as separate letters, which the page would show alike.
    const read = word
      .map(({ piece }) => piece)
      .join("")
      .trim()
      .normalize("NFC");
    // Several pieces can cover the same character.
    const text = word
      .filter(({ start }, index) => !index || start >= word[index - 1].end)
      .map((token) => token.text)
      .join("")
      .trim();
    return { text, pieces: word.map(shown).join(" "), read, known, parts: word.length };
  });
  const listed = (key, found, show) => {
    const texts = [...new Set(found.map(show))];
    if (!texts.length) return [];
    return [t(key, { unk, words: texts.slice(0, MOST_WORDS).join(", ") + (texts.length > MOST_WORDS ? ", …" : "") })];
  };
  const last = new Map(tokens.filter(({ special }) => !special).map((token) => [token.input, token]));
  // A few characters at the end may be white space or deleted by normalization.
  const cut = [...last.values()].filter(({ end, length }) => length - end > 2);
  return [
    t("tokenCount", { words: words.length, tokens: tokens.length, cls, sep }),
    ...cut.map(({ end, length, input }) => t("notRead", { end, length, name: t(`field_${input}`) })),
    ...listed(
      "splitWords",
      described.filter(({ parts }) => parts > 1),
      ({ text, pieces }) => `${text} → ${pieces}`,
    ),
    ...listed(
      "unknownWords",
      described.filter(({ known }) => !known),
      ({ text }) => text,
    ),
    ...listed(
      "changedWords",
      // Parts of a character, such as \\xec, are not another form of it.
      described.filter(({ known, text, read }) => known && text !== read && !read.includes("\\x")),
      ({ text, read }) => `${text} → ${read}`,
    ),
  ];
}
