// The table of items: filters, sorting by any column, and pages, so that ten thousand rows cost as much as fifty.

const state = { ...FIRST, shown: [], missing: "" };
const SIZES = [25, 50, 100, 250];

function scoreCell(metric, run, item) {
  if (isNumber(run.score[item])) return el("span", null, number(run.score[item]));
  return el("span", { class: "unscored", title: snippet(reasonOf(run, item)) }, "unscored");
}

function barsCell(metric, run, item, kind) {
  return run.p[item] ? miniBars(metric.labels, run.p[item], kind) : el("span", { class: "quiet" }, "–");
}

function massCell(metric, run, item) {
  const mass = run.mass[item];
  const low = isNumber(mass) && mass < metric.lowMass;
  return el("span", low ? { class: "low", title: `below ${metric.lowMass}` } : null, probability(mass), low ? " low" : null);
}

function itemCell(item) {
  const text = outputOf(item), asked = textAt(DATA.source, item);
  return el("button", { type: "button", class: "open", "data-item": item, on: { click: () => openItem(item) } },
    el("span", { class: "clamp" }, el("span", { class: "key", dir: "auto" }, shortened(DATA.keys[item], 60)),
      text === null ? null : el("span", { class: "snippet", dir: "auto" }, snippet(text, 220))),
    asked === null ? null : el("span", { class: "clamp one quiet", dir: "auto" }, snippet(asked, 140)));
}

// name, heading, value to sort by, cell, class; a column that no item fills is left out.
function columns() {
  const metric = metricNow(), found = [];
  const add = (name, heading, value, cell, kind = "") => found.push({ name, heading, value, cell, kind });
  const plain = (name, heading, value, kind, digits = 2) =>
    add(name, heading, value, (item) => number(value(item), digits), kind);
  if (!NUMBERED) add("place", "#", (item) => item, (item) => String(DATA.rows[item]), "number wide");
  add("item", NUMBERED ? "row" : "item", (item) => DATA.keys[item], itemCell, DATA.output < 0 ? "named short" : "named");
  if (DATA.system >= 0) {
    add("system", PAIRED ? "pair" : "system", (item) => textAt(DATA.system, item), (item) => snippet(textAt(DATA.system, item) || "–", PAIRED ? 60 : 24), "wide");
  }
  metric.runs.forEach((run, which) => {
    const of = COMPARING ? ` ${"AB"[which]}` : "";
    add(`score${which}`, COMPARING ? "AB"[which] : "score", (item) => run.score[item], (item) => scoreCell(metric, run, item), "number");
    add(`mode${which}`, `labels${of}`, (item) => run.p[item] && run.p[item].indexOf(Math.max(...run.p[item])),
      (item) => barsCell(metric, run, item, which ? "second" : ""), COMPARING ? "wide" : "");
    add(`mass${which}`, `mass${of}`, (item) => run.mass[item], (item) => massCell(metric, run, item), "number wide");
    if (!COMPARING) plain("std", "std", (item) => run.std[item], "number wide wider");
  });
  if (COMPARING) {
    plain("difference", "A − B", (item) => difference(metric, item), "number");
    plain("distance", "|A − B|", (item) => { const d = difference(metric, item); return isNumber(d) ? Math.abs(d) : null; }, "number wide");
  }
  if (metric.human.length) {
    plain("human", snippet(metric.rating, 16), (item) => humanOf(metric, item), "number wide");
    if (!COMPARING) plain("difference", "score − rating", (item) => difference(metric, item), "number wide");
  }
  if (metric.why.size) {
    add("why", "reason", (item) => whyText(metric, item) || null,
      (item) => el("span", { class: "clamp" }, snippet(whyText(metric, item), 140)), "why wide");
  }
  if (!COMPARING) {
    DATA.metrics.forEach((other, index) => {
      if (other !== metric) {
        add(`other${index}`, SHORT[index], (item) => other.runs[0].score[item], (item) => scoreCell(other, other.runs[0], item), "number wide");
      }
    });
  }
  return found;
}

