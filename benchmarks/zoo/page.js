// Sort the table by a column, and show only rows of a target or that contain a text.
(() => {
'use strict';
const table = document.getElementById("models");
const body = table.tBodies[0];
const rows = [...body.rows];
const heads = [...table.tHead.rows[0].cells];
const find = document.getElementById("find");

// The number of a cell, or its text; cells without a number come last.
function compare(one, other, column, down) {
  const [a, b] = [one, other].map((row) => row.cells[column].dataset);
  if (a.value !== undefined || b.value !== undefined) {
    if (a.value === undefined || b.value === undefined) return a.value === undefined ? 1 : -1;
    return (a.value - b.value) * (down ? -1 : 1);
  }
  return a.text.localeCompare(b.text) * (down ? -1 : 1);
}

function sortBy(column) {
  const down = heads[column].ariaSort === "ascending";
  for (const head of heads) head.removeAttribute("aria-sort");
  heads[column].setAttribute("aria-sort", down ? "descending" : "ascending");
  body.append(...rows.sort((one, other) => compare(one, other, column, down)));
}

function filter() {
  const target = document.querySelector("input[name=target]:checked").value;
  const text = find.value.trim().toLowerCase();
  let shown = 0;
  for (const row of rows) {
    const keep = (target === "" || row.dataset.target === target) && row.dataset.find.includes(text);
    row.hidden = !keep;
    shown += keep;
  }
  document.getElementById("shown").textContent = `${shown} of ${rows.length} rows. Press a heading to sort.`;
}

heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => sortBy(column)));
for (const choice of document.querySelectorAll("input[name=target]")) choice.addEventListener("change", filter);
find.addEventListener("input", filter);
filter();
})();
