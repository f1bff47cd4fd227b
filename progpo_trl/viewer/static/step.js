// One step, or all of an episode, in full.

const FIRST_SHOWN = 20000, MORE_SHOWN = 100000; // characters

// A text in full; a long one grows by a button. step: its number, or null for a text of the episode.
function fullText(place, row, step, field, value) {
  let text = textOf(value);
  let whole = typeof value === "string";
  const length = whole ? text.length : value.length;
  let shown = Math.min(text.length, FIRST_SHOWN);
  const box = el("pre", { class: "text full" });
  const holder = el("div", {}, box);
  const draw = () => {
    box.replaceChildren(visible(text.slice(0, shown)));
    holder.querySelector("button")?.remove();
    if (shown >= length) return;
    const more = el("button", { type: "button" }, `Show more (${shown.toLocaleString("en")} of ${length.toLocaleString("en")} characters)`);
    more.addEventListener("click", async () => {
      more.disabled = true;
      try {
        if (!whole && shown >= text.length) {
          text = await data.text(place, row, step === null ? "" : String(step), field);
          whole = true;
        }
      } catch (error) {
        more.replaceWith(el("p", { class: "minus", role: "alert" }, plain(error.message)));
        return;
      }
      shown = Math.min(text.length, shown + MORE_SHOWN);
      draw();
    });
    holder.append(more);
  };
  draw();
  return holder;
}

const KNOWN = new Set(["observation", "prompt", "response", "action", "format_valid", "admissible", "reward", "tokens", "truncated", "advantage", "logprob", "logprobs"]);
const flag = (value) => (value === true ? "yes" : value === false ? "no" : "not recorded");

function logprob(step) {
  if (step.logprob !== undefined && step.logprob !== null) return digits(number(step.logprob), 4);
  if (!Array.isArray(step.logprobs) || !step.logprobs.length) return null;
  const values = step.logprobs.map(Number);
  return `${digits(values.reduce((a, b) => a + b, 0), 4)} in sum of ${values.length} tokens`;
}

function numbersOf(step) {
  const a = number(step.advantage);
  const facts = [
    ["advantage", el("span", { class: `value ${shade(a, scaleNow)}` }, signed(a, 4))],
    ["reward", digits(number(step.reward), 4)],
    ["right form", flag(step.format_valid), step.format_valid === false],
    ["admissible", flag(step.admissible), step.admissible === false],
    ["tokens", digits(number(step.tokens))],
  ];
  if (step.truncated) facts.push(["cut", "at the token limit", true]);
  const sampled = logprob(step);
  if (sampled !== null) facts.push(["log-probability", sampled]);
  return el("dl", { class: "facts" }, ...facts.map(([name, value, bad]) => el("div", {}, el("dt", {}, name), el("dd", { class: bad ? "minus" : null }, value))));
}

function textsOf(place, row, t, step, after) {
  const parts = [];
  const add = (title, field, value, at = t) => {
    if (value === null || value === undefined) return;
    const shown = typeof value === "string" || typeof value.cut === "string" ? fullText(place, row, at, field, value) : el("pre", { class: "text full" }, plain(JSON.stringify(value)));
    parts.push(el("h4", {}, title), shown);
  };
  add("Observation", "observation", step.observation);
  add("Prompt", "prompt", step.prompt);
  add("Response", "response", step.response);
  add("Action", "action", step.action);
  if (after) add(after.title, after.field, after.value, after.step);
  for (const [name, value] of Object.entries(step)) if (!KNOWN.has(name) && value !== null) add(plain(name), name, value);
  return parts;
}

function afterStep(episode, t) {
  if (t + 1 < episode.steps.length) return { title: "What came of it", field: "observation", value: episode.steps[t + 1].observation, step: t + 1 };
  return { title: "What came of it", field: "final_observation", value: episode.final_observation, step: null };
}

function stepPanel(state, source, g, row, episode, t) {
  const place = sourceOf(state), name = `Episode ${source.rows.index[row]}`;
  const other = new Set(["steps", "step", "task_id", "task_type", "task", "group", "index", "seed", "success", "stop_reason", "return", "final_observation", "game"]);
  const rest = Object.entries(episode).filter(([key, value]) => !other.has(key) && value !== null && JSON.stringify(value) !== "{}");
  const whole = state.view === "episode";
  const panel = el("div", { class: "step" });
  const go = (to, text) => link({ ...state, step: String(to) }, text, "button");
  const buttons = el("p", { class: "buttons" });
  if (!whole && t > 0) buttons.append(go(t - 1, "Previous"));
  if (!whole && t + 1 < episode.steps.length) buttons.append(go(t + 1, "Next"));
  buttons.append(link({ ...state, view: whole ? "" : "episode" }, whole ? "One step" : "Whole episode", "button"));
  const title = whole ? `${name}, ${count(episode.steps.length, "step")}` : `${name}, step ${t} of ${episode.steps.length}`;
  panel.append(el("h3", { id: "step-name" }, title), buttons);
  for (const [key, value] of rest) {
    panel.append(el("h4", {}, plain(key)), typeof value === "string" || value.cut ? fullText(place, row, null, key, value) : el("pre", { class: "text full" }, plain(JSON.stringify(value))));
  }
  if (!whole) panel.append(numbersOf(episode.steps[t]), ...textsOf(place, row, t, episode.steps[t], afterStep(episode, t)));
  else {
    episode.steps.forEach((step, i) => {
      const last = i + 1 === episode.steps.length ? afterStep(episode, i) : null;
      panel.append(el("section", { class: i === t ? "one chosen" : "one" }, el("h4", { class: "at" }, `Step ${i}`), numbersOf(step), ...textsOf(place, row, i, step, last)));
    });
  }
  return panel;
}
