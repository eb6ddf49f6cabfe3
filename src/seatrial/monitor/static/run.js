// One run: its verdict, tiles, curves, log, and what its receipt has beyond them.
import { ask, bytes, chip, make, notice, tile } from "./parts.js";
import { charts } from "./charts.js";
import { tall } from "./frame.js";

export function run(main, id) {
  const title = make("h1", {}, id), about = make("header", { class: "card" }), plots = make("div", { class: "plots" }), shade = make("p", { class: "soft small" });
  const curves = make("section", {}, make("h2", {}, "Curves"), plots, shade);
  const receipt = make("div", {}, make("section", {}, make("h2", {}, "Receipt"), make("p", { class: "soft" }, "It is made when the run ends.")));
  const why = make("section", { hidden: true }), found = make("section", { hidden: true });
  const { section: log, stop: stopLog, open } = logSection(id);
  main.replaceChildren(title, about, why, found, curves, log, receipt);
  let ended = false, timer = 0, stopped = false;
  [curves, log, receipt].forEach((part) => { part.hidden = true; }); // until there is such a run

  async function load() {
    try {
      const told = await ask(`api/runs/${encodeURIComponent(id)}`);
      if (stopped) return;
      title.textContent = told.name || told.id;
      [curves, log, receipt].forEach((part) => { part.hidden = false; });
      about.replaceChildren(...verdict(told));
      found.hidden = !told.found.length;
      found.replaceChildren(make("h2", {}, "Found so far"), make("dl", {}, ...told.found.flatMap(([label, value]) => [make("dt", {}, label), make("dd", {}, value)])));
      charts(plots, told.plots, told.window);
      shade.textContent = told.shade;
      if (!told.plots.length) plots.replaceChildren(make("p", { class: "soft" }, "Nothing to draw yet."));
      if (told.ended && !ended) {
        receipt.replaceChildren(...frame(id));
        if (told.traceback.length) why.replaceChildren(make("h2", {}, "Why it failed"), make("pre", {}, told.traceback.join("\n")));
        else if (told.failed) open("stderr"); // what it said last is there
        why.hidden = !told.traceback.length;
      }
      ended = told.ended;
    } catch (error) { if (!stopped) about.replaceChildren(notice(error.message)); }
    if (!ended && !stopped) timer = setTimeout(load, 3000);
  }
  load();
  return () => { stopped = true; clearTimeout(timer); stopLog(); };
}

function verdict(told) {
  const words = make("p", {}, ...told.unmet.map((line) => make("b", {}, line)), told.words);
  const facts = [told.project, told.id, told.ended ? told.ago : null].filter(Boolean).join(" · ");
  return [
    make("div", { class: "brand" }, make("span", {}, told.headline), make("span", {}, facts)), make("div", { class: "verdict" }, chip(told.chip), words),
    told.bound_by ? make("p", { class: "soft" }, `Bound by ${told.bound_by}`) : null, ...told.warnings.map((line) => make("p", { class: "notice" }, line)),
    make("div", { class: "tiles" }, ...told.tiles.map(([label, value]) => tile(label, value))),
  ].filter(Boolean);
}

/** The receipt without what stands above. */
function frame(id) {
  const address = `receipts/${encodeURIComponent(id)}`;
  const link = make("a", { href: address, target: "_blank", rel: "noopener" }, "The receipt on a page of its own");
  return [tall(`${address}?embedded=1`, "Receipt"), make("p", { class: "small" }, link)];
}

/** The log: its end first, earlier pieces on demand, new output as it comes. At most 2 MB are kept on the page. */
function logSection(id) {
  const keep = 2_000_000, pre = make("pre", { class: "log", tabindex: "0", role: "region", "aria-label": "Output" }), note = make("span", { class: "soft", role: "status" });
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
      earlier.hidden = start === 0;
      pre.hidden = !got.size;
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
  const timer = setInterval(() => piece(`start=${end}`), 2000);
  const group = make("div", { class: "group", role: "group", "aria-label": "Stream" }, ...buttons);
  const section = make("section", {}, make("h2", {}, "Output"), make("div", { class: "row" }, group, earlier, note), pre);
  return { section, open, stop: () => clearInterval(timer) };
}
