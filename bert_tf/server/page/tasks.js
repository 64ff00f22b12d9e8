/** What each kind of model takes, and how its answers are shown: by the inputs and outputs that its card names. */

import { bars, breakable, characters, element, hint, percent, pretty, table } from "./dom.js";
import { t } from "./i18n.js";
import { shown, specialTokens } from "./tokens.js";

// In the order of the token numbers in the signature `attention` (texts), which is also the order of the fields.
const INPUTS = ["question", "context", "text", "second_text", "choices"];
const CHOICE_INPUTS = ["context", "choices", "question"];
const MOST_ROWS = 500; // of a table; a text of 10,000 characters has 2,000 words
export const MOST_TEXTS = 64; // of a request to search

const signatureOf = (model) => model.card?.signatures?.serving_default ?? {};
export const settingsOf = (model) => model.card?.task?.settings ?? {};

/** Names of a model's texts, in the order in which its task reads them; [] if it has no card, or reads no texts. */
export function inputsOf(model) {
  const inputs = signatureOf(model).inputs ?? {};
  const given = Object.keys(inputs);
  if (given.some((name) => inputs[name].dtype !== "string")) return [];
  const known = given.includes("choices") ? CHOICE_INPUTS : INPUTS;
  return [...known.filter((name) => given.includes(name)), ...given.filter((name) => !known.includes(name))];
}

/** Whether a model answers with an output of this name. */
export const hasOutput = (model, name) => name in (signatureOf(model).outputs ?? {});

/** Whether there is a form for the model's texts; otherwise one for JSON. */
export const hasForm = (model) => inputsOf(model).length > 0;

/** Whether a model can be exported with its attention. */
export const canAttend = (model) => hasForm(model) && !hasOutput(model, "vector") && !hasOutput(model, "pieces");

/** The output by which a model ranks lines for a question: "vector" (of sentences), "pieces", "scores", or null. */
export function searchKind(model) {
  const has = (name) => hasOutput(model, name);
  if (has("vector") && !has("word_count") && !has("token_count")) return "vector";
  if (has("pieces") && has("weights")) return "pieces";
  return has("scores") && inputsOf(model).join() === "queries,texts" ? "scores" : null;
}

/** Whether values are those of a search, {question, lines}. */
export const isSearch = (values) => values.lines !== undefined;

/** The texts of a search without empty lines, each once, and how many were left out because they are repeated. */
export function linesOf(lines) {
  const all = lines.split(/\r\n|\r|\n/).map((line) => line.trim());
  const given = all.filter(Boolean);
  const texts = [...new Set(given)];
  return { texts, repeated: given.length - texts.length };
}

/** The inputs of a request to compare texts with a question. */
export const searchInputs = (model, question, texts) =>
  searchKind(model) === "scores" ? { queries: [question], texts: [texts] } : { text: [question, ...texts] };

/** The kind of model in a few words. */
export function kindOf(model) {
  const name = hasForm(model) ? model.card.task.name : "unknown";
  const key = `task_${name}`;
  const text = t(key, specialTokens(model));
  return text === key ? name.replaceAll("_", " ") : text;
}

/** The name of an input as a person reads it. */
export function fieldName(name) {
  const key = `field_${name}`;
  const text = t(key);
  return text === key ? name.replaceAll("_", " ") : text;
}

/** Whether the user can give several values for an input. */
export const isList = (model, name) =>
  hasOutput(model, "vector") || signatureOf(model).inputs?.[name].shape.length > 1;

/** The body of a request from the values of the fields; of a search, with the first lines. */
export function bodyOf(model, values) {
  if (!hasForm(model)) return JSON.parse(values.json);
  if (isSearch(values)) {
    return { inputs: searchInputs(model, values.question, linesOf(values.lines).texts.slice(0, MOST_TEXTS)) };
  }
  const rows = (value) => (hasOutput(model, "vector") ? value : [value]);
  return { inputs: Object.fromEntries(Object.entries(values).map(([name, value]) => [name, rows(value)])) };
}

/**
 * The nodes that show an answer.
 *
 * outputs: of `serving_default`, by name.
 * values: of the fields.
 * change: (values, asks) => void, fills the fields with others and asks again if `asks`.
 */
export function answerOf(model, outputs, values, change) {
  const drawn = VIEWS.filter(({ needs }) => needs.every((name) => name in outputs));
  if (!hasForm(model) || !drawn.length) return [element("pre", { tabIndex: 0 }, pretty(outputs).slice(0, 100_000))];
  const mask = specialTokens(model).mask;
  return drawn.map(({ answer }) => answer(outputs, values, settingsOf(model), mask, change)).flat();
}

