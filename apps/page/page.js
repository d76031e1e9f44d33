"use strict";
// Each tab has a form and a place for the answer. A tab with data-wait asks by itself so many milliseconds after a change,
// the others when their button is pressed. While what is shown answers something else than what is typed it is dimmed.

const settings = document.getElementById("settings");
const panels = new Map();
const NO_ANSWER = "The server does not answer. Is it still running?";

function chosen() {
  const {selector, amount, percent, keep} = settings.elements;
  return {
    selector: show.hidden ? null : selector.value,
    percent: amount.value === "share" ? Number(percent.value) : null,
    keep: amount.value === "keep" ? Number(keep.value) : null,
  };
}

// What a tab has no use for is not there.
const show = settings.querySelector("fieldset"), single = show.hidden;

function fitSettings(tab) {
  for (const part of settings.querySelectorAll("[data-only]")) part.hidden = !part.dataset.only.split(" ").includes(tab);
  show.hidden ||= single;
  if (settings.elements.amount.value === "keep" && tab !== "text") settings.elements.amount.value = "automatic";
}

async function post(address, query, refuse) {
  const body = new Blob([query]), most = Number(document.body.dataset.most), say = (number) => number.toLocaleString("en");
  if (body.size > most) return refuse(`The question has ${say(body.size)} bytes; at most ${say(most)} fit here.`);
  const reply = await fetch(address, {method: "POST", headers: {"Content-Type": "application/json"}, body});
  return reply.json();
}

function problem(message) { return `<p class="hk-problem" role="alert">${message}</p>`; }

class Panel {
  constructor(element) {
    this.element = element;
    this.form = element.querySelector("form");
    this.answer = element.querySelector(".answer");
    this.wait = element.dataset.wait === undefined ? null : Number(element.dataset.wait);
    this.shownTexts = this.shown = this.timer = null;
    this.running = this.again = false;
    this.form.addEventListener("submit", (event) => { event.preventDefault(); this.ask(); });
    this.form.addEventListener("input", () => this.changed());
    this.form.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); this.ask(); }
    });
    for (const example of element.querySelectorAll(".example")) example.addEventListener("click", () => this.fill(example.dataset));
    for (const button of element.querySelectorAll("[data-save]")) button.addEventListener("click", () => this.save(button.dataset.save));
    for (const input of element.querySelectorAll("[data-into]")) input.addEventListener("change", () => this.read(input));
    this.answer.addEventListener("click", (event) => {
      if (event.target.dataset.term) showTerm(this.answer, event.target.dataset.term);
    });
    this.count();
  }

  async read(input) {  // the file stays in the browser: its text goes into the box
    if (!input.files.length) return;
    document.getElementById(input.dataset.into).value = await input.files[0].text();
    this.changed();
    this.ask();
  }

  texts() { return JSON.stringify(this.values()); }
  query() { return JSON.stringify({...this.values(), ...chosen()}); }
  values() {  // not FormData, which makes \r\n of a line's end
    return Object.fromEntries([...this.form.querySelectorAll("[name]")].map((field) => [field.name, field.value]));
  }

  fill(values) {
    for (const [name, value] of Object.entries(values)) this.form.elements[name].value = value;
    this.changed();
    this.ask();
  }

  changed() {
    this.count();
    this.dim();
    this.sayUnsaved("");
    clearTimeout(this.timer);
    if (this.wait !== null) this.timer = setTimeout(() => this.ask(), this.wait);
  }

  settingsChanged() {  // the same texts with other settings need no button
    this.dim();
    if (this.wait !== null || this.shownTexts === this.texts()) this.ask();
  }

  opened() {
    fitSettings(this.element.dataset.tab);
    if (this.shown === null) this.ask();
    else this.settingsChanged();
    this.draw();
  }

  dim() { this.element.classList.toggle("stale", this.shown !== null && this.shown !== this.query()); }

  count() {
    for (const box of this.form.querySelectorAll("textarea")) {
      const length = [...box.value].length, limit = Number(box.dataset.limit);
      const place = box.parentElement.querySelector(".count");
      place.textContent = `${length.toLocaleString("en")} of at most ${limit.toLocaleString("en")} characters`;
      place.classList.toggle("over", length > limit);
      place.hidden = length < limit / 2;
    }
  }

  async ask() {
    if (this.running) { this.again = true; return; }
    const query = this.query(), texts = this.texts();
    if (query === this.shown) return this.dim();
    this.running = true;
    const busy = setTimeout(() => this.element.classList.add("busy"), 500);
    this.answer.setAttribute("aria-busy", "true");
    try {
      const tab = this.element.dataset.tab;
      const parts = await post(`show/${tab}`, query, (message) => ({[tab]: problem(message)}));
      for (const [id, html] of Object.entries(parts)) document.getElementById(id).innerHTML = html;
    } catch {
      this.answer.innerHTML = problem(NO_ANSWER);
    }
    this.shown = query;
    this.shownTexts = texts;
    this.running = false;
    clearTimeout(busy);
    this.element.classList.remove("busy");
    this.answer.removeAttribute("aria-busy");
    this.dim();
    this.draw();
    if (this.again) { this.again = false; this.ask(); }
  }

  async save(kind) {  // the file is made here from what the server sends: none is written there
    const file = await post(`save/${kind}`, this.query(), (message) => ({problem: message})).catch(() => ({problem: NO_ANSWER}));
    this.sayUnsaved(file.problem ?? "");
    if (file.problem) return;
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([file.content], {type: file.type}));
    link.download = file.name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  }

  sayUnsaved(problem) {
    const place = this.element.querySelector(".actions [role=alert]");
    if (place) place.textContent = problem;
  }

  draw() { for (const pair of this.answer.querySelectorAll(".linked")) drawLinks(pair); }
}

