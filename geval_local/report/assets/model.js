// The data of the page, and the questions that table and dialog ask about an item.

const DATA = JSON.parse(byId("data").textContent);
const COMPARING = DATA.mode === "compare";
const SIZE = DATA.keys.length;
// Without ids an item is called by its number, which is then not told a second time.
const NUMBERED = DATA.keys.every((key, item) => key === String(DATA.rows[item]));
const view = { metric: 0 };
// Columns with more distinct values than this are filtered by a text that is typed.
const MOST_VALUES = 60;
const metricNow = () => DATA.metrics[view.metric];

function textAt(column, item) {
  if (column < 0) return null;
  const place = DATA.columns[column].v[item];
  return place < 0 ? null : DATA.texts[place];
}

// The shortest names that tell metrics apart: the last parts of them, where these differ.
function shortNames(names) {
  const last = names.map((name) => name.split("/").pop());
  return new Set(last).size === last.length ? last : names;
}
const SHORT = shortNames(DATA.metrics.map(({ name }) => name));

const outputOf = (item) => textAt(DATA.output, item);
const lowMass = (metric, item) =>
  metric.runs.some((run) => isNumber(run.mass[item]) && run.mass[item] < metric.lowMass);
const unscored = (metric, item) => metric.runs.some((run) => !isNumber(run.score[item]));
const passes = (metric, score) => (metric.better === "low" ? score <= metric.threshold : score >= metric.threshold);
const failed = (metric, item) =>
  metric.threshold !== null && metric.runs.some((run) => isNumber(run.score[item]) && !passes(metric, run.score[item]));
const humanOf = (metric, item) => (metric.human.length ? metric.human[item] : null);

function difference(metric, item) {
  const [first, second] = COMPARING
    ? [metric.runs[0].score[item], metric.runs[1].score[item]]
    : [metric.runs[0].score[item], humanOf(metric, item)];
  return isNumber(first) && isNumber(second) ? first - second : null;
}

for (const metric of DATA.metrics) {
  for (const run of metric.runs) run.absent = new Set(run.absent);
}

// Item -> the reasons that were written for its score on a metric; several where several files were given.
for (const metric of DATA.metrics) {
  metric.why = new Map();
  for (const [item, reason] of metric.reasons) metric.why.set(item, [...(metric.why.get(item) || []), reason]);
}

const whyOf = (metric, item) => metric.why.get(item) || [];
const explained = (metric, item) => whyOf(metric, item).some(({ text }) => text);
const whyText = (metric, item) => whyOf(metric, item).map(({ text }) => text).filter(Boolean).join(" · ");

function reasonOf(run, item) {
  return run.absent.has(item) ? "not in this run" : run.error[item] || "unscored";
}

// The columns that items can be filtered by, each with the distinct texts of its items: the input's, and reasons' codes.
let filters = null;
function filterColumns() {
  if (filters) return filters;
  const distinct = (of) => {
    const found = new Set();
    for (let item = 0; item < SIZE && found.size <= MOST_VALUES; item += 1) {
      const text = of(item);
      if (text !== null) found.add(text);
    }
    return found.size > MOST_VALUES ? null : [...found].sort(new Intl.Collator("en", { numeric: true }).compare);
  };
  filters = DATA.columns.map(({ name }, column) => ({ name, of: (item) => textAt(column, item) }));
  DATA.metrics.forEach((metric) => metric.runs.forEach((run, which) => {
    if (Object.keys(run.code).length) {
      filters.push({ name: `${metric.name}${COMPARING ? `.${"AB"[which]}` : ""}.error_code`, of: (item) => run.code[item] || null });
    }
  }));
  for (const filter of filters) {
    let values;
    filter.values = () => (values === undefined ? (values = distinct(filter.of)) : values);
  }
  return filters;
}

// Whether an item has a value in a column: exactly, of few values; of many, one that holds the text.
function itemsOf({ of, values }, wanted) {
  if (values() && values().includes(wanted)) return (item) => of(item) === wanted;
  const folded = wanted.toLowerCase(), known = new Map();
  return (item) => {
    const text = of(item);
    if (text === null) return false;
    if (!known.has(text)) known.set(text, text.toLowerCase().includes(folded));
    return known.get(text);
  };
}

// Which items hold a text: every distinct text is read once, however many items share it.
function itemsWith(words) {
  const wanted = words.toLowerCase();
  const holds = DATA.texts.map((text) => text.toLowerCase().includes(wanted));
  return (item) => DATA.keys[item].toLowerCase().includes(wanted)
    || DATA.columns.some((column) => column.v[item] >= 0 && holds[column.v[item]])
    || DATA.metrics.some((metric) => metric.runs.some((run) => item in run.error && run.error[item].toLowerCase().includes(wanted)))
    || DATA.metrics.some((metric) => whyText(metric, item).toLowerCase().includes(wanted));
}

// The means of the label probabilities over the scored items, one list per run.
function meanLabels(metric) {
  return metric.runs.map((run) => {
    const found = run.p.filter(Boolean);
    return metric.labels.map((_, index) => (found.length ? found.reduce((sum, p) => sum + p[index], 0) / found.length : 0));
  });
}
