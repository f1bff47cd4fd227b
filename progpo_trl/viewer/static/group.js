// The rollouts of one group side by side.

const SIDE = 32; // episodes at once
const FIRST_STEPS = 200; // rows of the table before a button asks for all
let scaleNow = 1; // the largest advantage on show
let open = null; // {source, g, rows, episodes, allSteps} of the group on show
let loading = null;

function episodeName(source, g, row) {
  const same = source.groups.rows[g].filter((other) => source.rows.index[other] === source.rows.index[row]);
  return same.length < 2 ? String(source.rows.index[row]) : `${source.rows.index[row]}.${same.indexOf(row)}`;
}

function groupState(state, source, g) {
  const { groups } = source;
  return { ...state, update: String(groups.section[g]), group: String(groups.group[g]), episode: "", step: "", view: state.view || "" };
}

// The group that a state names, or -1.
function groupOf(state, source) {
  const { section, group } = source.groups;
  return section.findIndex((s, i) => String(s) === state.update && String(group[i]) === state.group);
}

// A class of the diverging scale: n5 ... n1, z, p1 ... p5.
function shade(a, largest) {
  if (a === null) return "";
  if (Number.isNaN(a)) return "odd";
  if (a === 0) return "z";
  const level = Math.min(5, Math.max(1, Math.ceil((5 * Math.abs(a)) / (largest || 1))));
  return (a > 0 ? "p" : "n") + level;
}

async function showGroup(state) {
  const place = sourceOf(state), source = run.sources[place];
  const g = groupOf(state, source);
  const holder = document.getElementById("group");
  if (g < 0) {
    open = null;
    holder.replaceChildren(
      link({ ...state, update: "", group: "", episode: "", step: "" }, "All groups", "button"),
      el("h2", { id: "group-name" }, "No such group"),
      el("p", { role: "alert" }, `There is no group ${plain(state.group)} of update ${plain(state.update)} in ${plain(source.name)}.`),
    );
    return;
  }
  const members = source.groups.rows[g];
  const chosen = Math.max(0, members.findIndex((row) => episodeName(source, g, row) === state.episode));
  const begin = Math.floor(chosen / SIDE) * SIDE;
  const rows = members.slice(begin, begin + SIDE);
  if (!open || open.source !== source || open.g !== g || open.begin !== begin) {
    const mine = (loading = {});
    let episodes = [];
    try {
      if (source.texts) episodes = await data.episodes(place, rows);
    } catch (error) {
      report(error);
      return;
    }
    if (loading !== mine) return; // another group was asked for meanwhile
    open = { source, g, begin, rows, episodes, allSteps: false };
    state = current();
    drawGroup(state, place, source, g, rows, episodes);
  }
  select(current(), source, g, rows, open.episodes);
}

function drawGroup(state, place, source, g, rows, episodes) {
  const { groups } = source;
  const members = groups.rows[g], task = source.rows.task[members[0]];
  const values = episodes.flatMap((e) => e.steps.map((s) => Math.abs(number(s.advantage) ?? 0))).filter(Number.isFinite);
  scaleNow = values.reduce((a, b) => Math.max(a, b), 0);
  const list = filtered(state).map(([other]) => other), at = list.indexOf(g);
  const go = (to, text) => (to === undefined ? "" : link(groupState(state, source, to), text, "button"));
  const wins = members.filter((row) => source.rows.success[row] && !source.rows.dropped[row]).length;
  const facts = [
    ["task", el("code", {}, plain(source.tasks[task]))],
    ["type", plain(source.types[source.rows.type[members[0]]])],
    ["successes", `${wins} of ${groups.kept[g]}` + (groups.kept[g] < members.length ? `, ${members.length - groups.kept[g]} left out` : "")],
  ];
  if (!source.section_names) facts.push(["ProGPO's gate", gateWords(groups.gate[g])]);
  const parts = [
    el("p", { class: "buttons" }, link({ ...state, update: "", group: "", episode: "", step: "" }, "All groups", "button"), at > 0 ? go(list[at - 1], "Previous group") : "", at >= 0 ? go(list[at + 1], "Next group") : ""),
    el("h2", { id: "group-name" }, plain(source.section_names ? source.section_names[groups.section[g]] : `Group ${groups.group[g]}, ${sectionName(source, groups.section[g])}`)),
    el("p", { class: "instruction" }, visible(source.instructions[task] || source.tasks[task])),
    el("dl", { class: "facts" }, ...facts.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value)))),
    related(state, source, g),
  ];
  if (source.explain) {
    const words = `${source.explain} --step ${groups.section[g]} --group ${groups.group[g]}`;
    parts.push(el("p", { class: "faint" }, "Why each step got its advantage: ", el("code", {}, plain(words))));
  }
  if (members.length > SIDE) parts.push(sides(state, source, g, rows));
  if (!source.texts) parts.push(el("p", {}, "Only the numbers of these episodes are on record, no steps."));
  const grid = el("div", { class: "scroll grid", tabindex: "0", role: "region", "aria-label": "The episodes side by side" }, table(state, source, g, rows, episodes));
  const main = el("div", {}, legend(), grid);
  const cut = Math.max(0, ...episodes.map((e) => e.steps.length)) - FIRST_STEPS;
  if (cut > 0 && !open.allSteps) {
    main.append(el("p", {}, el("button", { type: "button", onclick: () => ((open.allSteps = true), drawGroup(current(), place, source, g, rows, episodes), select(current(), source, g, rows, episodes)) }, `Show ${cut} more steps`)));
  }
  parts.push(el("div", { class: "columns group" }, main, el("aside", { id: "panel", "aria-labelledby": "step-name" })));
  document.getElementById("group").replaceChildren(...parts.filter(Boolean));
}

