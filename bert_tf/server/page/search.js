/** Search: lines in the order of their scores for a question, and the words or pieces that make the scores. */

import { newest, predict } from "./api.js";
import { button, element, failed, hint } from "./dom.js";
import { t } from "./i18n.js";
import { MOST_TEXTS, bodyOf, cosine, linesOf, searchInputs, searchKind, settingsOf } from "./tasks.js";

const MOST_CHARACTERS = 40_000; // of a request with several texts: it takes seconds, even if a model reads all of them
const EXPLAINED = 3; // lines whose words are marked without being asked for
const LONGEST = 5_000; // characters of a line that are shown, and of one whose words are left out
const MOST_PARTS = 40; // of a line that are left out, one at a time: of longer lines, several words are a part
const LISTED_WORDS = 3; // with numbers
const LONGEST_PART = 40; // characters of these
const LISTED_PIECES = 10;
const SHOWN_LINES = 10;
const WORDS = new Intl.Segmenter(undefined, { granularity: "word" });

/**
 * The models that read the question and the lines: {question, lines}.
 *
 * A model with prompts is exported once for each: if another served model differs from this one in its prompt alone, it
 * reads the other side.
 */
export function sidesOf(model, models) {
  const same = ({ prompt_name, ...others }, card) =>
    JSON.stringify([others, card.tokenizer, { ...card.crc32, "saved_model.pb": "" }, card.signatures]);
  const isQuery = (one) => settingsOf(one).prompt_name === "query";
  const fits = (one) =>
    searchKind(one) === "vector" &&
    isQuery(one) !== isQuery(model) &&
    same(settingsOf(one), one.card) === same(settingsOf(model), model.card);
  const others = hasPrompts(model) ? models.filter(fits) : [];
  if (others.length !== 1) return { question: model, lines: model };
  return isQuery(model) ? { question: model, lines: others[0] } : { question: others[0], lines: model };
}

const hasPrompts = (model) => Object.values(settingsOf(model).prompts ?? {}).some(Boolean);

/** What a user must know about prompts; "" for a model without them. */
export function promptNote(model, models) {
  if (!hasPrompts(model)) return "";
  const { question, lines } = sidesOf(model, models);
  if (question !== lines) return t("twoPrompts", { question: question.name, lines: lines.name });
  const { prompts, prompt_name: name } = settingsOf(model);
  return name ? t("onePrompt", { prompt: prompts[name] }) : t("noPrompt", { names: Object.keys(prompts).join(", ") });
}

/** The requests of a search, each as [model, version, body]; "" is the newest version. */
export function searchRequests(models, model, version, values) {
  const { question, lines } = sidesOf(model, models);
  if (question === lines) return [[model, version, bodyOf(model, values)]];
  const { texts } = linesOf(values.lines);
  const asked = [[question, [values.question]], [lines, texts.slice(0, MOST_TEXTS)]];
  return asked.map(([one, text]) => [one, one === model ? version : "", { inputs: { text } }]);
}

/**
 * Ranks the lines of `values` ({question, lines}).
 *
 * progress: (done, all) => void, is told of the lines that have a score.
 *
 * Returns {kind, lines, repeated, explain}: the lines {text, score}, those of sparse vectors with `pieces`, and how
 * many were left out because they are there already. `explain(lines)` gives lines their `words`: parts of their texts
 * as {start, end, fall}, by how much the score falls without the part.
 */
export async function search(models, model, version, { question, lines }, signal, progress) {
  const kind = searchKind(model);
  const sides = sidesOf(model, models);
  const ask = async (one, inputs) =>
    answers[kind](await predict(one, one === model ? version : newest(one), { inputs }, signal));
  const asked = kind === "scores" ? null : (await ask(sides.question, { text: [question] }))[0];
  const score = async (texts) => {
    const inputs = kind === "scores" ? searchInputs(model, question, texts) : { text: texts };
    return (await ask(sides.lines, inputs)).map((found) => compared[kind](asked, found));
  };
  const { texts, repeated } = linesOf(lines);
  const scores = await inRequests(texts, score, progress);
  const ranked = texts.map((text, index) => ({ text, ...scores[index] })).sort((one, other) => other.score - one.score);

  async function explain(chosen) {
    const parts = chosen.map(({ text }) => partsOf(text));
    const shorter = chosen.flatMap(({ text }, at) => parts[at].map(({ start, end }) => without(text, start, end)));
    const found = await inRequests(shorter, score);
    chosen.forEach((line, at) => {
      line.words = parts[at].map((part) => ({ ...part, fall: line.score - found.shift().score }));
    });
  }
  return { kind, lines: ranked, repeated, explain };
}

// By what a model answers with: one value for each text, and how it is compared with that of the question.
const answers = {
  vector: ({ vector }) => vector,
  scores: ({ scores }) => scores[0],
  pieces: ({ pieces, weights, piece_count }) =>
    pieces.map((row, at) => new Map(row.slice(0, piece_count[at]).map((piece, index) => [piece, weights[at][index]]))),
};
const compared = {
  vector: (asked, found) => ({ score: cosine(asked, found) }),
  scores: (_, score) => ({ score }),
  pieces: (asked, found) => {
    const shared = [...found].filter(([piece]) => asked.has(piece));
    const pieces = shared.map(([piece, weight]) => ({ piece, product: weight * asked.get(piece) }));
    pieces.sort((one, other) => other.product - one.product);
    return { score: pieces.reduce((sum, { product }) => sum + product, 0), pieces };
  },
};

