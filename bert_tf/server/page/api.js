/** Requests to the server. */

/** What went wrong, as a key of i18n.js and the values of its sentence. */
export class Failure extends Error {
  constructor(key, values = {}) {
    super(key);
    Object.assign(this, { key, values });
  }
}

const KEYS = {
  400: "refused",
  401: "needsToken",
  403: "refused",
  404: "notServed",
  413: "tooLarge",
  429: "tooLarge", // the answer would be
  503: "busy",
  504: "slow",
};

/** The server's answer to a request to `path` as an object; with `body`, a POST. Throws Failure. */
export async function call(path, body, signal) {
  const token = sessionStorage.getItem("token");
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  let response, text;
  try {
    const options = body === undefined ? {} : { method: "POST", body: JSON.stringify(body) };
    response = await fetch(path, { ...options, headers, signal, cache: "no-store" });
    text = await response.text();
  } catch (error) {
    throw error.name === "AbortError" ? error : new Failure("gone");
  }
  let answer;
  try {
    answer = JSON.parse(text);
  } catch {
    answer = null; // NaN is not JSON, and neither is the page of a proxy
  }
  if (!response.ok) {
    const message = String(answer?.error ?? response.statusText).slice(0, 500);
    throw new Failure(KEYS[response.status] ?? "failed", { message, status: response.status });
  }
  if (answer === null) throw new Failure("notJson");
  return answer;
}

/** Versions of a model that answer. */
export const available = (model) =>
  model.versions.filter(({ state }) => state === "AVAILABLE").map(({ version }) => version);
export const newest = (model) => Math.max(...available(model));

/** Path of a model's `predict`, of a version if it is given. */
export const predictPath = (name, version) =>
  `v1/models/${encodeURIComponent(name)}${version ? `/versions/${version}` : ""}:predict`;

/** The outputs of a signature by name, also if it has only one, which the API returns without its name. */
export async function predict(model, version, body, signal) {
  const { outputs } = await call(predictPath(model.name, version), body, signal);
  const names = Object.keys(model.card?.signatures[body.signature_name ?? "serving_default"]?.outputs ?? {});
  return names.length === 1 ? { [names[0]]: outputs } : outputs;
}
