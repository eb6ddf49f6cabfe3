// Charts as receipts have them (receipt/render/svg.py): the same classes, sizes of their own, and values where one points.
import { make } from "./parts.js";

const NS = "http://www.w3.org/2000/svg";
const HEIGHT = 216, LEFT = 46, RIGHT = 12, TOP = 10, BOTTOM = 40;
const AXES = { seconds: "seconds", step: "step", epoch: "epoch", line: "report", rate: "requests/s", time: "" };

const clock = (x) => new Date(x * 1000).toTimeString().slice(0, 8);

function svg(name, attributes, text) {
  const element = document.createElementNS(NS, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  return element;
}

function short(value) {
  for (const [unit, size] of [["G", 1e9], ["M", 1e6], ["k", 1e3]]) if (Math.abs(value) >= size) return Number((value / size).toPrecision(3)) + unit;
  return String(Number(value.toPrecision(3)));
}

/** Labels of neighbouring ticks, with as many digits as tell them apart. */
function labels(marks) {
  const words = marks.map(short);
  if (new Set(words).size === words.length) return words;
  const digits = Math.max(0, -Math.floor(Math.log10(marks[1] - marks[0]) + 1e-6));
  return marks.map((one) => one.toFixed(digits));
}

function spread(low, high) {
  return high > low ? [low, high] : [low - (Math.abs(low) * 0.1 || 1), high + (Math.abs(high) * 0.1 || 1)];
}

/** Round numbers (1, 2 or 5 times a power of ten) that enclose the range. */
function ticks(low, high, about = 5) {
  const rough = (high - low) / about, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((one) => one >= rough * 0.999);
  const found = [];
  for (let i = Math.floor(low / step); i <= Math.ceil(high / step); i += 1) found.push(Number((i * step).toPrecision(12)));
  return found;
}

/** Put a chart into its holder, or draw it anew there. plot: {title, unit, x, lines: [{name, points, classes, what, value}]}. */
export function chart(holder, plot, window = null) {
  holder.plot = plot;
  holder.shaded = window;
  if (!holder.watched) {
    holder.watched = new ResizeObserver(() => { if (Math.abs(holder.clientWidth - (holder.drawn || 0)) > 4) draw(holder); });
    holder.watched.observe(holder);
  }
  draw(holder);
}

function draw(holder) {
  const { plot, shaded } = holder, width = Math.max(240, holder.clientWidth || 376);
  holder.drawn = holder.clientWidth;
  const lines = plot.lines.map((line) => ({ ...line, points: line.points.filter((p) => p[1] !== null) })).filter((line) => line.points.length);
  const words = new Map();
  const legend = make("ul", {}, ...lines.map((line) => {
    const value = make("b", {}, line.value ? `${line.value}${plot.unit ? ` ${plot.unit}` : ""}` : "");
    const what = make("span", {}, line.what || "");
    words.set(line, [what, value]);
    return make("li", {}, make("span", { class: `key ${line.classes}` }), `${line.name} `, what, value);
  }));
  const title = make("h3", {}, plot.title + (plot.unit ? ` (${plot.unit})` : ""));
  const picture = lines.length ? drawing(plot, lines, width, shaded, words) : make("p", { class: "soft" }, "no reading");
  holder.replaceChildren(title, legend, picture);
}

function drawing(plot, lines, width, shaded, words) {
  const xs = lines.flatMap((line) => line.points.map((p) => p[0])), ys = lines.flatMap((line) => line.points.map((p) => p[1]));
  const over_time = plot.x === "seconds" || plot.x === "time", floor = HEIGHT - BOTTOM;
  const least = xs.reduce((a, b) => Math.min(a, b)), most = xs.reduce((a, b) => Math.max(a, b));
  const [left, right] = spread(plot.x === "seconds" ? 0 : least, most);
  const bottom = ys.reduce((a, b) => Math.min(a, b)), top = ys.reduce((a, b) => Math.max(a, b));
  const low = over_time ? Math.min(0, bottom) : bottom;
  const marks = plot.unit === "%" ? [0, 25, 50, 75, 100] : ticks(...(low >= 0 && low <= top / 2 ? spread(0, top) : spread(low, top)));
  const down = Math.min(marks[0], low), up = Math.max(marks[marks.length - 1], top);
  const at_x = (x) => LEFT + ((x - left) / (right - left)) * (width - LEFT - RIGHT);
  const at_y = (y) => floor - ((y - down) / (up - down)) * (floor - TOP);
  const told = lines.map((line) => `${line.name} last ${short(line.points[line.points.length - 1][1])}`).join(", ");
  const picture = svg("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", "aria-label": `${plot.title} over ${plot.x}: ${told}` });
  if (plot.x === "seconds" && shaded) {
    const [a, b] = [shaded[0], shaded[0] + shaded[1]].map((x) => at_x(Math.min(Math.max(x, left), right)).toFixed(1));
    picture.append(svg("path", { class: "window", d: `M${a} ${TOP}H${b}V${floor}H${a}z` }));
  }
  labels(marks).forEach((words, i) => {
    const y = marks[i];
    picture.append(svg("path", { class: "grid", d: `M${LEFT} ${at_y(y).toFixed(1)}H${width - RIGHT}` }));
    picture.append(svg("text", { x: LEFT - 6, y: (at_y(y) + 3.5).toFixed(1), "text-anchor": "end" }, words));
  });
  const along = ticks(left, right, Math.max(2, Math.floor((width - LEFT - RIGHT) / 90))).filter((one) => one >= left && one <= right);
  labels(along).forEach((words, i) => {
    const x = along[i];
    const anchor = at_x(x) > width - 30 ? "end" : "middle";
    picture.append(svg("text", { x: at_x(x).toFixed(1), y: floor + 16, "text-anchor": anchor }, plot.x === "time" ? clock(x) : words));
  });
  picture.append(svg("text", { x: ((LEFT + width - RIGHT) / 2).toFixed(1), y: HEIGHT - 6, "text-anchor": "middle" }, AXES[plot.x] ?? plot.x));
  for (const line of lines) {
    const points = line.points.map((p) => [at_x(p[0]).toFixed(1), at_y(p[1]).toFixed(1)]);
    if (points.length > 1) picture.append(svg("path", { class: `curve ${line.classes}`, d: `M${points.map((p) => p.join(" ")).join("L")}` }));
    if (points.length <= 12) for (const [x, y] of points) picture.append(svg("circle", { class: line.classes, cx: x, cy: y, r: 2.2 }));
  }
  point(picture, plot, lines, words, { left, right, width, floor, at_x });
  return picture;
}