function gateWords(gate) {
  const { text, fallback, known } = run.gate;
  if (gate === null) return plain(text);
  const state = gate ? "open" : "closed";
  if (!known) return plain(`${state} (${text})`);
  if (!fallback) return plain(`this run has no fallback; it would be ${state} (${text})`);
  return plain(gate ? `open: the fallback acts (${text})` : `closed: the base alone acts (${text})`);
}

function sides(state, source, g, rows) {
  const members = source.groups.rows[g], begin = members.indexOf(rows[0]);
  const go = (to, text) => (to >= 0 && to < members.length ? link({ ...groupState(state, source, g), episode: episodeName(source, g, members[to]) }, text, "button") : "");
  return el("p", { class: "buttons" }, `Episodes ${begin + 1} to ${begin + rows.length} of ${members.length}. `, go(begin - SIDE, "Those before"), go(begin + SIDE, "Those after"));
}

function legend() {
  if (!open.episodes.some((e) => e.steps.some((s) => number(s.advantage) !== null))) return el("p", { class: "faint" }, "No advantages are recorded.");
  const names = ["n5", "n4", "n3", "n2", "n1", "z", "p1", "p2", "p3", "p4", "p5"];
  return el(
    "p", { class: "scale" }, "Advantage ", signed(-scaleNow), " ",
    el("span", { class: "swatches", "aria-hidden": "true" }, ...names.map((name) => el("span", { class: name }))),
    " ", signed(scaleNow), el("span", { class: "faint" }, " (the scale of this group). Dashed: the same observation as at the chosen step."),
  );
}

function table(state, source, g, rows, episodes) {
  const { rows: columns } = source;
  const head = el("tr", {}, el("th", { scope: "col" }, "step"));
  rows.forEach((row) => {
    const what = outcome(source, row), notes = [];
    if (columns.bad_format[row]) notes.push(`${columns.bad_format[row]} bad format`);
    if (columns.inadmissible[row]) notes.push(`${columns.inadmissible[row]} inadmissible`);
    head.append(
      el(
        "th", { scope: "col", "data-row": row },
        el("span", { class: "name" }, `${source.section_names ? `seed ${columns.seed[row]}` : `episode ${columns.index[row]}`}`),
        el("span", { class: what === "success" ? "plus" : "minus" }, `${what === "success" ? "✓" : "×"} ${plain(what)}`),
        el("span", {}, `return ${digits(number(columns.return[row]), 3)}`),
        el("span", {}, `coverage ${digits(number(columns.coverage[row]), 2)}`),
        el("span", { class: "faint" }, notes.join(", ") || count(columns.steps[row], "step")),
      ),
    );
  });
  const longest = Math.max(0, ...episodes.map((e) => e.steps.length));
  const codes = new Map();
  const body = el("tbody", {});
  for (let t = 0; t < (open.allSteps ? longest : Math.min(longest, FIRST_STEPS)); t++) {
    const line = el("tr", {}, el("th", { scope: "row" }, String(t)));
    episodes.forEach((episode, column) => line.append(el("td", {}, t < episode.steps.length ? cell(episode.steps[t], rows[column], t, codes) : "")));
    body.append(line);
  }
  return el("table", { class: "rollouts" }, el("thead", {}, head), body);
}

