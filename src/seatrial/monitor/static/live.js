// The first view: what runs now, then GPUs and containers where there are any, then what ended last.
import { ask, bytes, chip, make, missing, notice, number, redraw, table, tile } from "./parts.js";
import { chart } from "./charts.js";
import { runsTable } from "./runs.js";

let history = []; // of this page, and what the server had before

function remember(reading) {
  history.push({ t: reading.t, gpus: reading.gpus });
  if (history.length > 600) history.shift();
}

const plainly = ["No GPU"]; // where a machine has none, that is no warning

export function live(main) {
  const running = make("div"), cards = make("div"), containers = make("div"), problems = make("div");
  const machine = make("p", { class: "soft small" }), ended = make("section", {}, make("h2", {}, "Recently ended"), make("p", { class: "soft" }, "…"));
  main.replaceChildren(make("h1", {}, "Live"), problems, running, cards, containers, ended, machine);
  const seen = new Map(); // uuid → {section, tiles, busy, more}
  const known = new Map(); // run → {section, head, tiles, figure}
  let stopped = false, timer = 0;

  function card(run) {
    if (!known.has(run.id)) {
      const entry = { head: make("div"), tiles: make("div", { class: "tiles" }), figure: make("figure", { class: "chart" }) };
      entry.section = make("section", {}, entry.head, entry.tiles, entry.figure);
      known.set(run.id, entry);
    }
    return known.get(run.id);
  }

  async function drawRun(run) {
    const entry = card(run);
    redraw(entry.head, make("h2", {}, make("a", { href: `#/runs/${run.id}` }, run.name || run.target || run.id)),
      make("p", {}, chip(run.chip), ` ${run.time ?? ""} · ${run.project} · ${run.backend}`));
    if (!entry.tiles.children.length) // the whole of it takes longer
      entry.tiles.replaceChildren(...["accuracy", "loss", "time"].filter((key) => run[key]).map((key) => tile(key, run[key])));
    const told = await ask(`api/runs/${encodeURIComponent(run.id)}`);
    if (stopped) return;
    entry.tiles.replaceChildren(...told.tiles.filter(([label]) => label !== "wall time").slice(0, 6).map(([label, value]) => tile(label, value)));
    const first = told.plots[0];
    entry.figure.hidden = !first;
    if (first) chart(entry.figure, first, told.window);
  }

  async function load() {
    try {
      const [now, last] = await Promise.all([ask("api/runs?status=running"), ask("api/runs")]);
      if (stopped) return;
      let drawing = [];
      const shown = now.runs.slice(0, 6), ids = new Set(shown.map((run) => run.id));
      for (const [id, entry] of known) if (!ids.has(id)) { entry.section.remove(); known.delete(id); }
      if (shown.length) {
        if (!running.querySelector(".cards")) running.replaceChildren(make("div", { class: "cards" }));
        shown.forEach((run) => running.firstChild.append(card(run).section));
        drawing = shown.map((run) => drawRun(run).catch((error) => card(run).head.replaceChildren(notice(error.message))));
      } else running.replaceChildren(make("section", { class: "empty" }, "Nothing is running. Start something: seatrial run digits"));
      const done = last.runs.filter((run) => run.ended).slice(0, 5);
      redraw(ended, make("h2", {}, "Recently ended"), done.length ? runsTable(done, { label: "Recently ended" }) : make("p", { class: "soft" }, "No run has ended yet."));
      await Promise.all(drawing);
    } catch (error) { if (!stopped) redraw(running, notice(error.message)); }
    if (!stopped) timer = setTimeout(load, 2000);
  }

  function gpuCard(gpu) {
    if (!seen.has(gpu.uuid)) {
      const label = `GPU ${gpu.mig || gpu.index}`;
      const entry = { tiles: make("div", { class: "tiles" }), busy: make("figure", { class: "chart" }), more: make("figure", { class: "chart" }) };
      entry.section = make("section", {}, make("h2", {}, `${label} `, make("small", {}, `${gpu.name} · ${gpu.uuid}`)), entry.tiles, make("div", { class: "plots" }, entry.busy, entry.more));
      cards.append(entry.section);
      seen.set(gpu.uuid, entry);
    }
    return seen.get(gpu.uuid);
  }

  function drawGpu(gpu) {
    const entry = gpuCard(gpu);
    const slow = (gpu.throttle_reasons || []).map((r) => r.replaceAll("_", " ")).join(", ");
    entry.tiles.replaceChildren(
      tile("utilisation", number(gpu.utilization_pct, 0, " %")), tile("SM activity", number(gpu.sm_activity_pct, 1, " %")),
      tile(`of ${bytes(gpu.memory_total_bytes)}`, bytes(gpu.memory_used_bytes)), tile("power", number(gpu.power_w, 0, " W")),
      tile("temperature", number(gpu.temperature_c, 0, " °C")), tile("held back by", slow || "nothing"));
    const past = history.map((h) => [h.t, h.gpus.find((g) => g.uuid === gpu.uuid)]).filter((p) => p[1]);
    const line = (name, key, i, scale = 1) => ({ name, classes: `line${i}`, points: past.map((p) => [p[0], p[1][key] ?? null]).filter((p) => p[1] !== null).map((p) => [p[0], p[1] / scale]) });
    chart(entry.busy, { title: "Busy", unit: "%", x: "time", lines: [line("utilisation", "utilization_pct", 0), line("SM activity", "sm_activity_pct", 1),
      line("tensor", "tensor_activity_pct", 2), line("DRAM", "dram_activity_pct", 3)] });
    chart(entry.more, { title: "Power, temperature, memory", unit: "", x: "time", lines: [line("W", "power_w", 0), line("°C", "temperature_c", 1),
      line("GB used", "memory_used_bytes", 2, 1e9)] });
  }

  function show(reading) {
    const m = reading.machine, none = reading.problems.filter((p) => plainly.some((words) => p.startsWith(words)));
    machine.textContent = `This machine: CPU ${number(m.cpu_cores, 1)} of ${m.cpu_count} cores · memory ${bytes(m.memory_used_bytes)} of ${bytes(m.memory_total_bytes)}` +
      (reading.driver_version ? ` · driver ${reading.driver_version}` : "") + none.map((p) => ` · ${p}`).join("");
    problems.replaceChildren(...reading.problems.filter((p) => !none.includes(p)).map((p) => make("p", { class: "notice" }, p)));
    reading.gpus.forEach(drawGpu);
    for (const [uuid, entry] of seen) // a GPU that is lost, or could not be read: no value instead of the last one
      if (!reading.gpus.some((gpu) => gpu.uuid === uuid)) entry.tiles.replaceChildren(make("p", { class: "notice" }, "no reading"));
    drawContainers(reading);
  }

  function drawContainers(reading) {
    if (!reading.containers.length) { containers.replaceChildren(); return; }
    const gpus = reading.gpus.length > 0;
    const figures = ["CPU", "Memory", "/dev/shm", ...(gpus ? ["GPU", "GPU memory", "Share"] : [])];
    const columns = [{ name: "Container", class: "run" }, { name: "Image", class: "project", label: "Image" }, ...figures.map((name) => ({ name, class: "num", label: name }))];
    const rows = reading.containers.map((c) => [
      c.run_id ? make("a", { href: `#/runs/${c.run_id}` }, c.run_name || c.name) : c.name, c.image || c.engine, number(c.cpu_cores, 2), bytes(c.memory_bytes), bytes(c.shm_used_bytes),
      ...(gpus ? [c.gpus.join(", ") || missing, c.gpus.length ? bytes(c.gpu_memory_bytes) : missing, c.gpus.length ? number(c.gpu_share_pct, 0, " %") : missing] : [])]);
    redraw(containers, make("section", {}, make("h2", {}, "Containers"), table(columns, rows, "Containers", "runs")));
  }

  let latest = null;
  const onReading = (event) => { latest = event.detail; remember(latest); show(latest); };
  addEventListener("reading", onReading);
  ask("api/history").then((past) => { history = [...past, ...history.filter((h) => !past.some((p) => p.t === h.t))]; }).catch(() => {});
  load();
  return () => { stopped = true; clearTimeout(timer); removeEventListener("reading", onReading); };
}
