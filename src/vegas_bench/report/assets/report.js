(() => {
  const value = cell => cell.dataset.v !== undefined ? parseFloat(cell.dataset.v) : cell.textContent;
  // Numbers before text, text by its words; equal cells keep their order.
  const compare = (a, b) => typeof a === "number" && typeof b === "number" ? a - b
    : typeof a === typeof b ? a.localeCompare(b, "en", { numeric: true }) : typeof a === "number" ? -1 : 1;
  const sort = heading => {
    const body = heading.closest("table").tBodies[0];
    const descending = heading.getAttribute("aria-sort") === "ascending";
    for (const other of heading.parentNode.children) other.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", descending ? "descending" : "ascending");
    const place = heading.cellIndex;
    const rows = [...body.rows].map(row => [value(row.cells[place]), row]);
    rows.sort((a, b) => (descending ? -1 : 1) * compare(a[0], b[0]));
    body.append(...rows.map(each => each[1]));
  };
  for (const heading of document.querySelectorAll("th")) {
    heading.tabIndex = 0;
    heading.addEventListener("click", () => sort(heading));
    heading.addEventListener("keydown", event => {
      if (event.key === "Enter" || event.key === " ") { event.preventDefault(); sort(heading); }
    });
  }
  for (const button of document.querySelectorAll(".command button")) {
    button.addEventListener("click", async () => {
      const code = button.parentNode.querySelector("pre");
      try { await navigator.clipboard.writeText(code.textContent); button.textContent = "Copied"; }
      catch { getSelection().selectAllChildren(code); button.textContent = "Selected"; }
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    });
  }
})();
