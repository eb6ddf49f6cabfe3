// The list of runs: status chips, numbers that go on, sorting, filters, and runs chosen for a comparison.
import { ask, chip, make, missing, notice, redraw, table } from "./parts.js";

const STATUSES = [["", "All"], ["running", "Running"], ["good", "Passed"], ["warning", "In doubt"], ["bad", "Failed"], ["none", "Stopped"]];
const MOST = 8; // runs of a comparison: as many as there are colours

const wanted = { find: "", status: "", project: "", sort: "started", backwards: false, page: 0 }; // kept from view to view

/** Options: label, chosen (IDs), choose, sort: {by, backwards, set}, projects (a column of them), gpus (likewise). */
export function runsTable(runs, { label, chosen = null, choose = null, sort = null, projects = true, gpus = false }) {
  const sorted = (key) => (sort && sort.by === key ? (sort.backwards ? "descending" : "ascending") : null);
  const head = (name, key) => (sort ? make("button", { type: "button", "data-key": `sort-${key}`, onclick: () => sort.set(key) }, name + (sort.by === key ? (sort.backwards ? " ▾" : " ▴") : "")) : name);
  const columns = [
    ...(chosen ? [{ name: "", class: "pick" }] : []), { name: head("Run", "name"), class: "run", sorted: sorted("name") },
    { name: head("Status", "status"), class: "state", sorted: sorted("status") },
    ...(projects ? [{ name: head("Project", "project"), class: "project", label: "project", sorted: sorted("project") }] : []),
    ...(gpus ? [{ name: "GPUs", class: "num wide" }] : []),
    { name: head("Started", "started"), class: "started", label: "started", sorted: sorted("started") }, { name: head("Time", "seconds"), class: "num", label: "time", sorted: sorted("seconds") },
    { name: head("Loss", "loss"), class: "num", label: "loss", sorted: sorted("loss") }, { name: head("Accuracy", "accuracy"), class: "num", label: "accuracy", sorted: sorted("accuracy") }];
  const rows = runs.map((run) => {
    const box = chosen && make("input", { type: "checkbox", value: run.id, "data-key": `pick-${run.id}`, "aria-label": `Compare ${run.name || run.id}`, onchange: (e) => choose(run.id, e.target.checked) });
    if (box) box.checked = chosen.includes(run.id);
    const name = make("span", {}, make("a", { href: `#/runs/${run.id}` }, run.name || run.id), make("span", { class: "soft" }, run.target));
    return [...(chosen ? [box] : []), name, make("span", {}, chip(run.chip), run.reason ? make("span", { class: "soft reason", title: run.reason }, run.reason) : null), ...(projects ? [run.project] : []), ...(gpus ? [String(run.gpus ?? missing)] : []),
      make("span", { title: run.started }, run.ago || run.started), run.time ?? missing, run.loss ?? missing, run.accuracy ?? missing];
  });
  return table(columns, rows, label, "runs");
}

export function runs(main) {
  let chosen = [], timer = 0, typing = 0, stopped = false, projects = [];
  const list = make("div"), note = make("span", { class: "soft", role: "status" });
  const both = make("button", { type: "button", class: "main", disabled: true, onclick: () => { location.hash = `#/compare/${chosen.join("/")}`; } }, "Compare");
  const search = make("input", { type: "search", placeholder: "Find by name, target or ID", "aria-label": "Find runs" });
  search.value = wanted.find;
  const where = make("select", { "aria-label": "Project", hidden: true, onchange: () => set({ project: where.value }) });
  const states = STATUSES.map(([status, words]) => make("button", { type: "button", "aria-pressed": String(wanted.status === status), onclick: () => set({ status }) }, words));
  const back = make("button", { type: "button", onclick: () => set({ page: wanted.page - 1 }, false) }, "Newer");
  const on = make("button", { type: "button", onclick: () => set({ page: wanted.page + 1 }, false) }, "Older");
  search.addEventListener("input", () => { clearTimeout(typing); typing = setTimeout(() => set({ find: search.value }), 200); });
  main.replaceChildren(make("h1", {}, "Runs"), make("section", {}, make("form", { onsubmit: (e) => e.preventDefault() }, search, where, both),
    make("div", { class: "row" }, make("div", { class: "group", role: "group", "aria-label": "Status" }, ...states)), list, make("div", { class: "row" }, back, on, note)));

  function set(what, first = true) {
    Object.assign(wanted, first ? { page: 0 } : {}, what);
    states.forEach((button, i) => button.setAttribute("aria-pressed", String(STATUSES[i][0] === wanted.status)));
    load();
  }
  function choose(id, yes) {
    chosen = yes ? [...chosen, id].slice(-MOST) : chosen.filter((one) => one !== id);
    list.querySelectorAll("input[type=checkbox]").forEach((box) => { box.checked = chosen.includes(box.value); });
    told();
  }
  function told() {
    both.disabled = chosen.length < 2;
    both.textContent = chosen.length < 2 ? "Compare" : `Compare ${chosen.length} runs`;
  }

  async function load() {
    clearTimeout(timer);
    const query = new URLSearchParams({ ...wanted, backwards: wanted.backwards ? "1" : "" });
    try {
      const found = await ask(`api/runs?${query}`);
      if (stopped) return;
      // What comes first by itself is the most of some columns and the least of others; an arrow tells which.
      const most = ["started", "accuracy"].includes(wanted.sort);
      const sort = { by: wanted.sort, backwards: most !== wanted.backwards, set: (key) => set({ sort: key, backwards: wanted.sort === key && !wanted.backwards }) };
      const some = wanted.find || wanted.status || wanted.project;
      redraw(list, found.runs.length ? runsTable(found.runs, { label: "Runs", chosen, choose, sort, projects: projects.length > 1 && !wanted.project, gpus: found.gpus })
        : make("p", { class: "empty" }, some ? "No run fits." : "No runs yet. Start one: seatrial run digits"));
      note.textContent = `${found.total} run${found.total === 1 ? "" : "s"}, page ${found.page + 1} of ${found.pages}`;
      back.disabled = found.page === 0;
      on.disabled = found.page + 1 >= found.pages;
      back.hidden = on.hidden = found.pages === 1;
      timer = setTimeout(load, found.live ? 2000 : 5000);
    } catch (error) { if (!stopped) { redraw(list, notice(error.message)); timer = setTimeout(load, 5000); } }
  }

  ask("api/projects").then((found) => {
    projects = found;
    where.replaceChildren(make("option", { value: "" }, "All projects"), ...found.map((one) => make("option", { value: one.key, title: one.folder }, one.name)));
    where.value = wanted.project;
    where.hidden = found.length < 2;
    load();
  }).catch((error) => redraw(list, notice(error.message)));
  return () => { stopped = true; clearTimeout(timer); clearTimeout(typing); };
}
