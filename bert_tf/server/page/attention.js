/** Attention: all heads as pictures, one layer as lines between tokens, and what masking a token changes. */

import { bars, breakable, button, element, failed, hint, percent, select } from "./dom.js";
import { t } from "./i18n.js";
import { shown } from "./tokens.js";

const MOST_TOKENS = 96; // drawn on each side
const LEVELS = 12; // of darkness: each is one path, however many lines it has
const ROW = 26; // height of a token in pixels, as in style.css

/** What the two views show; `pinned` is {side, at} or null. */
export const newView = () => ({ sequence: 0, layer: 0, heads: [], pair: "all", hideSpecial: false, pinned: null });

/** Numbers of the tokens on both sides: those that attend, and those that are attended to. */
function sides({ tokens }, { pair, hideSpecial }) {
  const of = (segment) =>
    tokens.flatMap((token, index) =>
      (hideSpecial && token.special) || (segment && token.segment !== Number(segment)) ? [] : [index],
    );
  return (pair === "all" ? ["", ""] : [...pair]).map((type) => of(type).slice(0, MOST_TOKENS));
}

/**
 * The mean attention of some heads: Float32Array [rows, columns].
 *
 * The attention of a long text is megabytes in base64, which any part can be decoded of: four characters are three bytes.
 */
function weights({ tokens, heads, b64 }, layer, chosen, rows, columns) {
  const length = tokens.length;
  const made = new Float32Array(rows.length * columns.length);
  if (!made.length) return made;
  const skipped = rows[0] * length;
  const size = (rows.at(-1) + 1) * length - skipped;
  for (const head of chosen) {
    const first = (layer * heads + head) * length * length + skipped;
    const binary = atob(b64.slice(Math.floor(first / 3) * 4, Math.ceil((first + size) / 3) * 4));
    rows.forEach((row, at) => {
      const begin = (first % 3) + row * length - skipped;
      columns.forEach(
        (column, to) => (made[at * columns.length + to] += binary.charCodeAt(begin + column) / 255 / chosen.length),
      );
    });
  }
  return made;
}

function controls(sequences, view, changed, { cls, sep }) {
  const sequence = sequences[view.sequence];
  const option = (name, options, label) =>
    element(
      "label",
      {},
      `${label} `,
      select(options, String(view[name]), (value) => {
        Object.assign(view, { [name]: name === "pair" ? value : Number(value), pinned: null });
        changed();
      }),
    );
  const numbers = (count) => Array.from({ length: count }, (_, index) => [String(index), String(index + 1)]);
  const pairs = ["all", "01", "10"].map((name) => [name, t(`pair_${name}`)]);
  const hide = element("input", { type: "checkbox", checked: view.hideSpecial });
  hide.onchange = () => {
    Object.assign(view, { hideSpecial: hide.checked, pinned: null });
    changed();
  };
  return [
    sequences.length > 1 && option("sequence", numbers(sequences.length), t("sequence")),
    sequence.tokens.some(({ segment }) => segment === 1) && option("pair", pairs, t("from")),
    element("label", {}, hide, " ", t("hideSpecial", { cls, sep })),
  ];
}

function notes(sequence, view) {
  const all = sequence.tokens.length;
  const cut = all > MOST_TOKENS && Math.max(...sides(sequence, view).map((side) => side.length)) === MOST_TOKENS;
  return [cut && hint(t("cutTokens", { shown: MOST_TOKENS, all })), hint(t("attentionWarning"))];
}

/**
 * All layers and heads as pictures, rows of which are tokens; `open(layer, head)` shows one as lines.
 *
 * names: of the special tokens.
 */