const KINDS = [
  ["all", "all items", () => true],
  ["scored", "scored", (metric, item) => !unscored(metric, item)],
  ["unscored", "unscored", unscored],
  ["low", "low label mass", lowMass],
  ["failed", "does not pass", failed],
  ["explained", "with a reason", explained],
];

function selectItems() {
  const metric = metricNow();
  const kind = KINDS.find(([name]) => name === state.only)[2];
  const holds = state.words ? itemsWith(state.words) : () => true;
  const range = state.low !== null || state.high !== null;
  const inside = (item) => metric.runs.some((run) => isNumber(run.score[item])
    && (state.low === null || run.score[item] >= state.low) && (state.high === null || run.score[item] <= state.high));
  const filter = state.value ? filterColumns().find(({ name }) => name === state.column) : null;
  const chosen = filter ? itemsOf(filter, state.value) : () => true;
  const found = [];
  for (let item = 0; item < SIZE; item += 1) {
    if (kind(metric, item) && (!range || inside(item)) && chosen(item) && holds(item)) found.push(item);
  }
  const column = columns().find(({ name }) => name === state.sort) || columns()[0];
  state.sort = column.name;
  const values = new Map(found.map((item) => [item, column.value(item)]));
  const direction = state.descending ? -1 : 1;
  const order = new Intl.Collator("en", { numeric: true });
  found.sort((a, b) => {
    const [one, other] = [values.get(a), values.get(b)];
    // What has no value comes last in both directions: it is neither high nor low.
    if (one === null || one === undefined) return other === null || other === undefined ? a - b : 1;
    if (other === null || other === undefined) return -1;
    return direction * (isNumber(one) ? one - other : order.compare(one, other)) || a - b;
  });
  state.shown = found;
}

function sortBy(name) {
  state.descending = state.sort === name ? !state.descending : false;
  state.sort = name;
  refresh();
  const button = document.querySelector(`#item-table th[data-name="${name}"] button`);
  if (button) button.focus();
}

function headCell({ name, heading, kind }) {
  const sorted = state.sort === name ? (state.descending ? "descending" : "ascending") : "none";
  const arrow = { ascending: "▲", descending: "▼", none: "↕" }[sorted];
  return el("th", { scope: "col", class: kind, "aria-sort": sorted, "data-name": name },
    el("button", { type: "button", on: { click: () => sortBy(name) } }, heading,
      el("span", { class: "arrow", "aria-hidden": "true" }, arrow)));
}

function drawRows() {
  const shown = columns(), pages = Math.max(1, Math.ceil(state.shown.length / state.size));
  state.page = Math.min(Math.max(0, state.page), pages - 1);
  const start = state.page * state.size, items = state.shown.slice(start, start + state.size);
  byId("item-table").tHead.replaceChildren(el("tr", null, ...shown.map(headCell)));
  byId("item-table").tBodies[0].replaceChildren(...items.map((item) =>
    el("tr", null, ...shown.map(({ cell, kind }) => el("td", { class: kind }, cell(item))))));
  const all = state.shown.length === SIZE ? "" : ` (${count(SIZE)} in all)`;
  const lacking = state.missing ? `Row ${state.missing} is not among the rows of this page. ` : "";
  byId("status").textContent = lacking + (items.length
    ? `Items ${count(start + 1)} to ${count(start + items.length)} of ${count(state.shown.length)}${all}`
    : `No item fits${all}`);
  drawPager(pages);
  writeLink();
}

