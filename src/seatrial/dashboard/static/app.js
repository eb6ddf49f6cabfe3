// The page: three views behind the address's #, all text through textContent, so that nothing a run prints is markup.
"use strict";

const main = document.getElementById("main");
const state = document.getElementById("state");
const dark = matchMedia("(prefers-color-scheme: dark)");
let source = null;
// The words of findings/labels.py.
const CAUSE = "cause", FIX = "fix";

// -- building blocks ------------------------------------------------------------------------------------------------

/** An element: make("a", {href: "#/"}, "text", child). Keys that begin with "on" are listeners. */
function make(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

async function ask(path) {
  const answer = await fetch(path);
  const body = await answer.json().catch(() => ({ error: `the server answered ${answer.status}` }));
  if (!answer.ok) throw new Error(body.error || `the server answered ${answer.status}`);
  return body;
}

const missing = "–";
const number = (value, digits = 0, unit = "") => (value === null || value === undefined ? missing : value.toFixed(digits) + unit);
const figure = (value) => (Number.isInteger(value) ? String(value) : Number(value.toPrecision(5)).toString());

function bytes(value) {
  if (value === null || value === undefined) return missing;
  for (const [unit, size] of [["TB", 1e12], ["GB", 1e9], ["MB", 1e6], ["kB", 1e3]]) {
    if (value >= size) return `${Number((value / size).toPrecision(3))} ${unit}`;
  }
  return `${value} B`;
}

function seconds(value) {
  if (value === null || value === undefined) return missing;
  if (value < 60) return `${Number(value.toPrecision(3))} s`;
  const whole = Math.round(value);
  const [h, m, s] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
  return h ? `${h} h ${m} min` : `${m} min ${s} s`;
}

function table(columns, rows, label) {
  const head = make("tr", {}, ...columns.map((c) => make("th", { scope: "col", class: c.class }, c.name)));
  const body = rows.map((row) => make("tr", {}, ...row.map((cell, i) => make("td", { class: columns[i].class }, cell))));
  return make("div", { class: "scroll" }, make("table", { "aria-label": label }, make("thead", {}, head), make("tbody", {}, ...body)));
}

const tile = (label, value) => make("div", { class: "tile" }, make("b", {}, value), make("span", {}, label));

// -- charts ---------------------------------------------------------------------------------------------------------

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function layout(title, unit, x) {
  const axis = { gridcolor: colour("--rule"), zerolinecolor: colour("--rule"), linecolor: colour("--rule"), automargin: true };
  return {
    title: { text: title + (unit ? ` (${unit})` : "") + (x ? ` over ${x}` : ""), font: { size: 14 }, x: 0, xref: "paper" },
    font: { color: colour("--soft"), size: 11, family: "system-ui, sans-serif" },
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", margin: { l: 40, r: 8, t: 34, b: 30 },
    xaxis: { ...axis, tickangle: 0, nticks: 6 },
    yaxis: { ...axis, rangemode: "tozero", range: unit === "%" ? [0, 101] : undefined },
    legend: { orientation: "h", y: -0.18 }, showlegend: true, hovermode: "x unified",
    hoverlabel: { bgcolor: colour("--card"), font: { color: colour("--ink") } },
  };
}

/** Draw or redraw: lines are {name, x, y, dash}. */
function chart(element, title, unit, x, lines, dates = false) {
  if (!window.Plotly) return;
  const traces = lines.map((line, i) => ({
    type: "scatter", mode: line.x.length < 2 ? "markers" : "lines", name: line.name, x: line.x, y: line.y,
    connectgaps: true, line: { width: 1.6, color: colour(`--c${(line.colour ?? i) % 8}`), dash: line.dash },
  }));
  const shape = layout(title, unit, x);
  if (dates) Object.assign(shape.xaxis, { type: "date", tickformat: "%H:%M:%S", nticks: 5 });
  element.setAttribute("role", "img");
  element.setAttribute("aria-label", `${title}: ${lines.map((l) => `${l.name} ends at ${l.y[l.y.length - 1]}`).join(", ")}`);
  Plotly.react(element, traces, shape, { displayModeBar: false, responsive: true, staticPlot: false });
}

const axisNames = { seconds: "seconds", step: "steps", epoch: "epochs", line: "reports" };

function drawPlots(holder, plots) {
  while (holder.children.length < plots.length) holder.append(make("div", { class: "plot" })); // all, before any is sized
  plots.forEach((plot, i) => {
    const element = holder.children[i];
    const lines = plot.lines.map((line, n) => ({
      name: line.name, x: line.points.map((p) => p[0]), y: line.points.map((p) => p[1]),
      dash: line.name.startsWith("B ") ? "dash" : "solid", colour: n,
    }));
    chart(element, plot.title, plot.unit, axisNames[plot.x], lines);
  });
  while (holder.children.length > plots.length) holder.lastChild.remove();
}

// -- live -----------------------------------------------------------------------------------------------------------

function live() {
  const problems = make("div"), cards = make("div"), containers = make("section", {}), machine = make("p", { class: "soft" });
  main.replaceChildren(make("h1", {}, "Live"), machine, problems, cards, containers);
  const seen = new Map(); // uuid → {card, tiles, busy, memory, x, columns}
  let history = [];

  function remember(reading) {
    history.push(reading);
    if (history.length > 600) history.shift();
  }

  function card(gpu) {
    if (!seen.has(gpu.uuid)) {
      const entry = { tiles: make("div", { class: "tiles" }), busy: make("div", { class: "plot" }), more: make("div", { class: "plot" }) };
      const title = make("h2", {}, `GPU ${gpu.mig || gpu.index} `, make("small", {}, `${gpu.name} · ${gpu.uuid.slice(0, 12)}`));
      cards.append(make("section", { "data-uuid": gpu.uuid }, title, entry.tiles, make("div", { class: "plots" }, entry.busy, entry.more)));
      seen.set(gpu.uuid, entry);
    }
    return seen.get(gpu.uuid);
  }

  function drawGpu(gpu) {
    const entry = card(gpu);
    const slow = (gpu.throttle_reasons || []).map((r) => r.replaceAll("_", " ")).join(", ");
    entry.tiles.replaceChildren(
      tile("utilisation", number(gpu.utilization_pct, 0, " %")), tile("SM activity", number(gpu.sm_activity_pct, 1, " %")),
      tile(`of ${bytes(gpu.memory_total_bytes)}`, bytes(gpu.memory_used_bytes)), tile("power", number(gpu.power_w, 0, " W")),
      tile("temperature", number(gpu.temperature_c, 0, " °C")), tile("held back by", slow || "nothing"));
    const past = history.map((h) => [new Date(h.t * 1000), h.gpus.find((g) => g.uuid === gpu.uuid)]).filter((p) => p[1]);
    const line = (name, key, scale = 1) => ({ name, x: past.map((p) => p[0]), y: past.map((p) => (p[1][key] === null ? null : p[1][key] / scale)) });
    chart(entry.busy, "Busy", "%", "", [line("utilisation", "utilization_pct"), line("SM activity", "sm_activity_pct"),
      line("tensor", "tensor_activity_pct"), line("DRAM", "dram_activity_pct")], true);
    chart(entry.more, "Power, temperature, memory", "", "", [line("W", "power_w"), line("°C", "temperature_c"),
      line("GB used", "memory_used_bytes", 1e9)], true);
  }

  function show(reading) {
    const m = reading.machine;
    machine.textContent = `CPU ${number(m.cpu_cores, 1)} of ${m.cpu_count} cores · memory ${bytes(m.memory_used_bytes)} of ${bytes(m.memory_total_bytes)}` +
      (reading.driver_version ? ` · driver ${reading.driver_version}` : "");
    problems.replaceChildren(...reading.problems.map((p) => make("p", { class: "notice" }, p)));
    reading.gpus.forEach(drawGpu);
    for (const [uuid, entry] of seen) // a GPU that is lost, or could not be read: no value instead of the last one
      if (!reading.gpus.some((gpu) => gpu.uuid === uuid)) entry.tiles.replaceChildren(make("p", { class: "notice" }, "no reading"));
    const columns = [{ name: "Container" }, { name: "Image", class: "wide" }, { name: "CPU", class: "num" }, { name: "Memory", class: "num" },
      { name: "/dev/shm", class: "num wide" }, { name: "GPU", class: "num" }, { name: "GPU memory", class: "num" }, { name: "Share", class: "num wide" }];
    const rows = reading.containers.map((c) => [
      c.run_id ? make("a", { href: `#/runs/${c.run_id}` }, c.run_name || c.name) : c.name, c.image || c.engine, number(c.cpu_cores, 2), bytes(c.memory_bytes),
      bytes(c.shm_used_bytes), c.gpus.join(", ") || missing, c.gpus.length ? bytes(c.gpu_memory_bytes) : missing, c.gpus.length ? number(c.gpu_share_pct, 0, " %") : missing]);
    const focus = document.activeElement?.getAttribute?.("href");
    containers.replaceChildren(make("h2", {}, "Containers"), rows.length ? table(columns, rows, "Containers") : make("p", { class: "soft" }, "No container runs here."));
    if (focus && document.activeElement === document.body) containers.querySelector(`a[href="${CSS.escape(focus)}"]`)?.focus();
  }

  let last = null;
  const onReading = (event) => { last = event.detail; remember(last); show(last); };
  addEventListener("reading", onReading);
  ask("api/history").then((past) => { history = [...past, ...history.filter((h) => !past.some((p) => p.t === h.t))]; }).catch(() => {});
  return { stop: () => removeEventListener("reading", onReading), redraw: () => last && show(last) };
}

// -- runs -----------------------------------------------------------------------------------------------------------

function runsView() {
  let page = 0, find = "", chosen = [];
  const list = make("div"), note = make("p", { class: "soft", role: "status" });
  const both = make("button", { type: "button", disabled: true, onclick: () => { location.hash = `#/compare/${chosen[0]}/${chosen[1]}`; } }, "Compare two");
  const search = make("input", { type: "search", placeholder: "Find by name, target or ID", "aria-label": "Find runs" });
  const back = make("button", { type: "button", onclick: () => { page -= 1; load(); } }, "Newer");
  const on = make("button", { type: "button", onclick: () => { page += 1; load(); } }, "Older");
  let typing = 0;
  search.addEventListener("input", () => { clearTimeout(typing); typing = setTimeout(() => { find = search.value; page = 0; load(); }, 200); });
  main.replaceChildren(make("h1", {}, "Runs"), make("section", {}, make("form", { onsubmit: (e) => e.preventDefault() }, search, both), list, make("div", { class: "row" }, back, on, note)));

  function choose(id, box) {
    chosen = box.checked ? [...chosen, id].slice(-2) : chosen.filter((c) => c !== id);
    list.querySelectorAll("input[type=checkbox]").forEach((b) => { b.checked = chosen.includes(b.value); });
    both.disabled = chosen.length !== 2;
  }

  async function load() {
    try {
      const found = await ask(`api/runs?page=${page}&find=${encodeURIComponent(find)}`);
      const columns = [{ name: "" }, { name: "Run" }, { name: "Target" }, { name: "On", class: "wide" }, { name: "GPUs", class: "num wide" }, { name: "Outcome" }, { name: "Time", class: "num" }];
      const rows = found.runs.map((run) => {
        const box = make("input", { type: "checkbox", value: run.id, "aria-label": `Compare ${run.name || run.id}` });
        box.checked = chosen.includes(run.id);
        box.addEventListener("change", () => choose(run.id, box));
        // A run of before has no level: its exit code says what there is to say.
        const level = run.level || (run.cause === "stopped" ? "none" : run.exit_code === 0 ? "good" : "bad");
        const mark = run.ended ? { good: "pass", warning: "warning", bad: "fail" }[level] || "soft" : "soft";
        return [box, make("a", { href: `#/runs/${run.id}` }, run.name || run.id), run.target, run.backend, run.gpus ?? "?", make("span", { class: mark, title: run.outcome }, run.headline || run.outcome), run.ended ? seconds(run.seconds) : "running"];
      });
      list.replaceChildren(rows.length ? table(columns, rows, "Runs") : make("p", { class: "soft" }, find ? "No run fits." : "No runs yet. Start one: seatrial run digits"));
      note.textContent = `${found.total} run${found.total === 1 ? "" : "s"}, page ${found.page + 1} of ${found.pages}`;
      back.disabled = page === 0;
      on.disabled = page + 1 >= found.pages;
    } catch (error) { note.textContent = error.message; }
  }
  load();
  const timer = setInterval(() => { if (!list.contains(document.activeElement)) load(); }, 5000);
  return { stop: () => { clearInterval(timer); clearTimeout(typing); }, redraw: () => {} };
}

function runView(id) {
  const title = make("h1", {}, id), about = make("section", {}), plots = make("div", { class: "plots" });
  const receipt = make("section", {}, make("h2", {}, "Receipt"), make("p", { class: "soft" }, "It is made when the run ends."));
  const receiptLink = make("p", {}, make("a", { href: `receipts/${encodeURIComponent(id)}`, target: "_blank", rel: "noopener" }, "Receipt on a page of its own"));
  const frame = make("iframe", { title: "Receipt", src: `receipts/${encodeURIComponent(id)}`, sandbox: true, loading: "lazy" });
  main.replaceChildren(title, about, make("section", {}, make("h2", {}, "Curves"), plots), logSection(id), receipt);
  let ended = false, shown = null, timer = 0, stopped = false;

  async function load() {
    try {
      const run = await ask(`api/runs/${encodeURIComponent(id)}`);
      if (stopped) return;
      const r = run.receipt, facts = [["run", run.id], ["target", r.header.target], ["on", r.header.backend], ["state", run.ended ? r.outcome.sentence : "running"]];
      const bound = run.ended ? r.diagnosis?.words : run.bound_by || r.diagnosis?.words;
      if (bound) facts.push(["bound by", bound]);
      for (const advice of r.diagnosis?.advice || []) facts.push([FIX, `${advice.change} (${advice.gain})`]);
      for (const finding of r.findings) {
        facts.push([finding.severity, finding.message]);
        if (finding.cause) facts.push([CAUSE, finding.cause]);
        if (finding.fix) facts.push([FIX, finding.fix]);
      }
      title.textContent = run.name || run.id;
      for (const warning of r.warnings) facts.push(["note", warning]);
      about.replaceChildren(make("dl", {}, ...facts.flatMap(([k, v]) => [make("dt", {}, k), make("dd", {}, v)])),
        make("div", { class: "tiles" }, ...Object.entries(run.numbers).map(([k, v]) => tile(k, figure(v)))));
      shown = r.plots;
      drawPlots(plots, shown);
      if (!shown.length) plots.replaceChildren(make("p", { class: "soft" }, "Nothing to draw yet."));
      if (run.ended && !ended) receipt.replaceChildren(make("h2", {}, "Receipt"), receiptLink, frame);
      ended = run.ended;
    } catch (error) { about.replaceChildren(make("p", { class: "notice", role: "alert" }, error.message)); }
    if (!ended && !stopped) timer = setTimeout(load, 5000);
  }
  load();
  return { stop: () => { stopped = true; clearTimeout(timer); }, redraw: () => shown && drawPlots(plots, shown) };
}

/** The log: its end first, earlier pieces on demand, new output as it comes. At most 2 MB are kept on the page. */
function logSection(id) {
  const keep = 2_000_000, pre = make("pre", { class: "log", tabindex: "0", "aria-label": "Output" }), note = make("span", { class: "soft", role: "status" });
  let stream = "stdout", start = 0, end = 0;
  const earlier = make("button", { type: "button", onclick: () => piece(`end=${start}`, true) }, "Earlier");
  const buttons = ["stdout", "stderr"].map((name) => make("button", { type: "button", "aria-pressed": String(name === stream), onclick: () => open(name) }, name));

  async function piece(range, before = false) {
    const of = stream;
    try {
      const got = await ask(`api/runs/${encodeURIComponent(id)}/log?stream=${of}&${range}`);
      if (of !== stream) return;
      const bottom = pre.scrollHeight - pre.scrollTop - pre.clientHeight < 40;
      if (before) { pre.prepend(document.createTextNode(got.text)); start = got.start; }
      else if (got.end > end || !range.startsWith("start")) {
        pre.append(document.createTextNode(got.text));
        if (!range.startsWith("start")) start = got.start;
        end = got.end;
        while (pre.childNodes.length > 1 && pre.textContent.length > keep) { pre.firstChild.remove(); }
        if (bottom) pre.scrollTop = pre.scrollHeight;
      }
      earlier.disabled = start === 0;
      note.textContent = got.size ? `${bytes(got.size)} in all` : "nothing printed";
    } catch (error) { note.textContent = error.message; }
  }
  function open(name) {
    stream = name; start = end = 0;
    pre.replaceChildren();
    buttons.forEach((b) => b.setAttribute("aria-pressed", String(b.textContent === name)));
    piece("");
  }
  open(stream);
  const timer = setInterval(() => { if (!pre.isConnected) clearInterval(timer); else piece(`start=${end}`); }, 2000);
  return make("section", {}, make("h2", {}, "Output"), make("div", { class: "row" }, ...buttons, earlier, note), pre);
}

function compareView(a, b) {
  const holder = make("div"), plots = make("div", { class: "plots" });
  let shown = null;
  main.replaceChildren(make("h1", {}, "Two runs side by side"), make("section", {}, holder), make("section", {}, make("h2", {}, "Curves"), plots));
  ask(`api/compare?a=${encodeURIComponent(a)}&b=${encodeURIComponent(b)}`).then((found) => {
    const head = (side, run) => make("a", { href: `#/runs/${run.id}` }, `${side}: ${run.name || run.id}`);
    const columns = [{ name: "", class: "label" }, { name: head("A", found.a) }, { name: head("B", found.b) }, { name: "B vs. A" }];
    holder.replaceChildren(table(columns, found.rows.map((r) => [r.label, r.a ?? missing, r.b ?? missing, r.change ?? ""]), "Comparison"));
    shown = found.plots;
    drawPlots(plots, shown);
    if (!shown.length) plots.replaceChildren(make("p", { class: "soft" }, "They have no curve in common."));
  }).catch((error) => holder.replaceChildren(make("p", { class: "notice", role: "alert" }, error.message)));
  return { stop: () => {}, redraw: () => shown && drawPlots(plots, shown) };
}

// -- which view, and the stream -------------------------------------------------------------------------------------

let view = { stop: () => {}, redraw: () => {} };

function go() {
  view.stop();
  const [, where = "", one, two] = location.hash.split("/").map(decodeURIComponent);
  if (where === "runs" && one) view = runView(one);
  else if (where === "runs") view = runsView();
  else if (where === "compare" && one && two) view = compareView(one, two);
  else view = live();
  document.querySelectorAll(".bar nav a").forEach((link) => {
    const here = link.getAttribute("href") === (where === "" ? "#/" : "#/runs");
    if (here) link.setAttribute("aria-current", "page"); else link.removeAttribute("aria-current");
  });
}

function connect() {
  let came = Date.now(), between = 0; // milliseconds
  const say = (text, bad) => { state.textContent = text; state.className = bad ? "bad" : ""; };
  source = new EventSource("api/events");
  source.onopen = () => { came = Date.now(); say("live", false); };
  source.onerror = () => say("no connection; trying again", true);
  source.onmessage = (event) => {
    between = Date.now() - came, came = Date.now();
    if (source.readyState === EventSource.OPEN) say("live", false);
    dispatchEvent(new CustomEvent("reading", { detail: JSON.parse(event.data) }));
  };
  setInterval(() => { // what is shown is old: the driver hangs, or the server does
    const silent = Date.now() - came;
    if (source.readyState === EventSource.OPEN && silent > Math.max(10000, 3 * between)) say(`no new reading for ${Math.round(silent / 1000)} s`, true);
  }, 2000);
}

addEventListener("hashchange", () => { if (location.hash !== "#main") { go(); main.focus(); } });
dark.addEventListener("change", () => view.redraw());
go();
connect();
