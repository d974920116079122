"use strict";

// Light and dark: the reader's system decides until the button is pressed.
const root = document.documentElement;
const system = matchMedia("(prefers-color-scheme: dark)");
const theme = document.getElementById("theme");
const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
const showTheme = () => theme.setAttribute("aria-pressed", String(isDark()));
theme.addEventListener("click", () => {
  root.dataset.theme = isDark() ? "light" : "dark";
  showTheme();
});
system.addEventListener("change", showTheme);
showTheme();

// Tables: a press on a header sorts by its column, a second one the other way round. Rows without
// a value stay at the end, equal ones in their order.
function sortBy(header) {
  const row = header.parentElement;
  const table = row.closest("table");
  const body = table.tBodies[0];
  const column = [...row.children].indexOf(header);
  const sign = header.getAttribute("aria-sort") === "ascending" ? -1 : 1;
  const key = (line) => {
    const cell = line.children[column];
    const text = cell.textContent.trim();
    return { number: cell.dataset.value === undefined ? NaN : Number(cell.dataset.value), text };
  };
  const keyed = [...body.rows].map((line) => ({ line, ...key(line) }));
  const numeric = keyed.some((entry) => !Number.isNaN(entry.number));
  const lacks = (entry) => (numeric ? Number.isNaN(entry.number) : entry.text === "");
  keyed.sort((a, b) => {
    if (lacks(a) || lacks(b)) return lacks(a) - lacks(b);
    return sign * (numeric ? a.number - b.number : a.text.localeCompare(b.text, "en"));
  });
  for (const entry of keyed) body.append(entry.line);
  for (const other of row.children) other.setAttribute("aria-sort", "none");
  header.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
}
for (const button of document.querySelectorAll("table.sortable thead button")) {
  button.addEventListener("click", () => sortBy(button.closest("th")));
}

// Figures: on a narrow screen a press gives a drawing its full width, in a box that scrolls.
for (const button of document.querySelectorAll("button.enlarge")) {
  button.addEventListener("click", () => {
    const large = button.closest("figure").classList.toggle("large");
    button.setAttribute("aria-pressed", String(large));
  });
}

// Heat maps: the label of the cell under the pointer or with the focus is shown beside it.
const tip = document.getElementById("tip");
function showTip(cell) {
  tip.textContent = cell.getAttribute("aria-label");
  tip.hidden = false;
  const box = cell.getBoundingClientRect();
  const own = tip.getBoundingClientRect();
  const width = root.clientWidth;
  const left = Math.min(Math.max(8, box.left + box.width / 2 - own.width / 2), width - own.width - 8);
  const above = box.top - own.height - 8;
  tip.style.left = `${Math.max(8, left)}px`;
  tip.style.top = `${above > 8 ? above : box.bottom + 8}px`;
}
const hideTip = () => { tip.hidden = true; };
const cellOf = (event) => event.target.closest && event.target.closest("table.map td[aria-label]");
document.addEventListener("pointerover", (event) => {
  const cell = cellOf(event);
  if (cell) showTip(cell);
  else if (!document.activeElement.matches("table.map td")) hideTip();
});
document.addEventListener("focusin", (event) => {
  const cell = cellOf(event);
  if (!cell) { hideTip(); return; }
  for (const other of cell.closest("table").querySelectorAll('td[tabindex="0"]')) other.tabIndex = -1;
  cell.tabIndex = 0;
  showTip(cell);
});
document.addEventListener("focusout", hideTip);
document.addEventListener("scroll", () => {
  const cell = document.activeElement;
  if (!tip.hidden && cell.matches("table.map td")) showTip(cell);
  else hideTip();
}, true);
const STEPS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") hideTip();
  const cell = cellOf(event);
  const step = STEPS[event.key];
  if (!cell || !step || event.altKey || event.ctrlKey || event.metaKey) return;
  event.preventDefault();
  const rows = cell.closest("table").rows;
  let row = cell.parentElement.rowIndex;
  let column = cell.cellIndex;
  for (;;) {
    row += step[0];
    column += step[1];
    const next = rows[row] && rows[row].cells[column];
    if (!next || next.tagName !== "TD") return;
    if (next.hasAttribute("aria-label")) {
      next.focus({ preventScroll: true });
      next.scrollIntoView({ block: "nearest", inline: "nearest" });
      showTip(next);
      return;
    }
  }
});

// On paper everything is open.
let opened = [];
addEventListener("beforeprint", () => {
  opened = [...document.querySelectorAll("details:not([open])")];
  for (const one of opened) one.open = true;
});
addEventListener("afterprint", () => {
  for (const one of opened) one.open = false;
});

// The part that is being read, in the contents.
const links = new Map();
for (const link of document.querySelectorAll("nav a")) links.set(link.hash.slice(1), link);
const seen = new Set();
const observer = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    if (isIntersecting) seen.add(target.id);
    else seen.delete(target.id);
  }
  let current = null;
  for (const [id, link] of links) {
    link.removeAttribute("aria-current");
    if (current === null && seen.has(id)) current = link;
  }
  if (current) current.setAttribute("aria-current", "true");
}, { rootMargin: "-10% 0px -75% 0px" });
for (const id of links.keys()) observer.observe(document.getElementById(id));
