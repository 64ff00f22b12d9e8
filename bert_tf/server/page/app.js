/** The page: models, the form, the answer and what is shown below it. */

import { headView, modelView, newView } from "./attention.js";
import { Failure, available, call, newest, predict } from "./api.js";
import { button, byId, element, failed, hint, pretty, select } from "./dom.js";
import { examplesOf } from "./examples.js";
import { sentence, switchLanguage, t, translatePage } from "./i18n.js";
import { requestView } from "./request.js";
import { promptNote, rankingView, search, searchRequests } from "./search.js";
import {
  MOST_TEXTS,
  answerOf,
  bodyOf,
  canAttend,
  compare,
  fieldName,
  hasForm,
  inputsOf,
  isList,
  isSearch,
  kindOf,
  kindsOf,
  linesOf,
  searchKind,
} from "./tasks.js";
import { sequencesOf, specialTokens, tokenView } from "./tokens.js";

const TABS = ["tokens", "heads", "layers", "request"];
const state = {
  models: [], // that answer
  loading: [], // names of those that may soon
  model: null,
  version: "", // "" for the newest
  values: {}, // of the fields by name: texts, or lists of texts
  outcome: null, // the last answer: {model, version, values, outputs, ms, sequences, waiting}
  failure: null,
  waiting: null, // an AbortController
  tab: "tokens",
  view: newView(),
};

// Models

/** Reads the list of models; the chosen one may have another version by now. */
async function refresh() {
  const { models } = await call("page/models.json");
  state.models = models.filter((model) => available(model).length);
  state.loading = models
    .filter((model) => !available(model).length && model.versions[0]?.state !== "END")
    .map(({ name }) => name);
  if (state.loading.length) setTimeout(loadModels, 3000);
  if (!state.models.length) {
    throw new Failure(models.length ? "loading" : "noModel", { models: models.map(({ name }) => name).join(", ") });
  }
  state.model = state.models.find(({ name }) => name === state.model?.name) ?? state.model;
}

async function loadModels() {
  if (state.model) return refresh().then(renderHeader, () => {}); // in the background: the next question shows errors
  await guarded(async () => {
    await refresh();
    const wanted = wantedName();
    const found = state.models.find(({ name }) => name === wanted);
    if (state.loading.includes(wanted)) {
      fill("model", [["", ""], ...state.models.map(({ name }) => [name, name])], "");
      throw new Failure("loadingOne", { name: wanted });
    }
    await choose(found ?? state.models[0]);
    if (wanted && !found) throw new Failure("notServed", { message: wanted });
  });
}

/** The model that the address of the page names; "" for none. */
function wantedName() {
  const name = location.hash.slice(1);
  try {
    return decodeURIComponent(name);
  } catch {
    return name;
  }
}

async function choose(model) {
  stop();
  const values = hasForm(model) ? { ...examplesOf(model)[0] } : { json: await skeleton(model) };
  Object.assign(state, {
    model,
    values: copied(values),
    version: "",
    outcome: null,
    failure: null,
    view: newView(),
  });
  history.replaceState(null, "", `#${encodeURIComponent(model.name)}`);
  render();
}

/** Fills the fields with an example of another kind: of a search, or of texts to be compared. */
function changeMode(values) {
  stop();
  Object.assign(state, { values: copied(values), outcome: null, failure: null });
  render();
}

/** A request for a model without a card, from the shapes of its inputs. */
async function skeleton(model) {
  const { metadata } = await call(`v1/models/${encodeURIComponent(model.name)}/metadata`);
  const signatures = metadata.signature_def.signature_def;
  const name =
    "serving_default" in signatures ? "serving_default" : Object.keys(signatures).find((key) => !key.startsWith("__"));
  const example = ({ dtype, tensor_shape }) => {
    const value = dtype === "DT_STRING" ? "text" : dtype === "DT_BOOL" ? false : 0;
    const nested = (sizes) =>
      sizes.length ? Array(Math.max(1, Math.min(8, sizes[0]))).fill(nested(sizes.slice(1))) : value;
    return nested((tensor_shape?.dim ?? []).map(({ size }) => Number(size)));
  };
  const inputs = Object.entries(signatures[name]?.inputs ?? {}).map(([key, info]) => [key, example(info)]);
  return pretty({ signature_name: name, inputs: Object.fromEntries(inputs) });
}

