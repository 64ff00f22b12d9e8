/** The request as commands to copy. */

import { predictPath } from "./api.js";
import { button, element } from "./dom.js";
import { t } from "./i18n.js";

/**
 * Commands for curl and Python that send a request.
 *
 * body: of the request; version: of the model, "" for the newest.
 */
export function requestView(model, version, body) {
  const url = new URL(predictPath(model.name, version), location.href).href;
  const json = JSON.stringify(body);
  const token = sessionStorage.getItem("token"); // stays here: the commands take it from the environment
  const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;
  const curl = `curl ${token ? '-H "Authorization: Bearer $TOKEN" ' : ""}-d ${quoted(json)} ${quoted(url)}`;
  // Python's names of three constants differ from JSON's, outside of strings.
  const constants = { true: "True", false: "False", null: "None" };
  const literal = json.replace(/"(?:[^"\\]|\\.)*"|true|false|null/g, (part) => constants[part] ?? part);
  const python = [
    `import json${token ? "\nimport os" : ""}`,
    "import urllib.request",
    "",
    `body = ${literal}`,
    `request = urllib.request.Request(${JSON.stringify(url)}, json.dumps(body).encode())`,
    ...(token ? ['request.add_header("Authorization", f"Bearer {os.environ[\'TOKEN\']}")'] : []),
    "with urllib.request.urlopen(request) as answer:",
    "    print(json.load(answer))",
  ].join("\n");
  return [copied("curl", curl), copied("Python", python)];
}

function copied(name, text) {
  const code = element("pre", { tabIndex: 0 }, text);
  const note = element("span", { className: "hint", role: "status" });
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
      note.textContent = t("copied");
    } catch {
      getSelection().selectAllChildren(code); // without HTTPS, except on localhost
      note.textContent = t("copyByHand");
    }
  };
  const label = `${t("copy")}: ${name}`;
  const title = element("h3", {}, name);
  return [
    element(
      "div",
      { className: "row" },
      title,
      button(t("copy"), copy, { className: "quiet", "aria-label": label }),
      note,
    ),
    code,
  ];
}