function cell(step, row, t, codes) {
  const a = number(step.advantage), reward = number(step.reward), seen = textOf(step.observation);
  if (!codes.has(seen)) codes.set(seen, codes.size);
  const action = plain(short(textOf(step.action) || "(no action)", 60));
  const flags = [];
  if (step.format_valid === false) flags.push(el("span", { class: "flag" }, "bad format"));
  if (step.admissible === false) flags.push(el("span", { class: "flag" }, "inadmissible"));
  if (reward) flags.push(el("span", { class: "flag paid" }, `reward ${digits(reward, 2)}`));
  return el(
    "button", { type: "button", tabindex: "-1", class: `cell ${shade(a, scaleNow)}`, "data-row": row, "data-step": t, "data-seen": codes.get(seen) },
    el("span", { class: "value" }, signed(a)), el("span", { class: "action" }, action), ...flags,
  );
}

// Mark the step that the state names and show it in full.
function select(state, source, g, rows, episodes) {
  const holder = document.getElementById("group");
  const chosen = rows.find((row) => episodeName(source, g, row) === state.episode);
  const column = rows.indexOf(chosen);
  for (const old of holder.querySelectorAll(".chosen, .same")) old.classList.remove("chosen", "same");
  for (const old of holder.querySelectorAll(".cell[tabindex='0']")) old.tabIndex = -1;
  const first = holder.querySelector(".cell");
  const panel = document.getElementById("panel");
  if (column < 0 || !episodes[column] || !episodes[column].steps.length) {
    if (first) first.tabIndex = 0;
    const none = column >= 0 && episodes[column] ? "This episode has no steps." : "Choose a step to read it in full.";
    panel.replaceChildren(el("h3", { id: "step-name" }, "Step"), el("p", { class: "faint" }, source.texts ? none : ""));
    return;
  }
  const last = episodes[column].steps.length - 1;
  const t = Math.min(Math.max(0, Math.trunc(Number(state.step)) || 0), last);
  const cellNow = holder.querySelector(`.cell[data-row="${chosen}"][data-step="${t}"]`);
  if (cellNow) {
    for (const other of holder.querySelectorAll(`.cell[data-seen="${cellNow.dataset.seen}"]`)) other.classList.add("same");
    cellNow.classList.add("chosen");
    cellNow.tabIndex = 0;
    cellNow.scrollIntoView({ block: "nearest", inline: "nearest" });
    if (holder.contains(document.activeElement) && document.activeElement.classList.contains("cell")) cellNow.focus({ preventScroll: true });
  }
  panel.replaceChildren(stepPanel(state, source, g, chosen, episodes[column], t));
  panel.scrollTop = 0;
  if (state.view === "episode") panel.querySelector(".one.chosen")?.scrollIntoView({ block: "nearest" });
}

const MOST_LINKS = 12;

// The same task elsewhere: in other generations and in evaluations.
function related(state, source, g) {
  const task = source.tasks[source.rows.task[source.groups.rows[g][0]]];
  const parts = [];
  for (const other of run.sources) {
    const code = other.tasks.indexOf(task);
    if (code < 0) continue;
    const found = [];
    other.groups.rows.forEach((rows, i) => {
      if (other.rows.task[rows[0]] === code && !(other === source && i === g)) found.push(i);
    });
    if (!found.length) continue;
    const name = other === run.sources[0] ? "" : other.name;
    const links = found.slice(0, MOST_LINKS).map((i) => {
      const wins = other.groups.rows[i].filter((row) => other.rows.success[row] && !other.rows.dropped[row]).length;
      const where = other.section_names ? other.section_names[other.groups.section[i]] : `update ${other.groups.section[i]}`;
      return el("li", {}, link({ source: name, ...pick(groupState({}, other, i)) }, plain(where)), ` ${wins} of ${other.groups.kept[i]}`);
    });
    if (found.length > MOST_LINKS) links.push(el("li", {}, link({ source: name, task }, `all ${found.length + (other === source)} groups`)));
    parts.push(el("div", {}, el("span", {}, `The same task in ${plain(other.name)}${other === source ? " besides" : ""}:`), el("ul", { class: "related" }, ...links)));
  }
  return parts.length ? el("div", { class: "relations" }, ...parts) : null;
}

const pick = ({ update, group }) => ({ update, group });
