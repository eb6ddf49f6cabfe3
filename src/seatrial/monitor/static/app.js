// Which view, by the address behind #, and the stream of readings.
import { compare } from "./compare.js";
import { live } from "./live.js";
import { run } from "./run.js";
import { runs } from "./runs.js";

const main = document.getElementById("main"), state = document.getElementById("state");
let stop = () => {};

function go() {
  stop();
  const [, where = "", ...rest] = location.hash.split("/").map(decodeURIComponent);
  const ids = rest.filter(Boolean);
  if (where === "runs" && ids.length) stop = run(main, ids[0]);
  else if (where === "runs") stop = runs(main);
  else if (where === "compare" && ids.length) stop = compare(main, ids);
  else stop = live(main);
  document.querySelectorAll(".bar nav a").forEach((link) => {
    const here = link.getAttribute("href") === (where === "compare" ? "#/runs" : `#/${where}`);
    if (here) link.setAttribute("aria-current", "page"); else link.removeAttribute("aria-current");
  });
}

function connect() {
  let came = Date.now(), between = 0; // milliseconds
  const say = (text, bad) => { if (state.textContent !== text) state.textContent = text; state.className = bad ? "bad" : ""; };
  const source = new EventSource("api/events");
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
go();
connect();