// Asking

const copied = (values) => JSON.parse(JSON.stringify(values));

/** Ends the question that is being answered, and those about words of the last answer. */
function stop() {
  state.waiting?.abort();
  state.outcome?.waiting.abort();
}

async function ask() {
  stop();
  const waiting = (state.waiting = new AbortController());
  const values = copied(state.values);
  await guarded(async () => {
    const body = requestBody(state.model, values);
    if (Object.values(values).flat().join("").trim() === "") throw new Failure("noText");
    if (isSearch(values) && !(values.question.trim() && values.lines.trim())) throw new Failure("noLine");
    renderAnswer();
    const send = async () => {
      const { model, models } = state;
      const version = state.version || newest(model); // named in the request, so that it is known which one answers
      const began = performance.now();
      const outputs = isSearch(values)
        ? await search(models, model, version, values, waiting.signal, progress)
        : await predict(model, version, body, waiting.signal);
      return { model, version, values, outputs, ms: Math.round(performance.now() - began), waiting };
    };
    const progress = (done, all) => done < all && byId("answer").replaceChildren(hint(t("scored", { done, all })));
    const outcome = await send().catch(async (failure) => {
      if (failure.key !== "notServed" || state.version) throw failure;
      await refresh(); // another version has taken its place
      renderHeader();
      return send();
    });
    Object.assign(state, { outcome, view: { ...state.view, sequence: 0, pinned: null } });
  }, waiting);
}

function requestBody(model, values) {
  try {
    return bodyOf(model, values);
  } catch (error) {
    throw new Failure("badJson", { message: error.message });
  }
}

/** Runs something that may fail, and shows how it went. */
async function guarded(action, waiting = null) {
  state.failure = null;
  try {
    await action();
  } catch (error) {
    if (error.name === "AbortError") return;
    state.failure = error;
  }
  if (state.waiting === waiting) state.waiting = null;
  renderFailure();
  if (state.model) renderAnswer();
}

/** Tokens and attention of the last question; they are asked for when they are looked at. */
function sequences(outcome) {
  const values = isSearch(outcome.values) ? bestPair(outcome) : outcome.values;
  const body = { signature_name: "attention", ...bodyOf(outcome.model, values) };
  outcome.sequences ??= predict(outcome.model, outcome.version, body).then((outputs) => {
    if (!outputs.continues) throw new Failure("oldAttention");
    return sequencesOf(outputs, values, inputsOf(outcome.model), specialTokens(outcome.model).sep);
  });
  return outcome.sequences;
}

/** Values of a reranker's inputs: the question with the line of the highest score. */
const bestPair = ({ values, outputs }) => ({ queries: values.question, texts: [outputs.lines[0].text] });

/** What changes if a token is masked: the signature `tokens` is asked about the ids with and without it. */
async function mask(outcome, all, number, index) {
  const { model, version, values } = outcome;
  const maskId = model.card.mask_id;
  const length = Math.max(...all.map(({ tokens }) => tokens.length));
  const padded = (numbers) => [...numbers, ...Array(length - numbers.length).fill(0)];
  const row = (hidden) => ({
    input_word_ids: all.map(({ tokens }, at) =>
      padded(tokens.map(({ id }, to) => (hidden && at === number && to === index ? maskId : id))),
    ),
    input_mask: all.map(({ tokens }) => padded(tokens.map(() => 1))),
    input_type_ids: all.map(({ tokens }) => padded(tokens.map(({ type }) => type))),
  });
  const rows = [row(false), row(true)];
  const rank = model.card.signatures.tokens.inputs.input_word_ids.shape.length;
  const input = (name) => rows.map((one) => (rank === 2 ? one[name][0] : one[name]));
  const inputs = Object.fromEntries(Object.keys(rows[0]).map((name) => [name, input(name)]));
  const outputs = await predict(model, version, { signature_name: "tokens", inputs });
  return compare(model, outputs, all[number], index, values);
}

// Showing

function render() {
  translatePage();
  byId("language").textContent = t("language");
  byId("workspace").hidden = !state.model;
  renderFailure();
  if (!state.model) return;
  renderHeader();
  renderFields();
  renderAnswer();
}