/** While one points at the chart its legend tells the values there. */
function point(picture, plot, lines, words, { left, right, width, floor, at_x }) {
  const rule = svg("path", { class: "at", d: "" });
  const rest = new Map(lines.map((line) => [line, words.get(line).map((element) => element.textContent)]));
  picture.append(rule);
  picture.addEventListener("pointermove", (event) => {
    const box = picture.getBoundingClientRect();
    const x = left + (((event.clientX - box.left) / box.width) * width - LEFT) / (width - LEFT - RIGHT) * (right - left);
    for (const line of lines) {
      const near = line.points.reduce((a, b) => (Math.abs(b[0] - x) < Math.abs(a[0] - x) ? b : a));
      const [what, value] = words.get(line);
      what.textContent = `at ${plot.x === "time" ? clock(near[0]) : short(near[0])} `;
      value.textContent = Number(near[1].toPrecision(5)) + (plot.unit ? ` ${plot.unit}` : "");
      if (line === lines[0]) rule.setAttribute("d", `M${at_x(near[0]).toFixed(1)} ${TOP}V${floor}`);
    }
  });
  picture.addEventListener("pointerleave", () => {
    rule.setAttribute("d", "");
    for (const line of lines) words.get(line).forEach((element, i) => { element.textContent = rest.get(line)[i]; });
  });
}

/** As many charts as plots, in a grid without an empty cell. */
export function charts(holder, plots, window = null) {
  while (holder.children.length > plots.length) holder.lastChild.remove();
  while (holder.children.length < plots.length) holder.append(make("figure", { class: "chart" }));
  plots.forEach((plot, i) => chart(holder.children[i], plot, window));
}
