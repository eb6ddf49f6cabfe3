// Building blocks. All text goes through textContent, so that nothing a run prints or is called is markup.

/** An element: make("a", {href: "#/"}, "text", child). Keys that begin with "on" are listeners. */
export function make(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

export async function ask(path) {
  const answer = await fetch(path);
  const body = await answer.json().catch(() => ({ error: `the server answered ${answer.status}` }));
  if (!answer.ok) throw new Error(body.error || `the server answered ${answer.status}`);
  return body;
}

export const missing = "–";

// Of live readings alone: what a run reported comes from the server in words.
export const number = (value, digits = 0, unit = "") => (value === null || value === undefined ? missing : value.toFixed(digits) + unit);

export function bytes(value) {
  if (value === null || value === undefined) return missing;
  for (const [unit, size] of [["TB", 1e12], ["GB", 1e9], ["MB", 1e6], ["KB", 1e3]]) {
    if (value >= size) return `${Number((value / size).toPrecision(3))} ${unit}`;
  }
  return `${value} B`;
}

/** Columns are {name, class, sort}; a cell is text or an element. */
export function table(columns, rows, label, classes = "") {
  const head = make("tr", {}, ...columns.map((c) => make(c.name === "" ? "td" : "th", { scope: c.name === "" ? null : "col", class: c.class, "aria-sort": c.sorted }, c.name)));
  const body = rows.map((row) => make("tr", {}, ...row.map((cell, i) => {
    const column = columns[i];
    if (column.row) return make("th", { scope: "row" }, cell);
    return make("td", { class: column.class, "data-label": column.label }, cell);
  })));
  return make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label },
    make("table", { class: classes }, make("thead", {}, head), make("tbody", {}, ...body)));
}

export const tile = (label, value) => make("div", { class: "tile" }, make("b", {}, value), make("span", {}, label));

export const chip = (told, title) => make("span", { class: `badge ${told.colour}`, title }, told.words);

export const notice = (text) => make("p", { class: "notice", role: "alert" }, text);

/** Draw anew, and give the focus back to what had it: elements are known by data-key or by where they lead. */
export function redraw(holder, ...children) {
  const had = holder.contains(document.activeElement) ? document.activeElement : null;
  const key = had && (had.dataset.key ? `[data-key="${CSS.escape(had.dataset.key)}"]` : had.getAttribute("href") ? `a[href="${CSS.escape(had.getAttribute("href"))}"]` : ".scroll");
  const at = had?.matches(".scroll") ? had.scrollLeft : 0;
  holder.replaceChildren(...children);
  if (key) { const again = holder.querySelector(key); again?.focus({ preventScroll: true }); if (again && at) again.scrollLeft = at; }
}