function renderHeader() {
  const { model } = state;
  fill(
    "model",
    state.models.map(({ name }) => [name, name]),
    model.name,
  );
  const labels = Object.entries(model.labels).map(([label, version]) => [String(version), `${label} (${version})`]);
  const versions = available(model).map((version) => [String(version), String(version)]);
  fill("version", [["", t("newest", { version: newest(model) })], ...labels, ...versions], state.version);
  byId("version-label").hidden = versions.length < 2;
  document.title = `${model.name} · bert_tf`;
  byId("name").textContent = model.name;
  const names = kindsOf(model.card?.task?.settings?.labels ?? []);
  const shown = names.slice(0, 8).join(", ");
  const labelled = names.length > 8 ? t("andMore", { labels: shown, count: names.length - 8 }) : shown;
  const about = [kindOf(model), names.length > 1 && t("labels", { labels: labelled })];
  byId("about").textContent = about.filter(Boolean).join(" · ");
}

function fill(id, options, value) {
  const made = select(options, value);
  byId(id).replaceChildren(...made.children);
  byId(id).value = value;
}

function renderFailure() {
  const { failure } = state;
  byId("error").hidden = !failure;
  byId("error").textContent = failure ? sentence(failure) : "";
  if (failure) byId("error").scrollIntoView({ block: "nearest" });
  byId("access").hidden = failure?.key !== "needsToken";
  if (failure?.key === "needsToken") byId("token").focus();
}

function renderFields() {
  const { model, values } = state;
  const names = isSearch(values) ? ["question", "lines"] : hasForm(model) ? inputsOf(model) : ["json"];
  const isListed = (name) => !isSearch(values) && isList(model, name);
  const area = (name, index) => {
    const list = index === null ? values : values[name];
    const key = index ?? name;
    const label = fieldName(name) + (index === null ? "" : ` ${index + 1}`);
    const rows = { context: 7, json: 12, lines: 8, text: isListed(name) || names.length > 1 ? 2 : 4 }[name] ?? 2;
    const box = element("textarea", {
      rows,
      id: `field-${name}-${index ?? 0}`,
      value: list[key] ?? "",
      dir: "auto",
      spellcheck: false,
    });
    box.oninput = () => (list[key] = box.value);
    const remove =
      index !== null &&
      list.length > 2 &&
      quietButton(t("remove"), () => list.splice(index, 1), `${t("remove")}: ${label}`);
    return element("div", { className: "field" }, element("label", { htmlFor: box.id }, label), remove, box);
  };
  const quietButton = (text, action, label) => {
    const onclick = () => {
      action();
      renderFields();
    };
    return button(text, onclick, { className: "quiet", "aria-label": label });
  };
  const field = (name) => {
    if (!isListed(name)) return area(name, null);
    return [
      values[name].map((_, index) => area(name, index)),
      quietButton(t("add"), () => values[name].push(""), t("add")),
    ];
  };
  byId("fields").replaceChildren(...names.map(field).flat(2));
  const note = isSearch(values) && promptNote(model, state.models);
  if (note) byId("fields").append(hint(note));
  const examples = hasForm(model) ? examplesOf(model, isSearch(values)) : [];
  const modes = searchKind(model) === "vector" ? [true, false] : [];
  byId("modes").replaceChildren(
    ...modes.map((searches) =>
      button(t(searches ? "search" : "compare"), () => changeMode(examplesOf(model, searches)[0]), {
        id: searches ? "mode-search" : "mode-compare",
        className: "chip",
        "aria-pressed": String(searches === isSearch(values)),
      }),
    ),
  );
  byId("examples").setAttribute("aria-label", t("examples"));
  byId("examples").replaceChildren(
    ...examples.map((example) => {
      const text = String(example.question && !example.choices ? example.question : Object.values(example).flat()[0]);
      const onclick = () => change(example);
      return button(text, onclick, { className: "chip", title: text });
    }),
  );
}

/** Fills the fields, and asks unless it is told not to. */
function change(values, asks = true) {
  state.values = copied({ ...state.values, ...values });
  renderFields();
  if (asks) ask();
  else renderDetails();
}

