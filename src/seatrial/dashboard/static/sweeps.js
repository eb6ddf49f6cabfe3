// Sweeps: a list, and each one's page in a frame as tall as it is.
import { ask, chip, make, missing, notice, redraw, table } from "./parts.js";
import { tall } from "./frame.js";

export function sweeps(main) {
  const list = make("section", {}, make("p", { class: "soft" }, "…"));
  let stopped = false, timer = 0;
  main.replaceChildren(make("h1", {}, "Sweeps"), list);
  async function load() {
    try {
      const found = await ask("api/sweeps");
      if (stopped) return;
      const columns = [{ name: "Sweep", class: "run" }, { name: "Status", class: "state" }, { name: "Best", class: "num" }, { name: "Project", class: "wide" }];
      const rows = found.map((one) => [
        make("span", {}, make("a", { href: `#/sweeps/${one.key}/${encodeURIComponent(one.name)}` }, one.name), make("span", { class: "soft" }, one.title), make("span", { class: "soft" }, one.standing)),
        one.chip ? chip(one.chip) : missing, one.best ?? missing, one.project]);
      redraw(list, rows.length ? table(columns, rows, "Sweeps") : make("p", { class: "empty" }, "No sweeps yet. Start one: seatrial sweep digits --set batch_size=32,64"));
    } catch (error) { if (!stopped) redraw(list, notice(error.message)); }
    if (!stopped) timer = setTimeout(load, 5000);
  }
  load();
  return () => { stopped = true; clearTimeout(timer); };
}

export function sweep(main, key, name) {
  main.replaceChildren(make("h1", {}, name), tall(`sweeps/${encodeURIComponent(key)}/${encodeURIComponent(name)}`, "Sweep"));
  return () => {};
}
