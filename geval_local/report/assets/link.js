// What the list shows stands in the page's address, so that a link shows what its sender saw: `#text=ferry&row=4127`.

// Name in the address -> how a value is read from it and written into it; what is as at first is left out.
// A run begins with its worst rows; pairs, of which none is worse, stand in their order.
const PAIRED = DATA.system >= 0 && DATA.columns[DATA.system].name === "pair";
const FIRST = { sort: COMPARING ? "distance" : PAIRED ? (NUMBERED ? "item" : "place") : "score0",
  descending: COMPARING || (!PAIRED && DATA.metrics[0].better === "low"), page: 0, size: 25,
  words: "", only: "all", low: null, high: null, column: "", value: "" };
const readNumber = (text) => (text !== "" && Number.isFinite(Number(text)) ? Number(text) : null);
const readCount = (text) => Math.max(0, Math.floor(readNumber(text) || 0));
const PARTS = {
  metric: { get: () => (view.metric ? metricNow().name : ""),
    set: (text) => { view.metric = Math.max(0, DATA.metrics.findIndex(({ name }) => name === text)); } },
  text: { get: () => state.words, set: (text) => { state.words = text; } },
  show: { get: () => (state.only === FIRST.only ? "" : state.only),
    set: (text) => { state.only = KINDS.some(([name]) => name === text) ? text : FIRST.only; } },
  from: { get: () => (state.low === null ? "" : String(state.low)), set: (text) => { state.low = readNumber(text); } },
  to: { get: () => (state.high === null ? "" : String(state.high)), set: (text) => { state.high = readNumber(text); } },
  column: { get: () => (state.value ? state.column : ""),
    set: (text) => { state.column = filterColumns().some(({ name }) => name === text) ? text : FIRST.column; } },
  value: { get: () => (state.column ? state.value : ""), set: (text) => { state.value = text; } },
  sort: { get: () => (state.sort === FIRST.sort && state.descending === FIRST.descending ? "" : (state.descending ? "-" : "") + state.sort),
    set: (text) => {
      [state.sort, state.descending] = text ? [text.replace(/^-/, ""), text.startsWith("-")] : [FIRST.sort, FIRST.descending];
    } },
  rows: { get: () => (state.size === FIRST.size ? "" : String(state.size)),
    set: (text) => { state.size = SIZES.includes(Number(text)) ? Number(text) : FIRST.size; } },
  page: { get: () => (state.page ? String(state.page + 1) : ""), set: (text) => { state.page = Math.max(0, readCount(text) - 1); } },
};

// The address of what is shown, with the row of an item if one is open.
function linkOf(item) {
  const parts = new URLSearchParams();
  for (const [name, { get }] of Object.entries(PARTS)) {
    if (get()) parts.set(name, get());
  }
  if (item >= 0) parts.set("row", String(DATA.rows[item]));
  return `#${parts}`;
}

// A section's anchor stays as long as nothing is filtered, sorted or opened.
function writeLink() {
  const link = linkOf(byId("item").open ? current : -1);
  if (link === location.hash || (link === "#" && !location.hash.includes("="))) return;
  try {
    history.replaceState(history.state, "", link);
  } catch { /* a place that forbids it, such as a sandboxed frame: the list works without */ }
}

// Take the state from the address; the item of the row that it names, -1 without one, null where the page lacks it.
function readLink() {
  const given = new URLSearchParams(location.hash.includes("=") ? location.hash.slice(1) : "");
  for (const [name, { set }] of Object.entries(PARTS)) set(given.get(name) || "");
  if (!given.has("row")) return -1;
  const item = DATA.rows.indexOf(Number(given.get("row")));
  state.missing = item < 0 ? given.get("row") : "";
  return item < 0 ? null : item;
}

function followLink() {
  state.missing = "";
  const item = readLink();
  drawFilters();
  selectItems();
  drawRows();
  const dialog = byId("item");
  if (item !== null && item >= 0) openItem(item);
  else if (dialog.open) dialog.close();
}
