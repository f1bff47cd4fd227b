// Where the run comes from: from the server, or from the elements of an exported page.

const embedded = document.getElementById("run");

async function ask(path, query, signal) {
  const response = await fetch(path + (query ? "?" + new URLSearchParams(query) : ""), { signal });
  const body = await response.text();
  if (!response.ok) {
    const told = new DOMParser().parseFromString(body, "text/html").querySelector("[role=alert]");
    throw new Error(told ? told.textContent : `The server answered ${response.status}.`);
  }
  return JSON.parse(body);
}

const served = {
  load: () => ask("run.json"),
  async episodes(source, rows) {
    return rows.length ? ask("episodes.json", { source, rows: rows.map((row) => run.sources[source].rows.id[row]).join(",") }) : [];
  },
  text: (source, row, step, field) => ask("text.json", { source, row: run.sources[source].rows.id[row], step, field }),
  search: (source, q, progress, signal) => ask("search.json", { source, q }, signal),
};

const unpacked = new Map(); // the chunks that were opened last
const MOST_UNPACKED = 8;

async function chunk(name) {
  if (!unpacked.has(name)) {
    const packed = Uint8Array.from(atob(document.getElementById(name).textContent), (c) => c.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
    unpacked.set(name, JSON.parse(await new Response(stream).text()));
    if (unpacked.size > MOST_UNPACKED) unpacked.delete(unpacked.keys().next().value);
  }
  return unpacked.get(name);
}

const ofSearch = ["task_id", "task_type", "task", "error", "final_observation"];
const ofStep = ["observation", "prompt", "response", "action"];
const textOf = (value) => (typeof value === "string" ? value : value && typeof value.cut === "string" ? value.cut : "");

const exported = {
  load: async () => JSON.parse(embedded.textContent),
  async episodes(source, rows) {
    const found = [];
    for (const row of rows) found.push((await chunk(run.chunks[source][row]))[row]);
    return found;
  },
  async text() {
    throw new Error("The rest of this text is not in the exported file; it is in the run's episodes.jsonl.");
  },
  async search(source, q, progress, signal) {
    const wanted = q.toLowerCase();
    const names = [...new Set(Object.values(run.chunks[source]))];
    const found = [];
    for (let i = 0; i < names.length; i++) {
      if (signal.aborted) throw new DOMException("Another search began.", "AbortError");
      progress(i / names.length);
      for (const [row, episode] of Object.entries(await chunk(names[i]))) {
        const has = (holder, fields) => fields.some((name) => textOf(holder[name]).toLowerCase().includes(wanted));
        if (has(episode, ofSearch) || episode.steps.some((step) => has(step, ofStep))) found.push(Number(row));
      }
    }
    return found.sort((a, b) => a - b);
  },
};

const data = embedded ? exported : served;
let run = null;