function renderAnswer() {
  const { outcome, waiting, failure } = state;
  const box = byId("answer");
  box.setAttribute("aria-busy", String(Boolean(waiting)));
  byId("measured").textContent = byId("status").textContent = "";
  if (waiting || !outcome || failure) {
    box.replaceChildren(hint(t(waiting ? "waiting" : "empty")));
  } else {
    const { outputs, values, model, version, ms } = outcome;
    try {
      const shown = isSearch(values) ? rankingView(outputs) : answerOf(model, outputs, values, change);
      box.replaceChildren(element("div", {}, shown));
    } catch (error) {
      box.replaceChildren(failed(error));
    }
    byId("measured").textContent = t("measured", { ms, name: model.name, version });
    const best = box.querySelector(".verdict, .ranking > li") ?? box;
    byId("status").textContent = best.textContent.slice(0, 200); // is read out
  }
  renderDetails();
}

const tabsOf = (model) => (canAttend(model) ? TABS : ["request"]);

function renderDetails() {
  const names = tabsOf(state.model);
  if (!names.includes(state.tab)) state.tab = names[0];
  const tabs = names.map((name) =>
    button(t(`tab_${name}`), () => openTab(name), {
      role: "tab",
      id: `tab-${name}`,
      tabIndex: name === state.tab ? 0 : -1,
      "aria-selected": String(name === state.tab),
      "aria-controls": "panel",
    }),
  );
  const focused = byId("tabs").contains(document.activeElement);
  byId("tabs").replaceChildren(...tabs);
  if (focused) byId(`tab-${state.tab}`).focus();
  byId("panel").setAttribute("aria-labelledby", `tab-${state.tab}`);
  renderPanel();
}

function openTab(name) {
  state.tab = name;
  renderDetails();
}

async function renderPanel() {
  const { outcome, tab, view } = state;
  const show = (...nodes) => byId("panel").replaceChildren(element("div", {}, nodes));
  const say = (key) => show(hint(t(key)));
  if (tab !== "request") {
    if (!outcome) return say("askFirst");
    if (!outcome.model.signatures.includes("attention")) return say("noAttention");
  }
  try {
    if (tab === "request") {
      const { models, model, version, values } = state;
      if (!isSearch(values)) return show(requestView(model, version, requestBody(model, values)));
      const more = linesOf(values.lines).texts.length > MOST_TEXTS;
      return show(
        more && hint(t("firstLines", { count: MOST_TEXTS })),
        searchRequests(models, model, version, values).map((request) => requestView(...request)),
      );
    }
    if (!outcome.sequences) say("waiting");
    const all = (await sequences(outcome)).filter(({ tokens }) => tokens.length);
    if (state.outcome !== outcome || state.tab !== tab) return;
    const canMask = outcome.model.card?.mask_id !== undefined;
    const special = specialTokens(outcome.model);
    if (tab === "tokens") {
      show(
        all.map((sequence, index) => [
          all.length > 1 && element("h3", {}, `${t("sequence")} ${index + 1}`),
          tokenView(sequence, special),
        ]),
      );
    } else if (tab === "heads") {
      const hide = canMask ? (number, index) => mask(outcome, all, number, index) : null;
      show(headView(all, special, view, renderPanel, hide));
    } else {
      show(
        modelView(all, special, view, renderPanel, (layer, head) => {
          Object.assign(view, { layer, heads: [head] });
          openTab("heads");
        }),
      );
    }
  } catch (error) {
    if (outcome) outcome.sequences = null; // to ask again
    show(failed(error));
  }
}

// Events

byId("model").onchange = ({ target }) => guarded(() => choose(state.models.find(({ name }) => name === target.value)));
byId("version").onchange = ({ target }) => {
  state.version = target.value;
  renderDetails();
};
byId("language").onclick = () => {
  switchLanguage();
  render();
};
byId("question").onsubmit = (event) => {
  event.preventDefault();
  ask();
};
byId("question").onkeydown = (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) ask();
};
byId("access").onsubmit = (event) => {
  event.preventDefault();
  sessionStorage.setItem("token", byId("token").value);
  if (state.model) ask();
  else loadModels();
};
byId("tabs").onkeydown = ({ key }) => {
  const step = { ArrowLeft: -1, ArrowRight: 1 }[key];
  const names = tabsOf(state.model);
  if (step) openTab(names[(names.indexOf(state.tab) + step + names.length) % names.length]);
};
matchMedia("(prefers-color-scheme: dark)").onchange = () => state.tab === "layers" && renderPanel();

render();
loadModels();
