// The rows that are shown, as a file of the reader's own: made in the page, so that no network is asked.

const FIGURES = (run, item) => ({
  score: isNumber(run.score[item]) ? run.score[item] : null,
  label_mass: isNumber(run.mass[item]) ? run.mass[item] : null,
  error: run.absent.has(item) ? "not in this run" : run.error[item] || null,
  error_code: run.code[item] || null,
});

function csvCell(value) {
  const text = value === null || value === undefined ? "" : String(value);
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

function csvOf(items) {
  const sides = DATA.metrics.flatMap((metric) => metric.runs.map((run, which) => [`${metric.name}${COMPARING ? `.${"AB"[which]}` : ""}`, run]));
  const names = Object.keys(FIGURES(DATA.metrics[0].runs[0], 0));
  const lines = [["row", ...DATA.columns.map(({ name }) => name), ...sides.flatMap(([side]) => names.map((name) => `${side}.${name}`))]];
  for (const item of items) {
    lines.push([DATA.rows[item], ...DATA.columns.map((_, column) => textAt(column, item)),
      ...sides.flatMap(([, run]) => Object.values(FIGURES(run, item)))]);
  }
  return `${lines.map((line) => line.map(csvCell).join(",")).join("\r\n")}\r\n`;
}

function jsonOf(items) {
  const rows = items.map((item) => ({
    row: DATA.rows[item],
    columns: Object.fromEntries(DATA.columns.map(({ name }, column) => [name, textAt(column, item)])),
    geval: Object.fromEntries(DATA.metrics.map((metric) => [metric.name,
      COMPARING ? { A: FIGURES(metric.runs[0], item), B: FIGURES(metric.runs[1], item) } : FIGURES(metric.runs[0], item)])),
  }));
  return `${JSON.stringify(rows, null, 1)}\n`;
}

function save(name, type, text) {
  const place = URL.createObjectURL(new Blob([text], { type }));
  const link = el("a", { href: place, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(place), 60000);
}

function drawDownloads() {
  const stem = DATA.runs.join("-").replace(/[^\p{L}\p{N}._-]+/gu, "-").slice(0, 60) || "rows";
  const button = (kind, type, write) => el("button", { type: "button", "data-download": kind, on: { click: () =>
    save(`${stem}-${state.shown.length}-rows.${kind}`, type, write(state.shown)) } }, `Download as ${kind.toUpperCase()}`);
  byId("downloads").replaceChildren(button("csv", "text/csv;charset=utf-8", csvOf), button("json", "application/json", jsonOf),
    el("span", { class: "quiet" }, "the items that fit the filters, in this order; figures rounded to six digits"));
}
