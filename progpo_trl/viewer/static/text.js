// Elements from data: text becomes text nodes, never markup.

function el(tag, properties, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "class") element.className = value;
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined && child !== ""));
  return element;
}

// Characters that are not seen or change how others are seen: controls, directions, zero widths, tags, half characters.
const HIDDEN =
  /(?:[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]|[\u{e0000}-\u{e007f}]|\p{Surrogate})+/gu;
const MOST_MARKS = 8; // of one run of hidden characters

function marks(run) {
  const codes = Array.from(run, (c) => "⟨U+" + c.codePointAt(0).toString(16).toUpperCase().padStart(4, "0") + "⟩");
  return codes.length <= MOST_MARKS ? codes.join("") : codes.slice(0, MOST_MARKS).join("") + `⟨and ${codes.length - MOST_MARKS} more⟩`;
}

// One line of text in which everything can be seen: for attributes, options and short labels.
function plain(text) {
  return String(text).replace(HIDDEN, marks);
}

// The same as nodes, with what was hidden set apart.
function visible(text) {
  const fragment = document.createDocumentFragment();
  let at = 0;
  for (const match of text.matchAll(HIDDEN)) {
    fragment.append(text.slice(at, match.index), el("span", { class: "mark" }, marks(match[0])));
    at = match.index + match[0].length;
  }
  fragment.append(text.slice(at));
  return fragment;
}

function short(text, most) {
  const line = String(text).replace(/\s+/g, " ").trim();
  return line.length <= most ? line : line.slice(0, most - 1) + "…";
}

// Numbers that JSON cannot hold come as "NaN", "Infinity" and "-Infinity"; null is what is not known.
const number = (value) => (value === null || value === undefined ? null : Number(value));

function digits(value, places = 3) {
  if (value === null) return "–";
  if (!Number.isFinite(value)) return String(value);
  const size = Math.abs(value);
  if (size !== 0 && (size < 0.5 * 10 ** -places || size >= 1e6)) return value.toExponential(1);
  return String(Number(value.toFixed(places)));
}

function signed(value, places = 3) {
  if (value === null || !Number.isFinite(value)) return digits(value, places);
  const size = Math.abs(value);
  const shown = size !== 0 && (size < 0.5 * 10 ** -places || size >= 1e6) ? size.toExponential(1) : size.toFixed(places);
  return (value > 0 ? "+" : value < 0 ? "−" : "") + shown;
}

const percent = (value) => (value === null || !Number.isFinite(value) ? "–" : `${Number((100 * value).toFixed(1))} %`);
const count = (n, word) => `${n.toLocaleString("en")} ${word}${n === 1 ? "" : "s"}`;
