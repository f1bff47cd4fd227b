// What is shown stands in the address after "#": filters, group, episode and step.

const NAMES = [...FILTERS, "task", "page", "update", "group", "episode", "step", "view"];

function current() {
  const given = new URLSearchParams(location.hash.slice(1));
  return Object.fromEntries(NAMES.map((name) => [name, given.get(name) || ""]));
}

function address(state) {
  const kept = new URLSearchParams();
  for (const name of NAMES) if (state[name]) kept.set(name, state[name]);
  return "#" + kept;
}

function link(state, text, kind, label) {
  return el("a", { href: address(state), class: kind, "aria-label": label, title: label }, text);
}

function go(state, replace) {
  const to = address(state);
  if (to === (location.hash || "#")) return;
  if (replace) {
    history.replaceState(null, "", to);
    render();
  } else location.hash = to;
}

function report(error) {
  document.getElementById("notices").append(el("p", { class: "notice", role: "alert" }, plain(error.message || error)));
}

let listed = null; // the address of the list that is drawn
let shown = null; // whether the list or a group is

function render() {
  const state = current(), group = state.update !== "" && state.group !== "";
  document.getElementById("overview").hidden = group;
  document.getElementById("group").hidden = !group;
  if (shown !== null && shown !== group) scrollTo(0, group ? 0 : listed ? listed.y : 0);
  shown = group;
  const name = plain(run.name);
  document.title = group ? `group ${plain(state.group)} of update ${plain(state.update)}: ${name}` : `${name}: progpo view`;
  if (group) {
    searchFor(state, () => {});
    showGroup(state).catch(report);
    return;
  }
  open = null;
  fillForm(state);
  showList(state);
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  const state = { ...current(), page: "" };
  for (const name of FILTERS) state[name] = form.elements[name].value.trim();
  go(state);
});
form.addEventListener("change", (event) => {
  if (event.target.id === "source") for (const name of ["type", "from", "to"]) form.elements[name].value = "";
  form.requestSubmit();
});
form.addEventListener("reset", (event) => {
  event.preventDefault();
  go({ source: current().source });
});

document.getElementById("group").addEventListener("click", (event) => {
  const cellNow = event.target.closest(".cell");
  if (!cellNow) return;
  const state = current(), source = run.sources[sourceOf(state)];
  const name = episodeName(source, groupOf(state, source), Number(cellNow.dataset.row));
  cellNow.focus({ preventScroll: true });
  go({ ...state, episode: name, step: cellNow.dataset.step }, true);
  if (matchMedia("(max-width: 70rem)").matches) document.getElementById("panel").scrollIntoView({ block: "nearest" });
});

const MOVES = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1], Home: [0, -Infinity], End: [0, Infinity] };

function move(state, source, g, [aside, along]) {
  const members = source.groups.rows[g];
  const at = members.findIndex((row) => episodeName(source, g, row) === state.episode);
  const column = at < 0 ? 0 : Math.min(Math.max(0, at + aside), members.length - 1);
  const last = Math.max(0, source.rows.steps[members[column]] - 1);
  const step = at < 0 ? 0 : Math.min(Math.max(0, (Number(state.step) || 0) + along), last);
  go({ ...state, episode: episodeName(source, g, members[column]), step: String(step) }, true);
}

document.addEventListener("keydown", (event) => {
  if (!run || event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea")) {
    if (event.key === "Escape") event.target.blur?.();
    return;
  }
  const state = current(), source = run.sources[sourceOf(state)];
  const g = shown ? groupOf(state, source) : -1;
  const inText = event.target.closest("#panel, details");
  let done = true;
  if (event.key === "?") document.getElementById("keys").open = !document.getElementById("keys").open;
  else if (event.key === "/") {
    if (shown) go({ ...state, update: "", group: "", episode: "", step: "" });
    setTimeout(() => form.elements.q.focus());
  } else if (event.key === "Escape" && shown) go({ ...state, update: "", group: "", episode: "", step: "", view: "" });
  else if (g >= 0 && source.texts && MOVES[event.key] && !inText) move(state, source, g, MOVES[event.key]);
  else if (g >= 0 && event.key === "e") go({ ...state, view: state.view ? "" : "episode" }, true);
  else if (g >= 0 && (event.key === "n" || event.key === "p")) {
    const list = filtered(state).map(([other]) => other);
    const next = list[list.indexOf(g) + (event.key === "n" ? 1 : -1)];
    if (next !== undefined) go(groupState(state, source, next));
  } else done = false;
  if (done) event.preventDefault();
});

async function start() {
  run = await data.load();
  document.getElementById("run-name").textContent = plain(run.name);
  document.getElementById("facts").replaceChildren(...run.facts.map(([name, value]) => el("div", {}, el("dt", {}, plain(name)), el("dd", {}, plain(value)))));
  document.getElementById("notices").replaceChildren(...run.notices.map((text) => el("p", { class: "notice" }, plain(text))));
  showCharts();
  addEventListener("hashchange", () => {
    if (shown === false) listed = { y: scrollY };
    render();
  });
  render();
  const total = run.sources.reduce((n, source) => n + source.rows.id.length, 0);
  document.getElementById("state").textContent = count(total, "episode");
  // What waits for the page, a benchmark for example, looks at this.
  document.documentElement.dataset.ready = "yes";
  performance.mark("interactive");
}

start().catch((error) => {
  document.getElementById("state").textContent = "The run could not be loaded.";
  report(error);
});
