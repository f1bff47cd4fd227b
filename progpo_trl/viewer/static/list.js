// The list of groups and its filters.

const PAGE = 100; // groups
const FILTERS = ["source", "type", "outcome", "invalid", "kind", "from", "to", "q", "order"];
const form = document.getElementById("filters");
let hits = null; // {source, q, rows: Set} of the last search
let searching = null;

const sourceOf = (state) => {
  const found = run.sources.findIndex((s) => s.name === state.source);
  return found < 0 ? 0 : found;
};

function sectionName(source, section) {
  if (source.section_names) return source.section_names[section];
  return `generation ${source.sections.indexOf(section) + 1}, update ${section}`;
}

function outcome(source, row) {
  if (source.rows.dropped[row]) return "dropped";
  if (source.rows.success[row]) return "success";
  return (source.stops[source.rows.stop[row]] || "failure").replaceAll("_", " ");
}

// Whether an episode passes the filters of episodes; hits are looked at where a search is done.
function episodeTest(state, source, found) {
  const { rows } = source;
  const type = state.type ? source.types.indexOf(state.type) : -1;
  return (row) =>
    (!state.type || rows.type[row] === type) &&
    (!state.task || source.tasks[rows.task[row]] === state.task) &&
    (!state.outcome ||
      (state.outcome === "dropped" ? rows.dropped[row] === 1 : !rows.dropped[row] && rows.success[row] === Number(state.outcome === "success"))) &&
    (!state.invalid ||
      { any: rows.bad_format[row] + rows.inadmissible[row] > 0, format: rows.bad_format[row] > 0, inadmissible: rows.inadmissible[row] > 0, none: rows.bad_format[row] + rows.inadmissible[row] === 0 }[state.invalid]) &&
    (!found || found.has(row));
}

function groupTest(state, source) {
  const { groups } = source;
  const bound = (text, otherwise) => (text && text.trim() && Number.isFinite(Number(text)) && !source.section_names ? Number(text) : otherwise);
  const from = bound(state.from, -Infinity), to = bound(state.to, Infinity);
  return (g) =>
    groups.section[g] >= from &&
    groups.section[g] <= to &&
    (!state.kind ||
      { fail: groups.all_fail[g] === 1, success: groups.all_success[g] === 1, mixed: groups.kept[g] > 0 && !groups.all_fail[g] && !groups.all_success[g], gate: groups.gate[g] === 1 }[state.kind]);
}

// The groups that pass, each with the episodes that do: [[group, Set of rows], ...]
function filtered(state) {
  const source = run.sources[sourceOf(state)];
  const found = state.q && hits && hits.source === source && hits.q === state.q ? hits.rows : null;
  const episode = episodeTest(state, source, found), group = groupTest(state, source);
  const passed = [];
  source.groups.rows.forEach((rows, g) => {
    if (!group(g)) return;
    const some = rows.filter(episode);
    if (some.length) passed.push([g, new Set(some)]);
  });
  return state.order === "last" ? passed.reverse() : passed;
}

// Look a text up in all episodes unless that was just done; `then` draws what depends on it.
function searchFor(state, then) {
  const place = sourceOf(state), source = run.sources[place];
  if (!state.q || (hits && hits.source === source && hits.q === state.q)) return false;
  if (searching && searching.q === state.q && searching.source === source) return true;
  if (searching) searching.control.abort();
  const mine = (searching = { q: state.q, source, control: new AbortController() });
  const say = (text) => (document.getElementById("found").textContent = text);
  say("Searching…");
  data
    .search(place, state.q, (share) => say(`Searching… ${Math.floor(100 * share)} %`), mine.control.signal)
    .then((rows) => {
      hits = { source, q: state.q, rows: new Set(rows) };
    })
    .catch((error) => {
      if (error.name !== "AbortError") report(error);
      if (searching === mine) hits = { source, q: state.q, rows: new Set() };
    })
    .finally(() => {
      if (searching === mine) {
        searching = null;
        then();
      }
    });
  return true;
}