export function modelView(sequences, names, view, changed, open) {
  const sequence = sequences[view.sequence];
  const [rows, columns] = sides(sequence, view);
  const [red, green, blue] = getComputedStyle(document.documentElement)
    .getPropertyValue("--accent-rgb")
    .split(" ")
    .map(Number);
  const start = view.layer * sequence.heads + (view.heads[0] ?? 0);
  const pictures = Array.from({ length: sequence.layers * sequence.heads }, (_, number) => {
    const [layer, head] = [Math.floor(number / sequence.heads), number % sequence.heads];
    const canvas = element("canvas", { width: columns.length || 1, height: rows.length || 1 });
    const label = t("cell", { layer: layer + 1, head: head + 1 });
    const tabIndex = number === start ? 0 : -1;
    return button(canvas, () => open(layer, head), { title: label, "aria-label": label, tabIndex });
  });
  const draw = (number) => {
    const values = weights(sequence, Math.floor(number / sequence.heads), [number % sequence.heads], rows, columns);
    const image = new ImageData(columns.length || 1, rows.length || 1);
    values.forEach((value, index) => image.data.set([red, green, blue, 255 * Math.sqrt(value)], 4 * index));
    pictures[number].firstChild.getContext("2d").putImageData(image, 0, 0);
  };
  // A layer in each frame: the page stays responsive while a long text is drawn.
  const drawFrom = (first) => {
    for (let number = first; number < first + sequence.heads; number++) draw(number);
    const next = first + sequence.heads;
    if (next < pictures.length) requestAnimationFrame(() => grid.isConnected && drawFrom(next));
  };
  requestAnimationFrame(() => drawFrom(0));
  const number = (index) => element("span", { "aria-hidden": "true" }, index < 0 ? "" : String(index + 1));
  const cells = Array.from({ length: sequence.heads + 1 }, (_, head) => number(head - 1));
  for (let layer = 0; layer < sequence.layers; layer++) {
    cells.push(number(layer), ...pictures.slice(layer * sequence.heads, (layer + 1) * sequence.heads));
  }
  const grid = element(
    "div",
    { className: "pictures", role: "group", "aria-label": t("modelKeys"), "--columns": sequence.heads },
    cells,
  );
  grid.onkeydown = (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -sequence.heads, ArrowDown: sequence.heads }[event.key];
    const from = pictures.indexOf(document.activeElement);
    const next = pictures[from + step];
    if (!next) return;
    event.preventDefault();
    pictures[from].tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  };
  return [
    element("div", { className: "row" }, controls(sequences, view, changed, names)),
    grid,
    hint(t("modelKeys")),
    notes(sequence, view),
  ];
}

/**
 * One layer as lines from each token to those that it attends to.
 *
 * names: of the special tokens.
 * mask: (sequence number, token number) => Promise of [[name, before, after], ...], or null if the model cannot tell.
 */
