/** Elements, and parts of texts. Whatever comes from a user or a model becomes a text node, never HTML. */

import { sentence } from "./i18n.js";

/**
 * Creates an element.
 *
 * properties: of the element, attributes, or custom properties of its style ("--share": 0.5).
 * children: nodes and texts, in any nesting; null and false are left out.
 */
export function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("--")) made.style.setProperty(name, value);
    else if (name in made) made[name] = value;
    else made.setAttribute(name, value);
  }
  made.append(...children.flat(9).filter((child) => child !== null && child !== undefined && child !== false));
  return made;
}

// Names such as SearchCreativeWork, object_location-type or atis_flight#atis_airfare.
const PARTS = /(?<=[_/:#+&]|\p{L}\.)(?=[\p{L}\p{N}])|(?<=\p{Ll})(?=\p{Lu})|(?<=\p{Lu})(?=\p{Lu}\p{Ll})/u;

/** A name as nodes, which a narrow page may break between its parts. */
export const breakable = (name) =>
  String(name)
    .split(PARTS)
    .flatMap((part, index) => (index ? [element("wbr"), part] : [part]));

/** A button; its other properties are as for `element`. */
export const button = (text, onclick, properties = {}) =>
  element("button", { type: "button", onclick, ...properties }, text);

export const hint = (...children) => element("p", { className: "hint" }, children);

/** The sentence of an error. */
export const failed = (error) => element("p", { className: "error" }, sentence(error));

export const byId = (id) => document.getElementById(id);

export const percent = (share) => `${(100 * share).toFixed(1)} %`;

/** JSON in lines, with numbers side by side. */
export const pretty = (value) => JSON.stringify(value, null, 1).replace(/\n\s*(?=[-\d\]])/g, " ");

/** A list of [name, share from 0 to 1, optional class name], each with a bar; `pick` makes its rows buttons. */
export function bars(rows, { show = percent, pick = null, limit = 10, more = "" } = {}) {
  const row = ([name, share, className = ""], index) => {
    const cells = [
      element("span", { className: "name" }, breakable(name)),
      element("span", { className: "bar", "aria-hidden": "true", "--share": Math.max(0, Math.min(1, share)) }),
      element("span", { className: "number" }, show(share)),
    ];
    const inner = pick ? button(cells, () => pick(index)) : cells;
    return element("li", { className }, inner);
  };
  const list = (from, to) =>
    element(
      "ol",
      { className: "bars" },
      rows.slice(from, to).map((one, at) => row(one, from + at)),
    );
  if (rows.length <= limit) return list(0, limit);
  return [list(0, limit), element("details", {}, element("summary", {}, more), list(limit))];
}

/** A table of texts: the names of its columns, and its rows. */
export function table(names, rows) {
  return element(
    "div",
    { className: "scroll", tabIndex: 0 },
    element(
      "table",
      {},
      element(
        "thead",
        {},
        element(
          "tr",
          {},
          names.map((name) => element("th", { scope: "col" }, name)),
        ),
      ),
      element(
        "tbody",
        {},
        rows.map((row) =>
          element(
            "tr",
            {},
            row.map((cell) =>
              element("td", { className: /^[-–\d., %]+$/.test(cell) ? "number" : "" }, breakable(cell)),
            ),
          ),
        ),
      ),
    ),
  );
}

/** Characters as the server counts them: code points, where JavaScript's strings count UTF-16 units. */
export const characters = (text) => Array.from(text);

/** A select with the options [[value, text], ...]. */
export function select(options, value, onchange, label) {
  const made = element("select", { "aria-label": label, onchange: () => onchange(made.value) });
  made.append(...options.map(([key, text]) => element("option", { value: key }, text)));
  made.value = value;
  return made;
}