// Where a term stands in a long text: all are marked, and every click goes to the next.
function showTerm(answer, term) {
  const wanted = term.toLowerCase(), first = wanted.split(/\s/)[0];
  const holds = (element) => element.textContent.toLowerCase().includes(wanted);
  let found = [...answer.querySelectorAll(".heat .hk-span")].filter(holds);
  if (!found.length) found = [...answer.querySelectorAll(".heat mark")].filter((mark) => mark.textContent.toLowerCase() === first);
  const next = (found.findIndex((element) => element.classList.contains("here")) + 1) % found.length;
  for (const old of answer.querySelectorAll(".found")) old.classList.remove("found", "here");
  for (const element of found) element.classList.add("found");
  found[next]?.classList.add("here");
  found[next]?.scrollIntoView({block: "center"});
}

// Lines between the words of two texts, as thick as the link is strong. They run where there is no text: between the two
// texts, between lines, and along the margin where a word is not in the line next to the other text.
function drawLinks(pair) {
  pair.querySelector("svg.links")?.remove();
  const texts = [...pair.querySelectorAll(".hk-text")], frame = pair.getBoundingClientRect();
  if (texts.length < 2 || !frame.width) return;
  const [first, second] = texts.map((text) => text.querySelectorAll("mark"));
  const [above, below] = texts.map((text) => text.getBoundingClientRect());
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("class", "links");
  svg.setAttribute("aria-hidden", "true");
  const links = JSON.parse(pair.dataset.links), room = below.left - frame.left;
  links.forEach(([a, b, share], number) => {
    const from = [...first[a].getClientRects()].at(-1), to = second[b].getClientRects()[0];
    const start = [from.left + from.width / 2, from.bottom + 3], end = [to.left + to.width / 2, to.top - 3];
    const lane = (number + 1) / (links.length + 1), between = above.bottom + (below.top - above.bottom) * lane;
    const left = start[0] + end[0] < frame.left + frame.right;
    const margin = left ? frame.left + room * (1 - lane) : frame.right - room * (1 - lane);
    const points = [start];
    if (above.bottom - from.bottom > from.height) points.push([start[0], from.bottom + 6], [margin, from.bottom + 6], [margin, between]);
    else points.push([start[0], between]);
    if (to.top - below.top > to.height) points.push([margin, between], [margin, to.top - 6], [end[0], to.top - 6]);
    else points.push([end[0], between]);
    const path = document.createElementNS(svg.namespaceURI, "path");
    path.setAttribute("d", bend([...points, end].map(([x, y]) => [x - frame.left, y - frame.top])));
    path.setAttribute("stroke-width", (1 + 3 * share).toFixed(2));
    svg.append(path);
  });
  pair.prepend(svg);
}

// A path through these points, its corners rounded.
function bend(points) {
  const toward = ([x, y], [u, v], most) => {
    const share = Math.min(1, most / (Math.hypot(u - x, v - y) || 1));
    return [x + share * (u - x), y + share * (v - y)];
  };
  let path = `M${points[0]}`;
  for (let i = 1; i < points.length - 1; i++) {
    const half = (a, b) => Math.min(8, Math.hypot(a[0] - b[0], a[1] - b[1]) / 2);
    const [before, corner, after] = points.slice(i - 1, i + 2);
    path += ` L${toward(corner, before, half(corner, before))} Q${corner} ${toward(corner, after, half(corner, after))}`;
  }
  return `${path} L${points.at(-1)}`;
}

function open(tab, focus) {
  for (const other of document.querySelectorAll("[role=tab]")) {
    const selected = other === tab;
    other.setAttribute("aria-selected", selected);
    other.tabIndex = selected ? 0 : -1;
    document.getElementById(other.getAttribute("aria-controls")).hidden = !selected;
  }
  if (focus) tab.focus();
  history.replaceState(null, "", `#/${tab.id.slice(4)}`);
  current().opened();
}

function current() { return panels.get(document.querySelector("[role=tabpanel]:not([hidden])")); }

for (const element of document.querySelectorAll("[role=tabpanel]")) panels.set(element, new Panel(element));
const tabs = [...document.querySelectorAll("[role=tab]")];
tabs.forEach((tab, number) => {
  tab.addEventListener("click", () => open(tab, false));
  tab.addEventListener("keydown", (event) => {
    const step = {ArrowRight: 1, ArrowLeft: -1}[event.key];
    const target = event.key === "Home" ? 0 : event.key === "End" ? tabs.length - 1 : number + step;
    if (!Number.isNaN(target)) { event.preventDefault(); open(tabs[(target + tabs.length) % tabs.length], true); }
  });
});
settings.addEventListener("submit", (event) => event.preventDefault());
settings.addEventListener("input", (event) => {
  const output = event.target.parentElement.querySelector("output");
  if (output) output.textContent = `${event.target.value}%`;
  current().settingsChanged();
});
new ResizeObserver(() => current().draw()).observe(document.querySelector("main"));
open(document.getElementById(`tab-${location.hash.slice(2)}`) ?? tabs[0], false);