export function headView(sequences, names, view, changed, mask) {
  const sequence = sequences[view.sequence];
  view.layer = Math.min(view.layer, sequence.layers - 1);
  view.heads = view.heads.filter((head) => head < sequence.heads);
  const all = Array.from({ length: sequence.heads }, (_, head) => head);
  const chosen = () => (view.heads.length ? view.heads : all);
  const [rows, columns] = sides(sequence, view);
  let values, pointed;

  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const height = ROW * Math.max(rows.length, columns.length);
  svg.setAttribute("viewBox", `0 0 100 ${height}`);
  svg.style.height = `${height}px`;
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("aria-hidden", "true");
  const strongest = element("span", { className: "hint" });
  const pointer = element("div", { className: "pointed" });
  const effect = element("div", { "aria-live": "polite" });

  const layers = Array.from({ length: sequence.layers }, (_, index) => [String(index), String(index + 1)]);
  const chooseLayer = (value) => {
    view.layer = Number(value);
    draw();
  };
  const layerSelect = select(layers, String(view.layer), chooseLayer, t("layer"));
  const headButtons = [null, ...all].map((head) => {
    const name = head === null ? t("allHeads") : String(head + 1);
    const choose = ({ ctrlKey, metaKey, shiftKey }) => {
      const kept = ctrlKey || metaKey || shiftKey ? view.heads : [];
      const others = kept.filter((other) => other !== head);
      view.heads = head === null ? [] : others.length < kept.length ? others : [...others, head];
      draw();
    };
    return button(name, choose, { className: "chip", "aria-label": head === null ? name : `${t("head")} ${name}` });
  });

  const side = (numbers, name) => {
    const buttons = numbers.map((number, at) => {
      const here = () => point({ side: name, at });
      const pin = () => {
        const same = view.pinned?.side === name && view.pinned.at === at;
        view.pinned = same ? null : { side: name, at };
        point(view.pinned);
      };
      const token = sequence.tokens[number];
      const className = token.special ? "special" : "";
      return button(shown(token), pin, { className, onmouseenter: here, onfocus: here });
    });
    return element("div", { className: `side ${name}`, onmouseleave: () => point(view.pinned) }, buttons);
  };
  const [left, right] = [side(rows, "left"), side(columns, "right")];

  const weight = (row, column) => values[row * columns.length + column];
  const isShown = (row, column) => !pointed || pointed.at === (pointed.side === "left" ? row : column);

  function draw() {
    values = weights(sequence, view.layer, chosen(), rows, columns);
    layerSelect.value = String(view.layer);
    headButtons.forEach((button, index) => {
      button.setAttribute("aria-pressed", String(index ? view.heads.includes(index - 1) : !view.heads.length));
    });
    point(pointed ?? view.pinned);
  }

  function point(token) {
    pointed = token;
    let most = 0;
    const lines = [];
    rows.forEach((_, row) =>
      columns.forEach((_, column) => {
        if (!isShown(row, column)) return;
        const value = weight(row, column);
        most = Math.max(most, value);
        if (value > 0.004) lines.push([value, row, column]); // less than one level of 255 of the picture
      }),
    );
    const paths = Array.from({ length: LEVELS }, () => []);
    for (const [value, row, column] of lines) {
      const [from, to] = [(row + 0.5) * ROW, (column + 0.5) * ROW];
      const level = Math.ceil((LEVELS * value) / most) - 1;
      if (level || pointed) paths[level].push(`M0 ${from}C45 ${from} 55 ${to} 100 ${to}`);
    }
    svg.replaceChildren(
      ...paths.map((path, level) => {
        const line = document.createElementNS("http://www.w3.org/2000/svg", "path");
        line.setAttribute("d", path.join(""));
        line.style.setProperty("stroke-opacity", ((level + 1) / LEVELS) ** 1.4);
        return line;
      }),
    );
    strongest.textContent = t("strongest", { weight: most.toFixed(2) });
    const shade = (buttons, share, isThis) =>
      Array.from(buttons.children).forEach((button, at) => {
        button.style.setProperty("--share", share(at));
        button.classList.toggle("this", isThis(at));
      });
    const here = (name) => (at) => pointed?.side === name && pointed.at === at;
    shade(left, (at) => (pointed?.side === "right" ? weight(at, pointed.at) : 0), here("left"));
    shade(right, (at) => (pointed?.side === "left" ? weight(pointed.at, at) : 0), here("right"));
    describe();
  }

  function describe() {
    if (!pointed) return pointer.replaceChildren(hint(t("pointAt")));
    const [own, others] = pointed.side === "left" ? [rows, columns] : [columns, rows];
    const number = own[pointed.at];
    const token = quoted(sequence.tokens[number]);
    const shares = others.map((other, at) => [
      shown(sequence.tokens[other]),
      pointed.side === "left" ? weight(pointed.at, at) : weight(at, pointed.at),
    ]);
    const best = shares.sort((one, other) => other[1] - one[1]).slice(0, 5);
    const title = t(pointed.side === "left" ? "attendsTo" : "attendedBy", { token });
    const canHide = mask && !sequence.tokens[number].special;
    const ask = canHide ? [button(t("maskIt", { token }), () => hideToken(number))] : [];
    pointer.replaceChildren(element("h3", {}, title), bars(best), ...ask);
  }

  async function hideToken(number) {
    effect.textContent = t("waiting");
    try {
      const rows = await mask(view.sequence, number);
      effect.replaceChildren(...changes(rows, quoted(sequence.tokens[number]), names.mask, number));
    } catch (error) {
      effect.replaceChildren(failed(error));
    }
  }

  const panel = element(
    "div",
    { className: "heads" },
    element(
      "div",
      { className: "row" },
      element("label", {}, `${t("layer")} `, layerSelect),
      controls(sequences, view, changed, names),
    ),
    element(
      "div",
      { className: "row", role: "group", "aria-label": t("heads") },
      element("span", {}, t("heads")),
      headButtons,
    ),
    element(
      "div",
      { className: "lines" },
      element("div", { className: "drawing" }, left, svg, right),
      element("div", { className: "beside" }, pointer, effect),
    ),
    hint(strongest, " ", t("keys")),
    notes(sequence, view),
  );
  panel.onkeydown = (event) => {
    if (event.target.matches("select, input") || event.ctrlKey || event.metaKey || event.altKey) return;
    const step = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const moved = (value, count) => (value + step + count) % count;
    if (event.key === "ArrowLeft" || event.key === "ArrowRight") {
      view.heads = [view.heads.length ? moved(view.heads[0], sequence.heads) : step > 0 ? 0 : sequence.heads - 1];
    } else view.layer = moved(view.layer, sequence.layers);
    draw();
  };
  draw();
  return panel;
}

const quoted = (token) => `“${shown(token)}”`;

/** The answers before and after a token was hidden. */
function changes(rows, token, mask, position) {
  const cell = (value) => {
    if (typeof value !== "number") return element("td", {}, breakable(value ?? "–"));
    return element("td", { className: "share", "--share": value }, percent(value));
  };
  const heading = ["", t("before"), t("after")].map((name) => element("th", { scope: "col" }, name));
  const body = rows.map(([name, ...both]) =>
    element("tr", {}, element("th", { scope: "row" }, breakable(name)), both.map(cell)),
  );
  return [
    element("h3", {}, t("masked", { token, mask, position })),
    rows.length
      ? element("table", { className: "changes" }, element("tr", {}, heading), body)
      : element("p", {}, t("nothingChanges")),
    hint(t("firstWindow")),
  ];
}
