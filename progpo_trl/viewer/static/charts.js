// Learning curves and histograms as SVG, with their numbers as a table beside them.

const WIDE = 460, HIGH = 230, LEFT = 44, RIGHT = 10, TOP = 10, BOTTOM = 30;

function svg(tag, attributes, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

// About `n` round numbers from low to high.
function ticks(low, high, n) {
  const rough = (high - low) / n || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((f) => f * power).find((s) => s >= rough * 0.999);
  const found = [];
  for (let v = Math.ceil(low / step - 1e-9) * step; v <= high + step * 1e-9; v += step) found.push(Number(v.toPrecision(12)));
  return found;
}

function axes(chart, [x0, x1], [y0, y1], label) {
  const x = (v) => LEFT + ((v - x0) / (x1 - x0 || 1)) * (WIDE - LEFT - RIGHT);
  const y = (v) => HIGH - BOTTOM - ((v - y0) / (y1 - y0 || 1)) * (HIGH - BOTTOM - TOP);
  const picture = svg("svg", { viewBox: `0 0 ${WIDE} ${HIGH}`, role: "img", "aria-label": label });
  for (const v of ticks(y0, y1, 4)) {
    picture.append(
      svg("line", { x1: LEFT, x2: WIDE - RIGHT, y1: y(v), y2: y(v), class: "grid" }),
      svg("text", { x: LEFT - 6, y: y(v) + 4, "text-anchor": "end" }, chart.share ? `${Number((100 * v).toFixed(2))}%` : digits(v, 4)),
    );
  }
  for (const v of ticks(x0, x1, 6)) {
    picture.append(svg("text", { x: x(v), y: HIGH - BOTTOM + 15, "text-anchor": "middle" }, digits(v, 4)));
  }
  return { picture, x, y };
}

function path(xs, ys, x, y) {
  let d = "", pen = "M";
  for (let i = 0; i < xs.length; i++) {
    if (!Number.isFinite(ys[i])) pen = "M";
    else {
      d += `${pen}${x(xs[i]).toFixed(1)} ${y(ys[i]).toFixed(1)}`;
      pen = "L";
    }
  }
  return d;
}

function lines(chart) {
  const xs = chart.x.map(Number);
  const series = chart.series.map((s) => ({ ...s, y: s.y.map(Number), raw: s.raw && s.raw.map(Number) }));
  const points = chart.points.map((p) => ({ ...p, x: Number(p.x) }));
  const all = [...series.flatMap((s) => [...s.y, ...(s.raw || [])]), ...points.flatMap((p) => [p.y, p.low ?? p.y, p.high ?? p.y])];
  const finite = all.filter(Number.isFinite);
  const at = [...xs, ...points.map((p) => p.x)];
  let low = finite.reduce((a, b) => Math.min(a, b), Infinity), high = finite.reduce((a, b) => Math.max(a, b), -Infinity);
  if (chart.share) [low, high] = [0, chart.zoom ? Math.max(high, 0.01) : 1];
  if (!finite.length) [low, high] = [0, 1];
  if (low === high) [low, high] = [low - 0.5, high + 0.5];
  const last = series.map((s) => `${s.name} ${chart.share ? percent(s.y.findLast(Number.isFinite) ?? null) : digits(s.y.findLast(Number.isFinite) ?? null)}`);
  const { picture, x, y } = axes(chart, [Math.min(...at), Math.max(...at)], [low, high], `${chart.title}. At the end: ${last.join(", ")}.`);
  series.forEach((s, i) => {
    const only = xs.length === 1;
    if (s.raw && !only) picture.append(svg("path", { d: path(xs, s.raw, x, y), class: `line raw c${i % 8}` }));
    picture.append(svg("path", { d: path(xs, s.y, x, y), class: `line c${i % 8}` }));
    if (only && Number.isFinite(s.y[0])) picture.append(svg("circle", { cx: x(xs[0]), cy: y(s.y[0]), r: 4, class: `dot c${i % 8}` }));
  });
  for (const p of points) {
    if (p.low !== null) picture.append(svg("line", { x1: x(p.x), x2: x(p.x), y1: y(p.low), y2: y(p.high), class: "whisker" }));
    const title = svg("title", {}, `${p.name}: ${percent(p.y)}` + (p.low === null ? "" : ` [${percent(p.low)}, ${percent(p.high)}]`));
    picture.append(svg("circle", { cx: x(p.x), cy: y(p.y), r: 4, class: "point" }, title));
  }
  picture.append(svg("text", { x: WIDE - RIGHT, y: HIGH - 2, "text-anchor": "end" }, "update"));
  const legend = series.map((s, i) => key(`line c${i % 8}`, s.name));
  if (points.length) legend.push(el("li", {}, svgKey(svg("circle", { cx: 12, cy: 5, r: 4, class: "point" })), "held-out games"));
  return figure(chart, picture, legend, () => [["update", ...series.map((s) => s.name)], ...xs.map((v, i) => [v, ...series.map((s) => (s.raw || s.y)[i])])]);
}

function histogram(chart) {
  const edges = chart.x.map(Number);
  const series = chart.series.map((s) => ({ ...s, y: s.y.map(Number) }));
  const high = Math.max(...series.flatMap((s) => s.y));
  const label = `${chart.title}: share of steps in ${edges.length - 1} bins from ${digits(edges[0])} to ${digits(edges.at(-1))}`;
  const { picture, x, y } = axes({ share: true }, [edges[0], edges.at(-1)], [0, high || 1], label);
  series.forEach((s, i) => {
    let d = `M${x(edges[0])} ${y(0)}`;
    s.y.forEach((v, b) => (d += `L${x(edges[b]).toFixed(1)} ${y(v).toFixed(1)}L${x(edges[b + 1]).toFixed(1)} ${y(v).toFixed(1)}`));
    picture.append(svg("path", { d: d + `L${x(edges.at(-1))} ${y(0)}`, class: `line c${i % 8}` }));
  });
  picture.append(svg("text", { x: WIDE - RIGHT, y: HIGH - 2, "text-anchor": "end" }, "advantage"));
  const rows = () => [["from", "to", ...series.map((s) => s.name)], ...series[0].y.map((_, b) => [edges[b], edges[b + 1], ...series.map((s) => s.y[b])])];
  return figure(chart, picture, series.map((s, i) => key(`line c${i % 8}`, s.name)), rows);
}

const svgKey = (...children) => svg("svg", { viewBox: "0 0 24 10", width: 24, height: 10, "aria-hidden": "true" }, ...children);
const key = (kind, name) => el("li", {}, svgKey(svg("path", { d: "M0 5L24 5", class: kind })), plain(name));

function figure(chart, picture, legend, rows) {
  const numbers = el("details", {}, el("summary", {}, "Numbers"));
  numbers.addEventListener("toggle", () => {
    if (!numbers.open || numbers.querySelector("table")) return;
    const [head, ...body] = rows();
    const table = el("table", {}, el("thead", {}, el("tr", {}, ...head.map((name) => el("th", { scope: "col" }, plain(name))))));
    table.append(el("tbody", {}, ...body.map((row) => el("tr", {}, ...row.map((v) => el("td", {}, digits(number(v), 4)))))));
    numbers.append(el("div", { class: "scroll numbers", tabindex: "0", role: "region", "aria-label": chart.title }, table));
  });
  return el("figure", {}, el("figcaption", {}, plain(chart.title)), picture, el("ul", { class: "legend" }, ...legend), numbers);
}

function showCharts() {
  const drawn = run.charts.map((chart) => (chart.kind === "lines" ? lines(chart) : histogram(chart)));
  document.getElementById("charts").replaceChildren(...drawn);
  document.getElementById("curves").hidden = drawn.length === 0;
}
