// The charts of a study's page, drawn by plotly.js from the JSON beside it.
"use strict";

const study = JSON.parse(document.getElementById("study").textContent);
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const better = (one, other) => (study.lower ? one < other : one > other);
const done = study.trials.filter((trial) => trial.state === "done");
const best = done.reduce((a, b) => (a === null || better(b.value, a.value) ? b : a), null);

function label(trial) {
  const settings = study.axes.map((axis, i) => `${axis.name} ${trial.settings[i]}`).join(", ");
  return `trial ${trial.number}: ${study.metric} ${trial.value.toPrecision(4)}<br>${settings}${trial.state === "done" ? "" : `<br>${trial.state}`}`
    .replace(/</g, "&lt;").replace(/&lt;br>/g, "<br>");
}

function layout(more) {
  const axis = { gridcolor: colour("--rule"), zerolinecolor: colour("--rule"), linecolor: colour("--rule"), automargin: true };
  return {
    font: { color: colour("--soft"), size: 12, family: "system-ui, sans-serif" },
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    margin: { l: 50, r: 16, t: 8, b: 40 }, height: 300, showlegend: false, hovermode: "closest",
    hoverlabel: { bgcolor: colour("--card"), bordercolor: colour("--rule"), font: { color: colour("--ink") } },
    ...more, xaxis: { ...axis, ...(more.xaxis || {}) }, yaxis: { ...axis, ...(more.yaxis || {}) },
  };
}

function draw(id, traces, shape) {
  const element = document.getElementById(id);
  if (element) Plotly.react(element, traces, layout(shape), { displayModeBar: false, responsive: true });
}

// Colours from worst to best of the values that are shown.
function shade(value) {
  const values = done.map((trial) => trial.value);
  const low = Math.min(...values), high = Math.max(...values);
  const share = high > low ? (value - low) / (high - low) : 1;
  return study.lower ? 1 - share : share;
}

function history() {
  const ended = study.trials.filter((trial) => trial.state !== "running");
  const x = [], y = [];
  let so_far = null;
  for (const trial of ended) {
    if (trial.state === "done" && (so_far === null || better(trial.value, so_far))) so_far = trial.value;
    if (so_far !== null) { x.push(trial.number); y.push(so_far); }
  }
  const dots = (state, symbol, name) => {
    const some = ended.filter((trial) => (trial.state === "done") === state);
    return {
      type: "scatter", mode: "markers", x: some.map((t) => t.number), y: some.map((t) => t.value), name,
      text: some.map(label), hoverinfo: "text", marker: { symbol, size: 8, color: colour(state ? "--c0" : "--c8") },
    };
  };
  draw("history", [
    { type: "scatter", mode: "lines", line: { shape: "hv", color: colour("--c1"), width: 2 }, x, y, hoverinfo: "skip", name: "best so far" },
    dots(true, "circle", "ended"), dots(false, "circle-open", "pruned or stopped"),
  ], { xaxis: { title: { text: "trial" } }, yaxis: { title: { text: study.metric } }, showlegend: true, legend: { orientation: "h", y: 1.02, yanchor: "bottom" } });
}

// Where a value lies on its axis, 0 to 1.
function place(axis, text, all) {
  if (axis.values) return axis.values.length > 1 ? axis.values.indexOf(text) / (axis.values.length - 1) : 0.5;
  const scale = axis.log ? (v) => Math.log(Number(v)) : Number;
  const numbers = all.map(scale);
  const low = Math.min(...numbers), high = Math.max(...numbers);
  return high > low ? (scale(text) - low) / (high - low) : 0.5;
}

function ticks(axis, all) {
  if (axis.values) return axis.values.map((value) => [place(axis, value, all), value]);
  const numbers = all.map(Number);
  const low = Math.min(...numbers), high = Math.max(...numbers);
  if (!(high > low)) return [[0.5, String(low)]];
  const middle = axis.log ? Math.sqrt(low * high) : (low + high) / 2;
  return [[0, low], [0.5, middle], [1, high]].map(([at, value]) => [at, Number(value.toPrecision(3)).toString()]);
}

// An axis for each setting and one for the metric, a line for each trial.
function coordinates() {
  const axes = [...study.axes, { name: study.metric, log: false, values: null }];
  const cells = (trial) => [...trial.settings, String(trial.value)];
  const all = axes.map((_, i) => study.trials.map((trial) => cells(trial)[i]));
  const order = [...study.trials].sort((a, b) => (a.state === "done") - (b.state === "done") || shade(a.value) - shade(b.value));
  const traces = order.map((trial) => ({
    type: "scatter", mode: "lines+markers", x: axes.map((_, i) => i), y: axes.map((axis, i) => place(axis, cells(trial)[i], all[i])),
    text: axes.map(() => label(trial)), hoverinfo: "text", marker: { size: 5 },
    line: { width: trial === best ? 3.5 : 1.4 },
    opacity: trial === best ? 1 : trial.state === "done" ? 0.35 + 0.5 * shade(trial.value) : 0.25,
  }));
  order.forEach((trial, i) => {
    traces[i].line.color = traces[i].marker.color = trial === best ? colour("--c1") : colour(trial.state === "done" ? "--c0" : "--c8");
  });
  const notes = axes.flatMap((axis, i) => ticks(axis, all[i]).map(([y, text]) => ({
    x: i, y, text, showarrow: false, xanchor: "right", xshift: -7, font: { size: 11, color: colour("--ink") }, bgcolor: colour("--card"), opacity: 0.85,
  })));
  draw("coordinates", traces, {
    height: 340, annotations: notes, margin: { l: 60, r: 30, t: 12, b: 40 },
    xaxis: { tickvals: axes.map((_, i) => i), ticktext: axes.map((axis) => axis.name), zeroline: false, range: [-0.25, axes.length - 0.9] },
    yaxis: { visible: false, range: [-0.08, 1.08] },
  });
}

function curves() {
  const some = study.trials.filter((trial) => trial.reports.length);
  draw("curves", some.map((trial) => ({
    type: "scatter", mode: trial.reports.length > 1 ? "lines" : "markers", x: trial.reports.map((r) => r[0]), y: trial.reports.map((r) => r[1]),
    text: trial.reports.map(() => label(trial)), hoverinfo: "text+y", opacity: trial === best ? 1 : 0.55,
    line: { width: trial === best ? 3 : 1.3, color: colour(trial === best ? "--c1" : trial.state === "done" ? "--c0" : "--c8") },
    marker: { color: colour("--c8"), size: 4 },
  })), { xaxis: { title: { text: "report" } }, yaxis: { title: { text: study.metric } } });
}

function importance() {
  const shares = [...study.importance].reverse();
  const names = shares.map((one) => one[0]);
  draw("importance", [{
    type: "bar", orientation: "h", y: names, x: shares.map((one) => one[1]), marker: { color: colour("--c0") },
    text: shares.map((one) => `${Math.round(100 * one[1])} %`), textposition: "auto", hoverinfo: "skip",
  }], { xaxis: { range: [0, 1], tickformat: ".0%" }, yaxis: { type: "category" }, bargap: 0.4, height: 60 + 44 * names.length });
}

function all() {
  history(); coordinates(); curves(); importance();
}

all();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", all);