function drawPager(pages) {
  const held = document.activeElement && document.activeElement.getAttribute("data-page");
  const button = (name, text, page, off) => el("button", { type: "button", "data-page": name, disabled: off,
    on: { click: () => { state.page = page; drawRows(); byId("items").scrollIntoView({ block: "start" }); } } }, text);
  const first = state.page === 0, last = state.page >= pages - 1;
  byId("pager").replaceChildren(button("first", "First", 0, first), button("previous", "Previous", state.page - 1, first),
    el("span", null, `Page ${count(state.page + 1)} of ${count(pages)}`),
    button("next", "Next", state.page + 1, last), button("last", "Last", pages - 1, last));
  // A drawn-anew button keeps the focus; one that is off now hands it to its opposite.
  const again = held && byId("pager").querySelector(`[data-page="${held}"]`);
  if (again) (again.disabled ? byId("pager").querySelector("button:not([disabled])") || again : again).focus({ preventScroll: true });
}

function refresh() {
  [state.page, state.missing] = [0, ""];
  selectItems();
  drawRows();
}

function drawFilters() {
  const field = (name, text, control) => el("label", { class: `field ${name}` }, el("span", null, text), control);
  const options = (pairs) => pairs.map(([value, text]) => el("option", { value }, text));
  const words = el("input", { type: "search", id: "words", autocomplete: "off", spellcheck: "false", dir: "auto" });
  const only = el("select", { id: "only" }, ...options(KINDS.filter(([name]) =>
    (name !== "failed" || DATA.metrics.some((metric) => metric.threshold !== null))
    && (name !== "explained" || DATA.metrics.some((metric) => metric.why.size)))));
  const low = el("input", { type: "number", id: "from", step: "any" }), high = el("input", { type: "number", id: "to", step: "any" });
  const size = el("select", { id: "size" }, ...options(SIZES.map((rows) => [rows, String(rows)])));
  const column = el("select", { id: "column" }, ...options([["", "any column"], ...filterColumns().map(({ name }) => [name, snippet(name, 40)])]));
  const wanted = el("span", { class: "wanted" });
  const metric = el("select", { id: "metric" }, ...options(SHORT.map((name, index) => [index, name])));
  const parsed = (input) => (input.value === "" || !Number.isFinite(input.valueAsNumber) ? null : input.valueAsNumber);
  words.addEventListener("input", later(() => { state.words = words.value; refresh(); }, 150));
  only.addEventListener("change", () => { state.only = only.value; refresh(); });
  for (const input of [low, high]) {
    input.addEventListener("input", later(() => { [state.low, state.high] = [parsed(low), parsed(high)]; refresh(); }, 150));
  }
  size.addEventListener("change", () => { state.size = Number(size.value); state.page = 0; drawRows(); });
  metric.addEventListener("change", () => { view.metric = Number(metric.value); refresh(); });
  const drawWanted = () => {
    const filter = filterColumns().find(({ name }) => name === state.column), values = filter && filter.values();
    if (!filter) wanted.replaceChildren();
    else if (values) wanted.replaceChildren(el("select", { id: "value", "aria-label": `Value of ${filter.name}` },
      ...options([["", "any value"], ...values.map((text) => [text, snippet(text, 60)])])));
    else wanted.replaceChildren(el("input", { type: "search", id: "value", autocomplete: "off", dir: "auto", "aria-label": `${filter.name} holds`, placeholder: "holds …" }));
    const input = byId("value");
    if (!input) return;
    input.value = state.value;
    input.addEventListener(values ? "change" : "input", later(() => { state.value = input.value; refresh(); }, values ? 0 : 150));
  };
  column.addEventListener("change", () => { [state.column, state.value] = [column.value, ""]; drawWanted(); refresh(); });
  byId("filters").onsubmit = (event) => event.preventDefault();
  byId("filters").replaceChildren(
    ...(DATA.metrics.length > 1 ? [field("metric", "Metric", metric)] : []),
    field("words", "Text holds", words), field("only", "Show", only),
    field("range", "Score from", low), field("range", "to", high),
    el("div", { class: "field by" }, field("column", "Column", column), wanted), field("size", "Rows", size));
  [words.value, only.value, size.value, metric.value, column.value] = [state.words, state.only, state.size, view.metric, state.column];
  [low.value, high.value] = [state.low, state.high].map((value) => (value === null ? "" : value));
  drawWanted();
}
