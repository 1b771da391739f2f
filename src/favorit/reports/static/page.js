// The page of a report: sorting and filtering tables, drawing figures in view, details of runs, light and dark.
"use strict";

const root = document.documentElement;
const runs = new Map(JSON.parse(document.getElementById("runs").textContent).map((run) => [run.id, run]));
const ROWS_SHOWN = 200;

// Light and dark. Without a choice, the system decides.
const systemIsDark = matchMedia("(prefers-color-scheme: dark)");
const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : systemIsDark.matches);
try {
  const chosen = localStorage.getItem("favorit-theme");
  if (chosen) root.dataset.theme = chosen;
} catch { /* a page opened from disk may have no storage */ }
document.getElementById("theme").addEventListener("click", () => {
  root.dataset.theme = isDark() ? "light" : "dark";
  try { localStorage.setItem("favorit-theme", root.dataset.theme); } catch { /* as above */ }
  redraw();
});
systemIsDark.addEventListener("change", () => redraw());

// Figures are drawn when they scroll into view, and drawn again when the theme changes.
const drawn = new Map();
const chartColors = () => {
  const style = getComputedStyle(root);
  const text = style.getPropertyValue("--text").trim();
  const line = style.getPropertyValue("--line").trim();
  return {
    background: "transparent",
    title: { color: text, subtitleColor: style.getPropertyValue("--muted").trim() },
    axis: { labelColor: text, titleColor: text, gridColor: line, domainColor: line, tickColor: line },
    legend: { labelColor: text, titleColor: text },
    header: { labelColor: text, titleColor: text },
    text: { color: text },
  };
};
function merged(first, second) {
  const result = { ...first };
  for (const [key, value] of Object.entries(second)) {
    result[key] = value && typeof value === "object" && !Array.isArray(value) ? merged(result[key] ?? {}, value) : value;
  }
  return result;
}
async function draw(figure) {
  const chart = JSON.parse(figure.querySelector("script").textContent);
  chart.config = merged(chart.config ?? {}, chartColors());
  drawn.get(figure)?.finalize();
  const target = figure.querySelector(".chart");
  const result = await vegaEmbed(target, chart, { actions: false, renderer: "svg", tooltip: { theme: isDark() ? "dark" : "light" } });
  drawn.set(figure, result);
  result.view.addEventListener("click", (event, item) => {
    const known = item?.datum?.run ?? item?.datum?.runs;
    if (known) showRuns(String(known).split(/[ ,]+/));
  });
}
const observer = new IntersectionObserver((entries) => {
  for (const entry of entries.filter((each) => each.isIntersecting)) {
    observer.unobserve(entry.target);
    draw(entry.target);
  }
}, { rootMargin: "400px" });
document.querySelectorAll("figure").forEach((figure) => observer.observe(figure));
const redraw = () => [...drawn.keys()].forEach(draw);

// Details of runs.
const dialog = document.getElementById("details");
function element(name, text, attributes = {}) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}
function showRuns(ids) {
  const content = dialog.querySelector(".content");
  content.replaceChildren();
  for (const run of ids.map((id) => runs.get(id)).filter(Boolean)) {
    content.append(element("h3", `${run.id} ${run.status}`), element("p", run.name));
    if (run.error) content.append(element("p", run.error));
    content.append(element("p", "Command that repeats it:", { class: "muted" }), element("pre", run.command));
    content.append(element("p", "Configuration, without defaults:", { class: "muted" }));
    content.append(element("pre", JSON.stringify(run.changed, null, 1)));
    if (run.result && Object.keys(run.result).length) {
      content.append(element("p", "Result:", { class: "muted" }), element("pre", JSON.stringify(run.result, null, 1)));
    }
  }
  if (content.childElementCount) dialog.showModal();
}
dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });

// Tables: a click on a title sorts, the text field filters.
const cellValue = (row, index) => {
  const cell = row.cells[index];
  const number = cell.dataset.value;
  return number === undefined ? cell.textContent : number === "" ? -Infinity : Number(number);
};
const compared = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b)));
function sortTable(title) {
  const table = title.closest("table");
  const index = [...title.parentElement.children].indexOf(title);
  const ascending = title.getAttribute("aria-sort") === (title.classList.contains("number") ? "descending" : "none");
  for (const other of title.parentElement.children) other.setAttribute("aria-sort", "none");
  title.setAttribute("aria-sort", ascending ? "ascending" : "descending");
  const body = table.tBodies[0];
  const rows = [...body.rows].map((row) => [cellValue(row, index), row]);
  rows.sort(([a], [b]) => (ascending ? 1 : -1) * compared(a, b));
  body.append(...rows.map(([, row]) => row));
}
document.addEventListener("click", (event) => {
  const title = event.target.closest("th");
  if (title) sortTable(title);
  const row = event.target.closest("tbody tr");
  if (row?.dataset.runs) showRuns(row.dataset.runs.split(" "));
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && event.target.matches?.("th")) sortTable(event.target);
});
for (const field of document.querySelectorAll(".tools input[data-table]")) {
  const body = document.getElementById(field.dataset.table).tBodies[0];
  field.addEventListener("input", () => {
    const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const row of body.rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
    }
  });
}

// The list of all runs is filled from the data, a part at a time, so that thousands of runs do not slow the page down.
const list = document.querySelector("#all-runs tbody");
const filter = document.getElementById("runs-filter");
const more = document.getElementById("runs-more");
let limit = ROWS_SHOWN;
const searched = [...runs.values()].map((run) => [`${run.id} ${run.name} ${run.status} ${run.error}`.toLowerCase(), run]);
function fillRuns() {
  const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
  const found = searched.filter(([text]) => words.every((word) => text.includes(word))).map(([, run]) => run);
  list.replaceChildren(...found.slice(0, limit).map((run) => {
    const row = element("tr", undefined, { "data-runs": run.id });
    row.append(element("td", run.id), element("td", run.status), element("td", run.name, { class: "text" }));
    const accuracy = run.result?.accuracy;
    const shown = accuracy === undefined || accuracy === null ? "" : `${(100 * accuracy).toFixed(2)}%`;
    row.append(element("td", shown, { class: "number", "data-value": accuracy ?? "" }));
    row.append(element("td", run.error, { class: "text" }));
    return row;
  }));
  more.hidden = found.length <= limit;
  more.textContent = `show more (${found.length - limit} hidden)`;
}
filter.addEventListener("input", () => { limit = ROWS_SHOWN; fillRuns(); });
more.addEventListener("click", () => { limit *= 5; fillRuns(); });
fillRuns();