function fillForm(state) {
  const choose = (id, values) => {
    const select = document.getElementById(id);
    if (!values.some(([value]) => value === (state[id] || ""))) values.push([state[id], `${state[id]} (none)`]);
    select.replaceChildren(...values.map(([value, text]) => el("option", { value }, plain(text))));
  };
  choose("source", run.sources.map((s, i) => [i ? s.name : "", `${s.name} (${s.rows.id.length.toLocaleString("en")})`]));
  const source = run.sources[sourceOf(state)];
  choose("type", [["", "all"], ...[...source.types].sort().map((t) => [t, t])]);
  document.getElementById("source-field").hidden = run.sources.length < 2;
  for (const field of form.querySelectorAll(".range")) field.hidden = Boolean(source.section_names);
  for (const name of FILTERS) form.elements[name].value = name === "source" && !sourceOf(state) ? "" : state[name] || "";
}

function showList(state) {
  const waiting = searchFor(state, render);
  if (waiting) return;
  const source = run.sources[sourceOf(state)];
  const passed = filtered(state);
  const pages = Math.max(1, Math.ceil(passed.length / PAGE));
  const page = Math.min(Math.max(1, Number(state.page) || 1), pages);
  const episodes = passed.reduce((n, [, rows]) => n + rows.size, 0);
  const line = document.getElementById("found");
  line.dataset.of = location.hash;
  line.replaceChildren(`${count(passed.length, "group")} with ${count(episodes, "episode")}` + (pages > 1 ? `, page ${page} of ${pages}` : ""));
  if (state.task) line.append(", of task ", el("code", {}, plain(state.task)), " ", link({ ...state, task: "", page: "" }, "show all tasks"));
  const head = [source.section_names ? "part" : "update", "group", "task", "episodes", "mean return", "coverage", "invalid"];
  const table = document.getElementById("groups");
  table.replaceChildren(
    el("thead", {}, el("tr", {}, ...head.map((name) => el("th", { scope: "col" }, name)))),
    el("tbody", {}, ...passed.slice((page - 1) * PAGE, page * PAGE).map(([g, rows]) => groupRow(state, source, g, rows))),
  );
  const turn = (to, text) => (to >= 1 && to <= pages ? link({ ...state, page: String(to) }, text, "button") : "");
  document.getElementById("pager").replaceChildren(turn(page - 1, "Previous page"), turn(page + 1, "Next page"));
}

function mean(source, rows, column) {
  const values = rows.filter((row) => !source.rows.dropped[row]).map((row) => number(source.rows[column][row])).filter(Number.isFinite);
  return values.length ? values.reduce((a, b) => a + b, 0) / values.length : null;
}

function groupRow(state, source, g, passing) {
  const { groups, rows } = source;
  const members = groups.rows[g], task = rows.task[members[0]];
  const to = groupState(state, source, g);
  const chips = members.slice(0, 64).map((row) => {
    const what = outcome(source, row);
    const name = `episode ${rows.index[row]}: ${plain(what)}`;
    const kind = what === "success" ? "won" : what === "dropped" ? "lost dropped" : "lost";
    const sign = what === "success" ? "✓" : what === "dropped" ? "–" : "×";
    return link({ ...to, episode: episodeName(source, g, row) }, sign, `chip ${kind}${passing.has(row) ? "" : " other"}`, name);
  });
  const wrong = members.reduce((n, row) => n + rows.bad_format[row] + rows.inadmissible[row], 0);
  const steps = members.reduce((n, row) => n + rows.steps[row], 0);
  const where = source.section_names ? source.section_names[groups.section[g]] : String(groups.section[g]);
  const instruction = source.instructions[task].trim().split("\n").at(-1) || source.tasks[task];
  return el(
    "tr", {},
    el("td", {}, plain(where)),
    el("td", {}, link(to, String(groups.group[g]))),
    el("td", { class: "task" }, link(to, plain(short(instruction, 90))), " ", el("span", { class: "faint" }, plain(source.types[rows.type[members[0]]]))),
    el("td", {}, el("span", { class: "chips" }, ...chips, members.length > 64 ? `+${members.length - 64}` : "")),
    el("td", { class: "number" }, digits(mean(source, members, "return"), 2)),
    el("td", { class: "number" }, digits(mean(source, members, "coverage"), 2)),
    el("td", { class: "number" }, steps && wrong ? `${wrong} of ${steps}` : String(wrong)),
  );
}