// Parts of answers: each is shown if the outputs that it needs are there.
const VIEWS = [
  {
    needs: ["label", "labels"],
    answer({ label, labels, probabilities }) {
      const rows = ranked(labels[0], probabilities[0]).map(([name, share], index) => [name, share, index ? "" : "best"]);
      return [verdict(label[0]), bars(rows, { more: t("allLabels", { count: rows.length }) })];
    },
  },
  {
    needs: ["given"],
    answer({ given, labels, probabilities }, values, settings) {
      const chosen = new Set(labels[0].filter((_, index) => given[0][index]));
      const rows = ranked(labels[0], probabilities[0]).map(([name, share]) => [
        chosen.has(name) ? `✓ ${name}` : name,
        share,
        chosen.has(name) ? "best" : "",
      ]);
      return [
        verdict([...chosen].join(", ") || t("noLabel")),
        bars(rows, { more: t("allLabels", { count: rows.length }) }),
        hint(t("threshold", { threshold: settings.threshold })),
      ];
    },
  },
  {
    needs: ["value"],
    answer({ value }, values, { scale }) {
      const text = value[0].toFixed(3);
      if (!scale) return [verdict(text)];
      const share = (value[0] - scale[0]) / (scale[1] - scale[0]);
      return [
        verdict(text, t("scale", { low: scale[0], high: scale[1] })),
        bars([[t(values.second_text === undefined ? "value" : "similarity"), share, "best"]], { show: () => text }),
      ];
    },
  },
  {
    needs: ["intent"],
    answer(outputs, values, settings) {
      const rows = ranked(outputs.intents[0], outputs.intent_probabilities[0]);
      return [
        verdict(outputs.intent[0]),
        bars(
          rows.map(([name, share], index) => [name, share, index ? "" : "best"]),
          { more: t("allLabels", { count: rows.length }) },
        ),
      ];
    },
  },
  {
    needs: ["tag", "word_count"],
    answer(outputs, { text }, { labels }) {
      const items = (count, ...names) =>
        Array.from({ length: outputs[count][0] }, (_, index) => names.map((name) => outputs[name][0][index]));
      const words = items("word_count", "word_start", "word_end", "tag", "word_score", "word");
      const entities = "entity" in outputs ? items("entity_count", "start", "end", "label", "score", "entity") : null;
      const kinds = kindsOf(labels);
      const spans = (entities ?? words).map(([start, end, label, score]) => ({
        start,
        end,
        node: (part) =>
          element(
            "mark",
            { className: "entity", title: percent(score), "--hue": hue(kinds.indexOf(label)) },
            part,
            element("small", {}, label),
          ),
      }));
      const row = ([start, end, label, score, word]) => [word, label, percent(score), `${start}–${end}`];
      const listed = (rows) => [
        table([t("text"), t("label"), t("probability"), t("characters")], rows.slice(0, MOST_ROWS).map(row)),
        rows.length > MOST_ROWS && hint(t("cutRows", { shown: MOST_ROWS, all: rows.length })),
      ];
      return [
        element("p", { className: "text" }, marked(text, spans)),
        entities?.length === 0 && element("p", {}, t("noEntity")),
        entities?.length > 0 && listed(entities),
        element("details", {}, element("summary", {}, t("eachWord", { count: words.length })), listed(words)),
      ];
    },
  },
  {
    needs: ["nbest_answers"],
    answer(outputs, { context }, { null_threshold }) {
      const count = outputs.nbest_count[0];
      const best = Array.from({ length: count }, (_, index) => ({
        text: outputs.nbest_answers[0][index],
        start: outputs.nbest_starts[0][index],
        end: outputs.nbest_ends[0][index],
        share: outputs.nbest_probabilities[0][index],
      })).filter(({ text }) => text);
      const found = outputs.answer[0];
      const box = element("p", { className: "text context", tabIndex: 0 });
      const mark = (chosen) => {
        box.replaceChildren(...overlapping(context, best, chosen));
        const first = box.querySelector(".answer");
        if (first) box.scrollTop = first.offsetTop - box.clientHeight / 3;
      };
      requestAnimationFrame(() => mark(found ? 0 : -1)); // once it has a height
      const odds = outputs.null_odds?.[0];
      return [
        verdict(found || t("noAnswer"), found && percent(outputs.probability[0])),
        odds !== undefined && hint(t("nullOdds", { odds: odds.toPrecision(3), threshold: null_threshold })),
        box,
        best.length > 0 && element("h3", {}, t("runnersUp")),
        bars(
          best.map(({ text, share }, index) => [text, share, found && !index ? "best" : ""]),
          {
            pick: mark,
            more: t("allAnswers", { count: best.length }),
          },
        ),
      ];
    },
  },
  {
    needs: ["choice"],
    answer({ choice, probabilities }, { choices }) {
      const order = choices.map((text, index) => [text, probabilities[0][index] ?? 0, index === choice[0] ? "best" : ""]);
      return [
        verdict(choices[choice[0]]),
        bars(
          order.sort((one, other) => other[1] - one[1]),
          { more: t("allChoices") },
        ),
      ];
    },
  },
  {
    needs: ["mask_count"],
    answer(outputs, { text }, settings, mask, change) {
      const count = outputs.mask_count[0];
      if (!count) return [element("p", {}, t("noMask", { mask }))];
      const groups = Array.from({ length: count }, (_, number) => {
        const tokens = fillingsOf(outputs, 0, number);
        const rows = tokens.map((token, index) => [shown(token), token.probability, index ? "" : "best"]);
        // Without another mask there is nothing to ask, and the other words can still be tried.
        const pick = (index) => change({ text: filled(text, mask, number, tokens[index]) }, count > 1);
        return [count > 1 && element("h3", {}, `${mask} ${number + 1}`), bars(rows, { pick })];
      });
      return [hint(t("clickFilling")), groups];
    },
  },
  {
    needs: ["vector"],
    answer(outputs, { text }) {
      const { vector } = outputs;
      const count = outputs.word_count ?? outputs.token_count;
      if (!count) {
        const names = text.map((_, index) => String(index + 1));
        const starts = text.map((one, index) => `${index + 1}  ${characters(one).slice(0, 30).join("")}`);
        const pair = text.length === 2 && [verdict(cosine(vector[0], vector[1]).toFixed(3), t("cosine"))];
        return [
          pair,
          text.length > 2 && [heatmap(vector, vector, starts, names), hint(t("cosine"))],
          text.length < 2 && element("p", {}, t("twoTexts")),
          hint(t("size", { size: vector[0].length })),
        ];
      }
      const units = (row) => [vector[row].slice(0, count[row]), outputs.text[row].slice(0, count[row])];
      const [first, firstNames] = units(0);
      const [second, secondNames] = units(text.length > 1 ? 1 : 0);
      const limit = 40;
      return [
        heatmap(first.slice(0, limit), second.slice(0, limit), firstNames, secondNames),
        hint(t("cosine"), " ", t("size", { size: first[0]?.length ?? 0 })),
        Math.max(first.length, second.length) > limit && hint(t("cutUnits", { limit })),
      ];
    },
  },
];

