"use strict";
// The API's page, made from openapi.json alone.
const make = (tag, text, name) => {
  const element = document.createElement(tag);
  if (text) element.textContent = text;
  if (name) element.className = name;
  return element;
};

// Long arrays of an example would hide everything else.
function shorten(value) {
  if (Array.isArray(value)) return value.length > 4 ? [...value.slice(0, 3).map(shorten), `… ${value.length} in all`] : value.map(shorten);
  if (value && typeof value === "object") return Object.fromEntries(Object.entries(value).map(([key, each]) => [key, shorten(each)]));
  return value;
}

function resolve(document_, value) {
  if (!value || !value.$ref) return value;
  return value.$ref.slice(2).split("/").reduce((at, key) => at[key], document_);
}

function curl(path, method, type, example) {
  const url = location.origin + path;
  if (method === "get") return `curl ${url}`;
  if (type === "multipart/form-data") return `curl -F file=@image.png ${url}`;
  if (type === "text/plain") return `curl -H 'content-type: text/plain' -d 'some text' ${url}`;
  if (type !== "application/json") return `curl -H 'content-type: ${type}' --data-binary @image.${type.split("/")[1]} ${url}`;
  return `curl --json '${JSON.stringify(shorten(example))}' ${url}`;
}

function body(document_, path, method, operation) {
  const parts = [], given = operation.requestBody && operation.requestBody.content;
  if (given) {
    for (const [type, media] of Object.entries(given)) {
      parts.push(make("h3", `Body: ${type}`));
      const schema = resolve(document_, media.schema);
      if (type === "application/json" && schema) parts.push(make("pre", JSON.stringify(schema, null, 1)));
      parts.push(make("pre", curl(path, method, type, media.example ?? {})));
    }
  } else parts.push(make("pre", curl(path, method)));
  parts.push(make("h3", "Answers"));
  const table = make("table");
  for (const [status, found] of Object.entries(operation.responses)) {
    const row = make("tr"), response = resolve(document_, found);
    row.append(make("td", status), make("td", response.description));
    table.append(row);
  }
  parts.push(table);
  return parts;
}

async function start() {
  const response = await fetch("/openapi.json"), described = await response.json();
  if (!response.ok) { document.getElementById("state").textContent = described.error; return; }
  document.title = document.getElementById("title").textContent = described.info.title;
  document.getElementById("state").textContent = described.info.description;
  const groups = new Map();
  for (const [path, methods] of Object.entries(described.paths)) for (const [method, operation] of Object.entries(methods)) {
    const tag = operation.tags[0], details = make("details"), summary = make("summary");
    summary.append(make("span", method.toUpperCase(), "method"), " ", make("code", path), ` – ${operation.summary}`);
    details.append(summary, ...body(described, path, method, operation));
    if (!groups.has(tag)) { const section = make("section"); section.append(make("h2", tag)); groups.set(tag, section); }
    groups.get(tag).append(details);
  }
  document.getElementById("paths").replaceChildren(...groups.values());
}
start();