/** The scores of texts, of as many at a time as a server answers in a moment. */
async function inRequests(texts, score, progress = () => {}) {
  const scores = [];
  while (scores.length < texts.length) {
    const first = scores.length;
    let last = first,
      characters = 0;
    do characters += texts[last++].length;
    while (last < Math.min(texts.length, first + MOST_TEXTS) && characters + texts[last].length <= MOST_CHARACTERS);
    scores.push(...(await score(texts.slice(first, last))));
    progress(scores.length, texts.length);
  }
  return scores;
}

/** The words of a text as {start, end}; of a text with many, as many parts of several. */
function partsOf(text) {
  const words = [...WORDS.segment(text)].filter(({ isWordLike }) => isWordLike);
  const size = Math.ceil(words.length / MOST_PARTS);
  return Array.from({ length: Math.ceil(words.length / (size || 1)) }, (_, number) => {
    const last = words[Math.min((number + 1) * size, words.length) - 1];
    return { start: words[number * size].index, end: last.index + last.segment.length };
  });
}

/** A text without its part from start to end, nor with two spaces in its place. */
function without(text, start, end) {
  const before = text.slice(0, start);
  return before + (/(^|\s)$/.test(before) ? text.slice(end).trimStart() : text.slice(end));
}

/** The node of what `search` has found. */
export function rankingView(found) {
  const { kind, lines } = found;
  const nodes = new Map(lines.map((line) => [line, element("li")]));
  const note = element("div");
  const [high, low] = [Math.max(1, lines[0].score), Math.min(0, lines.at(-1).score)]; // of a bar, 1 for most cosines

  function draw(line) {
    const { text, score, pieces, words } = line;
    const isLong = text.length > LONGEST;
    const shown = marked(text.slice(0, LONGEST), words ?? [], found.scale);
    const below = pieces ? pieceList(pieces) : isLong ? hint(t("longLine")) : words ? wordList(text, words) : null;
    nodes.get(line).replaceChildren(
      element("p", { className: "line", dir: "auto" }, shown, isLong && " …"),
      element(
        "div",
        { className: "score" },
        element("span", { className: "number" }, score.toFixed(3)),
        element("span", { className: "bar", "aria-hidden": "true", "--share": (score - low) / (high - low) }),
      ),
      below ?? asking(line),
    );
  }
  const asking = (line) => {
    const onclick = ({ target }) => {
      target.disabled = true;
      explain([line]);
    };
    return button(t("whichWords"), onclick, { className: "quiet" });
  };
  async function explain(chosen) {
    note.replaceChildren();
    try {
      await found.explain(chosen);
      found.scale ||= Math.max(0, ...chosen.flatMap(({ words }) => words.map(({ fall }) => fall)));
    } catch (error) {
      if (error.name !== "AbortError") note.replaceChildren(failed(error));
    }
    chosen.forEach(draw);
  }
  lines.forEach(draw);
  const best = lines.slice(0, EXPLAINED).filter(({ text, words }) => text.length <= LONGEST && !words);
  if (kind !== "pieces" && best.length) explain(best);
  const list = (some) =>
    element(
      "ol",
      { className: "ranking" },
      some.map((line) => nodes.get(line)),
    );
  const [first, rest] = [lines.slice(0, SHOWN_LINES), lines.slice(SHOWN_LINES)];
  const more = element("summary", {}, t("allLines", { count: lines.length }));
  const meaning = [t(`score_${kind}`), kind !== "pieces" && t("marks")];
  const repeated = found.repeated > 0 && t("repeated", { count: found.repeated });
  return [
    hint([...meaning, repeated].filter(Boolean).join(" ")),
    note,
    list(first),
    rest.length > 0 && element("details", {}, more, list(rest)),
  ];
}

/** A text whose parts are the darker, the more its score falls without them. */
function marked(text, words, scale) {
  const nodes = [];
  let position = 0;
  for (const { start, end, fall } of words) {
    if (fall <= 0) continue;
    const properties = { className: "weighed", "--share": Math.min(1, fall / scale), title: signed(-fall) };
    nodes.push(text.slice(position, start), element("mark", properties, text.slice(start, end)));
    position = end;
  }
  return [...nodes, text.slice(position)];
}

const signed = (number) => `${number < 0 ? "−" : "+"}${Math.abs(number).toFixed(3)}`;

const shortened = (text) => (text.length > LONGEST_PART ? `${text.slice(0, LONGEST_PART)}…` : text);

/** The words without which the score falls most, with numbers. */
function wordList(text, words) {
  const falling = words.filter(({ fall }) => fall > 0).sort((one, other) => other.fall - one.fall);
  if (!falling.length) return hint(t("noWord"));
  const listed = falling.slice(0, LISTED_WORDS).filter(({ fall }) => fall > falling[0].fall / 10);
  const named = ({ start, end, fall }) => `${shortened(text.slice(start, end))} ${signed(-fall)}`;
  return element(
    "p",
    { className: "hint without" },
    element("span", {}, t("without")),
    listed.map((part) => element("span", {}, named(part))),
  );
}

/** The pieces that a line shares with the question, with their products. */
function pieceList(pieces) {
  if (!pieces.length) return hint(t("noPiece"));
  const rest = pieces.slice(LISTED_PIECES).reduce((sum, { product }) => sum + product, 0);
  const shown = ({ piece, product }) =>
    element("span", { className: "piece" }, element("span", {}, piece), element("small", {}, product.toFixed(3)));
  const others = rest > 0 && hint(t("otherPieces", { count: pieces.length - LISTED_PIECES, sum: rest.toFixed(3) }));
  return element("div", { className: "pieces" }, pieces.slice(0, LISTED_PIECES).map(shown), others);
}