/** Labels without the prefixes of entities (B-, I-) and without O. */
export const kindsOf = (labels) => {
  const kinds = labels.map((name) => name.replace(/^[A-Z]-/, ""));
  return [...new Set(kinds)].filter((name) => name !== "O");
};

const ranked = (names, shares) =>
  names.map((name, index) => [name, shares[index]]).sort((one, other) => other[1] - one[1]);

const verdict = (text, note) =>
  element(
    "p",
    { className: "verdict" },
    element("strong", {}, breakable(text)),
    note && element("span", { className: "hint" }, ` ${note}`),
  );

/** Neighbouring numbers get hues that are far apart. */
export const hue = (number) => Math.round((number * 137.5 + 210) % 360);

/** A text whose spans ({start, end, node}, in order, apart) are replaced by nodes. */
function marked(text, spans) {
  const all = characters(text);
  const parts = [];
  let position = 0;
  for (const { start, end, node } of spans) {
    parts.push(all.slice(position, start).join(""), node(all.slice(start, end).join("")));
    position = end;
  }
  return [...parts, all.slice(position).join("")];
}

/** A text whose spans may overlap: the chosen one stands out, the others show through. */
function overlapping(text, spans, chosen) {
  const all = characters(text);
  const edges = [...new Set([0, all.length, ...spans.flatMap(({ start, end }) => [start, end])])].sort((a, b) => a - b);
  return edges.slice(1).map((end, index) => {
    const part = all.slice(edges[index], end).join("");
    const over = spans.map((span, number) => (span.start <= edges[index] && end <= span.end ? number : -1));
    if (chosen >= 0 && over.includes(chosen)) return element("mark", { className: "answer" }, part);
    return over.some((number) => number >= 0)
      ? element("mark", { className: "other" }, part)
      : document.createTextNode(part);
  });
}

