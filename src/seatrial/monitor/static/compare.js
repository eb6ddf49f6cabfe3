// Runs side by side: one colour each, numbers against the first, better and worse in words and colour.
import { ask, make, missing, notice, table } from "./parts.js";
import { charts } from "./charts.js";

export function compare(main, ids) {
  const holder = make("div"), plots = make("div", { class: "plots" }), curves = make("section", {}, make("h2", {}, "Curves"), plots);
  main.replaceChildren(make("h1", {}, "Runs side by side"), holder, curves);
  let stopped = false;
  const query = ids.map((id) => `run=${encodeURIComponent(id)}`).join("&");
  ask(`api/compare?${query}`).then((found) => {
    if (stopped) return;
    const key = (i) => make("span", { class: `key line${i % 8}` });
    const head = (run, i) => make("span", {}, key(i), make("a", { href: `#/runs/${run.id}` }, run.label));
    const columns = (kind) => [{ name: "", row: true }, ...found.runs.map((run, i) => ({ name: head(run, i), class: kind }))];
    const cell = (one) => make("span", {}, one.best ? make("b", {}, one.text ?? missing) : one.text ?? missing,
      one.change ? make("small", { class: one.verdict || "soft" }, one.change + (one.verdict ? ` ${one.verdict}` : "")) : null);
    const rows = (told, show) => told.map((row) => [row.label, ...row.cells.map(show)]);
    holder.replaceChildren(
      make("section", {}, make("h2", {}, "Numbers"), make("p", { class: "soft small" }, `Changes are against ${found.runs[0].label}; the best of a row is bold.`), table(columns("num"), rows(found.numbers, cell), "Numbers")),
      make("section", {}, make("h2", {}, "What ran"), table(columns(""), rows(found.facts, (one) => one.text ?? missing), "What ran")));
    charts(plots, found.plots.map((plot) => ({ ...plot, lines: plot.lines.map((line, i) => ({ ...line, classes: `line${plot.runs[i] % 8}${plot.dashes[i] ? ` dash${plot.dashes[i]}` : ""}` })) })));
    if (!found.plots.length) plots.replaceChildren(make("p", { class: "soft" }, "They have no curve in common."));
  }).catch((error) => holder.replaceChildren(notice(error.message)));
  return () => { stopped = true; };
}
