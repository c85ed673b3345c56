// The page put together: charts per metric, agreement with people, filters and table.

function rangeOf(...lists) {
  const found = lists.flat().filter(isNumber);
  let low = Infinity, high = -Infinity;
  for (const value of found) [low, high] = [Math.min(low, value), Math.max(high, value)];
  return found.length ? (low === high ? [low - 0.5, high + 0.5] : [low, high]) : [0, 1];
}

const spread = (metric, ...lists) => rangeOf([metric.low, metric.high], ...lists);
const box = (...charts) => el("div", { class: "charts" }, ...charts);
const massMark = (metric) => (low, high) => high <= metric.lowMass + 1e-9;

function reportCharts(metric) {
  const run = metric.runs[0], known = run.mass.filter(isNumber), low = known.filter((mass) => mass < metric.lowMass).length;
  return box(
    histogram("Scores", run.score, ...spread(metric, run.score), "score"),
    labelChart("Mean label probabilities", metric.labels, meanLabels(metric), DATA.runs),
    histogram(`Label mass: ${!known.length ? "not known" : low ? `${plural(low, "item")} below ${metric.lowMass}` : `none below ${metric.lowMass}`}`,
      run.mass, 0, 1, "label mass", { marked: massMark(metric) }));
}

function comparisonCharts(metric) {
  const [first, second] = metric.runs.map((run) => run.score);
  const range = spread(metric, first, second);
  const differences = DATA.keys.map((_, item) => difference(metric, item));
  const reach = Math.max(0.01, ...rangeOf(differences).map(Math.abs));
  return box(
    scatter("A against B", first, second, range, range, "A", "B", { open: openItem, diagonal: true }),
    histogram("Differences", differences, -reach, reach, "A − B", { bins: 21 }),
    labelChart("Mean label probabilities, A and B", metric.labels, meanLabels(metric), DATA.runs));
}

function peopleCharts(metric) {
  const score = metric.runs[0].score, charts = [
    scatter(`Score against ${metric.rating}`, metric.human, score, rangeOf(metric.human), spread(metric, score), metric.rating, "score", { open: openItem })];
  if (metric.groups.length) charts.push(histogram("Spearman within groups", metric.groups, -1, 1, "correlation"));
  return box(...charts);
}

// A part that is drawn when it is opened: of many metrics, most are never looked at.
function folded(name, draw) {
  const part = el("details", { class: "per-metric" }, el("summary", null, name));
  part.addEventListener("toggle", () => { if (part.open && part.children.length === 1) part.append(draw()); });
  return part;
}

function start() {
  const charts = byId("charts");
  if (COMPARING) {
    charts.append(el("p", { class: "legend" }, el("span", { class: "swatch" }), `A: ${DATA.runs[0]}`,
      el("span", { class: "swatch second" }), `B: ${DATA.runs[1]}`));
  }
  for (const metric of DATA.metrics) {
    const draw = () => (COMPARING ? comparisonCharts(metric) : reportCharts(metric));
    charts.append(...(DATA.metrics.length > 1 ? [folded(metric.name, draw)] : [el("h3", null, metric.name), draw()]));
  }
  for (const place of document.querySelectorAll(".people")) {
    place.append(peopleCharts(DATA.metrics[Number(place.dataset.metric)]));
  }
  drawDownloads();
  followLink();
  addEventListener("hashchange", () => { if (location.hash.includes("=")) followLink(); });
  addEventListener("beforeprint", () => { for (const part of document.querySelectorAll("details.per-metric")) part.open = true; });
  document.documentElement.dataset.ready = "yes";
}

start();