/** The tokens that the model proposes for a mask, {piece, continues, probability}, of a row of its outputs. */
const fillingsOf = ({ tokens, continues, probabilities }, row, number) =>
  tokens[row][number].map((piece, index) => ({
    piece,
    continues: continues[row][number][index],
    probability: probabilities[row][number][index],
  }));

/** The text with its mask of this number replaced by a token. */
function filled(text, mask, number, { piece, continues }) {
  const parts = text.split(mask);
  const before = parts.slice(0, number + 1).join(mask);
  const after = parts.slice(number + 1).join(mask);
  return (continues ? before.trimEnd() : before) + piece + after;
}

export function cosine(one, other) {
  let product = 0,
    first = 0,
    second = 0;
  for (let index = 0; index < one.length; index++) {
    product += one[index] * other[index];
    first += one[index] ** 2;
    second += other[index] ** 2;
  }
  return product / Math.sqrt(first * second || 1);
}

/** A table of the cosines of all pairs of vectors. */
function heatmap(rows, columns, rowNames, columnNames) {
  const cell = (value) => element("td", { className: "heat", "--share": Math.max(0, value) }, value.toFixed(2));
  return element(
    "div",
    { className: "scroll", tabIndex: 0 },
    element(
      "table",
      { className: "cosines" },
      element(
        "tr",
        {},
        element("td"),
        columns.map((_, index) => element("th", { scope: "col" }, columnNames[index])),
      ),
      rows.map((one, index) =>
        element(
          "tr",
          {},
          element("th", { scope: "row" }, rowNames[index]),
          columns.map((other) => cell(cosine(one, other))),
        ),
      ),
    ),
  );
}

/**
 * What a model answers to token ids, as [name, before, after] with texts or shares; before is null if there is none.
 *
 * outputs: of the signature `tokens`, with the rows before and after.
 * sequence: as `sequencesOf` returns (tokens.js); index: the number of the token that is hidden in the second row.
 */
export function compare(model, outputs, sequence, index, values) {
  const both = (name, value) => [name, value(0), value(1)];
  const shares = (names, probabilities) =>
    names
      .map((name, number) => both(name, (row) => probabilities[row][number]))
      .sort((one, other) => other[1] - one[1])
      .slice(0, 10);
  if (outputs.intents) return shares(outputs.intents[0], outputs.intent_probabilities);
  if (outputs.labels) return shares(outputs.labels[0], outputs.probabilities);
  if (outputs.value) return [both(t("value"), (row) => outputs.value[row].toFixed(3))];
  if (outputs.choice)
    return values.choices.map((text, number) => both(text, (row) => outputs.probabilities[row][number] ?? 0));
  if (outputs.start_logits)
    return [both(t("answer"), (row) => bestSpan(outputs, row, sequence, values.context, settingsOf(model)))];
  if (outputs.tag)
    return sequence.tokens
      .map((token, number) => ({ token, number, change: taggingChange(outputs, number) }))
      .filter(({ token, number, change }) => !token.special && number !== index && change > 0.005)
      .sort((one, other) => other.change - one.change)
      .slice(0, 10)
      .map(({ token, number }) =>
        both(shown(token), (row) => `${outputs.tag[row][number]} ${percent(outputs.score[row][number])}`),
      );
  if (outputs.tokens) {
    const number = sequence.tokens.slice(0, index).filter(({ id }) => id === model.card.mask_id).length;
    return fillingsOf(outputs, 1, number).map((token) => [shown(token), null, token.probability]);
  }
  return Object.entries(outputs).map(([name, rows]) => both(name, (row) => pretty(rows[row]).slice(0, 100)));
}

function taggingChange({ tag, score }, number) {
  return Math.abs(score[0][number] - score[1][number]) + (tag[0][number] === tag[1][number] ? 0 : 1);
}

/** The answer of the highest sum of logits, as text. */
function bestSpan(
  { start_logits, end_logits },
  row,
  { tokens },
  context,
  { max_answer_length, unanswerable, null_threshold },
) {
  let best = { score: -Infinity };
  tokens.forEach((first, start) => {
    for (let end = start; end < Math.min(tokens.length, start + max_answer_length); end++) {
      const score = start_logits[row][start] + end_logits[row][end];
      if (first.input === "context" && tokens[end].input === "context" && score > best.score)
        best = { score, start, end };
    }
  });
  const odds = start_logits[row][0] + end_logits[row][0] - best.score;
  if (best.score === -Infinity || (unanswerable && odds > null_threshold)) return t("noAnswer");
  return characters(context).slice(tokens[best.start].start, tokens[best.end].end).join("");
}
