/** What the model reads: wordpieces, ids, segment types and offsets. */

import { element, hint, table } from "./dom.js";
import { t } from "./i18n.js";

const MOST_WORDS = 6; // examples in a sentence

/**
 * The sequences of one answer of the signature `attention`: one, or one for each choice or separately encoded text.
 *
 * values: of the fields; inputs: their names in the order of the answer's `texts`.
 *
 * Returns [{tokens, layers, heads, b64}]; a token is {piece, id, type, special, input, text, start, end, length} with
 * the name of the field, the characters from start to end of it that the token covers, and the field's length.
 */
export function sequencesOf(outputs, values, inputs) {
  const nested = Array.isArray(outputs.tokens[0][0]);
  const of = (name) => (nested ? outputs[name][0] : [outputs[name][0]]);
  return of("tokens").map((pieces, number) => {
    const fields = inputs.map((name) => indexed([values[name]].flat()[Array.isArray(values[name]) ? number : 0] ?? ""));
    const [ids, types, starts, ends, texts] = ["ids", "types", "starts", "ends", "texts"].map(
      (name) => of(name)[number],
    );
    const tokens = pieces.slice(0, of("token_count")[number]).map((piece, index) => {
      const token = { piece, id: ids[index], type: types[index], special: texts[index] < 0 };
      if (token.special) return token;
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

/** The view of one sequence. */
export function tokenView({ tokens }) {
  const words = [];
  for (const token of tokens) {
    if (!token.special && token.piece.startsWith("##") && words.length) words.at(-1).push(token);
    else words.push([token]);
  }
  const row = (token, index) => [
    String(index),
    token.piece,
    String(token.id),
    String(token.type),
    token.special ? "" : `${token.start}–${token.end}`,
    token.text ?? "",
  ];
  return [
    inWords(
      tokens,
      words.filter(([token]) => !token.special),
    ).map((sentence) => element("p", {}, sentence)),
    element(
      "p",
      { className: "pieces" },
      words.map((word) => element("span", { className: "word" }, word.map(piece))),
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

function piece(token) {
  const className = `piece${token.special ? " special" : ""}${token.piece === "[UNK]" ? " unknown" : ""} type${token.type}`;
  const continues = token.piece.startsWith("##") && !token.special;
  const text = continues ? [element("i", {}, "##"), token.piece.slice(2)] : token.piece;
  return element(
    "span",
    { className, title: token.text ?? "" },
    element("span", {}, text),
    element("small", {}, String(token.id)),
  );
}

/** Sentences about what tokenization did to the text. */
function inWords(tokens, words) {
  const shown = words.map((word) => {
    const known = word.every(({ piece }) => piece !== "[UNK]");
    // Accents and Hangul may be read as separate letters, which the page would show alike.
    const read = word
      .map(({ piece }, index) => (index ? piece.slice(2) : piece))
      .join("")
      .normalize("NFC");
    // Several pieces can cover the same character.
    const text = word
      .filter(({ start }, index) => !index || start >= word[index - 1].end)
      .map((token) => token.text)
      .join("");
    return { text, pieces: word.map(({ piece }) => piece).join(" "), read, known, parts: word.length };
  });
  const listed = (key, found, show) => {
    const names = [...new Set(found.map(show))];
    if (!names.length) return [];
    return [t(key, { words: names.slice(0, MOST_WORDS).join(", ") + (names.length > MOST_WORDS ? ", …" : "") })];
  };
  const last = new Map(tokens.filter(({ special }) => !special).map((token) => [token.input, token]));
  // A few characters at the end may be white space or deleted by normalization.
  const cut = [...last.values()].filter(({ end, length }) => length - end > 2);
  return [
    t("tokenCount", { words: words.length, tokens: tokens.length }),
    ...cut.map(({ end, length, input }) => t("notRead", { end, length, name: t(`field_${input}`) })),
    ...listed(
      "splitWords",
      shown.filter(({ parts }) => parts > 1),
      ({ text, pieces }) => `${text} → ${pieces}`,
    ),
    ...listed(
      "unknownWords",
      shown.filter(({ known }) => !known),
      ({ text }) => text,
    ),
    ...listed(
      "changedWords",
      shown.filter(({ known, text, read }) => known && text !== read),
      ({ text, read }) => `${text} → ${read}`,
    ),
  ];
}
