// What pages do beyond links and forms: fresh figures, and a policy checked as one types.
"use strict";

// A part with data-live is fetched anew while the page is looked at.
for (const part of document.querySelectorAll("[data-live]")) {
  setInterval(async () => {
    if (document.hidden || part.contains(document.activeElement) && document.activeElement.matches("a")) return;
    try {
      const got = await fetch(location.href, {headers: {Accept: "text/html"}});
      if (got.redirected) return location.reload();
      if (!got.ok) return;
      const fresh = new DOMParser().parseFromString(await got.text(), "text/html").querySelector("[data-live]");
      if (fresh && fresh.innerHTML !== part.innerHTML) part.replaceChildren(...fresh.childNodes);
    } catch { /* the server is away: the next time */ }
  }, Number(part.dataset.live));
}

const text = document.getElementById("policy");
const gutter = document.getElementById("gutter");
if (text && gutter) edit(text, gutter, document.getElementById("verdict"));

function edit(text, gutter, verdict) {
  let wrong = new Set();
  const number = () => {
    const count = text.value.split("\n").length;
    gutter.replaceChildren(...Array.from({length: count}, (_, i) => {
      const line = document.createElement("span");
      line.textContent = (i + 1) + "\n";
      if (wrong.has(i + 1)) line.className = "bad";
      return line;
    }));
    gutter.scrollTop = text.scrollTop;
  };
  text.addEventListener("scroll", () => { gutter.scrollTop = text.scrollTop; });

  const leading = (line, column) => {
    const place = document.createElement("button");
    place.type = "button";
    place.className = "place";
    place.dataset.line = line;
    place.dataset.column = column || 1;
    place.textContent = column ? line + ":" + column : line;
    return place;
  };
  const entry = (problem) => {
    const item = document.createElement("li");
    if (problem.line) item.append(leading(problem.line, problem.column), " ");
    if (problem.path) {
      const path = document.createElement("code");
      path.textContent = problem.path;
      item.append(path, ": ");
    }
    item.append(problem.message);
    return item;
  };
  const paragraph = (className, words) => {
    const p = document.createElement("p");
    p.className = className;
    p.textContent = words;
    return p;
  };
  const list = (problems) => {
    const ul = document.createElement("ul");
    ul.className = "problems";
    ul.append(...problems.map(entry));
    return ul;
  };
  const show = (answer) => {
    wrong = new Set(answer.problems.map((p) => p.line));
    const parts = answer.problems.length
      ? [paragraph("bad", "The policy is not valid:"), list(answer.problems)]
      : [paragraph("good", "The policy is valid.")];
    if (answer.warnings.length) parts.push(paragraph("", "Warnings:"), list(answer.warnings));
    verdict.replaceChildren(...parts);
    number();
  };

  // One question at a time: the server answers no second one.
  let asking = false, again = false, timer = 0;
  const check = async () => {
    if (asking) { again = true; return; }
    asking = true;
    again = false;
    try {
      const form = new URLSearchParams();
      for (const name of ["csrf", "file", "policy"]) form.set(name, text.form.elements[name].value);
      const got = await fetch("/console/policy/check", {method: "POST", body: form});
      if (got.ok) show(await got.json());
      else if (got.status === 503) again = true;
      else verdict.replaceChildren(paragraph("bad", await got.text()));
    } catch { again = true; }
    asking = false;
    if (again) later(1000);
  };
  const later = (ms) => { clearTimeout(timer); timer = setTimeout(check, ms); };
  text.addEventListener("input", () => { number(); later(400); });
  text.form.addEventListener("submit", () => clearTimeout(timer)); // the next page checks it

  // A place leads into the text.
  verdict.addEventListener("click", (event) => {
    const place = event.target.closest(".place");
    if (!place) return;
    const lines = text.value.split("\n");
    const line = Number(place.dataset.line) - 1;
    let at = lines.slice(0, line).reduce((sum, l) => sum + l.length + 1, 0);
    at += [...(lines[line] || "")].slice(0, Number(place.dataset.column) - 1).join("").length;
    text.focus();
    text.setSelectionRange(at, Math.min(at + 1, text.value.length));
    text.scrollTop = Math.max(0, (line - 5) * text.scrollHeight / lines.length);
  });
  for (const place of verdict.querySelectorAll(".place")) {
    wrong.add(Number(place.dataset.line));
    place.replaceWith(leading(Number(place.dataset.line), Number(place.dataset.column)));
  }
  number();
}
