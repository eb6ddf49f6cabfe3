"use strict";
// The page to try the model: asks what it takes, sends what was drawn, chosen or typed, and shows the answer.
const $ = id => document.getElementById(id);
let kind = "", asked = 0;

function say(sentence, bad) {
  $("state").textContent = sentence;
  $("state").className = bad ? "bad" : "";
  $("state").hidden = !sentence;
}

async function ask(body, type) {
  const turn = ++asked, began = performance.now();
  let status, answer;
  try {
    const response = await fetch("/predict", {method: "POST", headers: {"content-type": type}, body});
    status = response.status;
    answer = await response.json();
  } catch {
    if (turn === asked) say("The server does not answer.", true);
    return;
  }
  if (turn !== asked) return;  // an older question's answer
  if (status !== 200) { say(answer.error || `The server says ${status}.`, true); return; }
  say("");
  show(answer, performance.now() - began);
}

function show(answer, ms) {
  $("result").hidden = false;
  const shares = answer.probabilities && typeof answer.probabilities === "object" ? Object.entries(answer.probabilities) : [];
  $("label").textContent = answer.label ?? "";
  $("sure").textContent = typeof answer.probability === "number" ? `${(100 * answer.probability).toFixed(1)} % sure` : "";
  $("raw").hidden = shares.length > 0;
  $("raw").textContent = JSON.stringify(answer, null, 1);
  if (Array.isArray(answer.probabilities)) answer.probabilities.forEach((share, at) => shares.push([String(at), share]));
  const most = [...shares].sort((a, b) => b[1] - a[1]).slice(0, 12).map(each => each[0]);
  $("bars").replaceChildren(...shares.filter(each => most.includes(each[0])).map(([label, share]) => {
    const line = document.createElement("li"), name = document.createElement("span"), track = document.createElement("div");
    const fill = document.createElement("div"), number = document.createElement("span");
    name.textContent = label;
    track.className = "track"; fill.className = "fill"; number.className = "share";
    fill.style.width = `${(100 * share).toFixed(1)}%`;
    number.textContent = `${(100 * share).toFixed(1)} %`;
    track.append(fill);
    line.append(name, track, number);
    if (label === String(answer.label)) line.className = "best";
    return line;
  }));
  $("took").textContent = `Answered in ${ms.toFixed(0)} ms, seen from this browser.`;
}

function drawing() {
  const canvas = $("canvas"), pen = canvas.getContext("2d");
  let down = false, last = null, timer = 0;
  const at = event => {
    const box = canvas.getBoundingClientRect();
    return [(event.clientX - box.left) * canvas.width / box.width, (event.clientY - box.top) * canvas.height / box.height];
  };
  const clear = () => { pen.fillStyle = "#000"; pen.fillRect(0, 0, canvas.width, canvas.height); asked++; $("result").hidden = true; };
  const send = () => canvas.toBlob(blob => ask(blob, "image/png"), "image/png");
  const stroke = event => {
    const point = at(event);
    pen.strokeStyle = "#fff"; pen.lineWidth = 24; pen.lineCap = pen.lineJoin = "round";
    pen.beginPath(); pen.moveTo(...(last || point)); pen.lineTo(...point); pen.stroke();
    last = point;
    if (!timer) timer = setTimeout(() => { timer = 0; send(); }, 150);
  };
  canvas.addEventListener("pointerdown", event => { down = true; last = null; canvas.setPointerCapture(event.pointerId); stroke(event); event.preventDefault(); });
  canvas.addEventListener("pointermove", event => { if (down) stroke(event); });
  for (const end of ["pointerup", "pointercancel"]) canvas.addEventListener(end, () => { if (down) { down = false; send(); } });
  $("clear").addEventListener("click", clear);
  clear();
}

function uploading() {
  const send = file => {
    if (!file) return;
    if ($("preview").src) URL.revokeObjectURL($("preview").src);
    $("preview").src = URL.createObjectURL(file);
    $("preview").hidden = false;
    ask(file, file.type || "application/octet-stream");
  };
  $("file").addEventListener("change", () => send($("file").files[0]));
  const drop = $("drop");
  for (const name of ["dragover", "dragleave", "drop"]) drop.addEventListener(name, event => {
    event.preventDefault();
    drop.classList.toggle("over", name === "dragover");
    if (name === "drop") send(event.dataTransfer.files[0]);
  });
}

function writing() {
  const send = () => {
    const typed = $("text").value;
    if (!typed.trim()) { say("There is nothing to ask yet.", true); return; }
    if (kind === "text") ask(JSON.stringify({text: typed}), "application/json");
    else ask(typed, "application/json");
  };
  $("send").addEventListener("click", send);
  $("text").addEventListener("keydown", event => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) send(); });
}

function command(about) {
  const url = `${location.origin}/predict`;
  if (kind === "image") return `curl -F file=@image.png ${url}`;
  if (kind === "text") return `curl --json '{"text": "WINNER!! Call now"}' ${url}`;
  return `curl --json '{"input": ${JSON.stringify(zeros(about.shape))}}' ${url}`;
}

function zeros(shape) {
  return shape.length ? Array.from({length: Math.min(Math.max(shape[0], 1), 8)}, () => zeros(shape.slice(1))) : 0;
}

async function start() {
  let about;
  try {
    const response = await fetch("/static/about.json");
    about = await response.json();
    if (!response.ok) { say(about.error, true); setTimeout(start, 2000); return; }
  } catch { say("The server does not answer.", true); setTimeout(start, 2000); return; }
  kind = about.kind;
  document.title = `Try ${about.name}`;
  $("name").textContent = about.name;
  say("");
  if (kind === "image") {
    $("upload").hidden = false;
    uploading();
    if (about.labels.length === 10 && about.labels.every((label, at) => label === String(at))) { $("draw").hidden = false; drawing(); }
  } else {
    $("write").hidden = false;
    if (kind !== "text") { $("write-title").textContent = "Give the input as JSON"; $("text").value = JSON.stringify({input: zeros(about.shape)}); }
    writing();
  }
  $("command").textContent = command(about);
  $("curl").hidden = false;
}
start();
