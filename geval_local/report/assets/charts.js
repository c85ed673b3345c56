// Charts as inline SVG: histograms, label bars and scatter plots. Colours come from the style sheet.

const W = 340, H = 152, LEFT = 38, RIGHT = 12, TOP = 10, BOTTOM = 38;
const scaler = (low, high, from, to) => (value) => from + ((value - low) / (high - low || 1)) * (to - from);

function ticks(low, high, wanted = 5) {
  const rough = (high - low) / wanted;
  if (!(rough > 0)) return [low];
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((size) => size >= rough * 0.999);
  const found = [];
  for (let value = Math.ceil(low / step - 1e-9) * step; value <= high + step * 1e-6; value += step) found.push(value);
  return found;
}

// The end of an axis of counts or shares: the first tick that nothing exceeds.
function ceiling(highest) {
  const found = ticks(0, highest * 2, 6);
  return found.find((value) => value >= highest) || highest;
}

const tickText = (value) => String(Number(value.toFixed(6)));
const label = (x, y, text, anchor = "middle", extra = {}) => svg("text", { x, y, "text-anchor": anchor, ...extra }, text);

function figure(title, description, ...content) {
  return el("figure", null, el("figcaption", null, title),
    svg("svg", { viewBox: `0 0 ${W} ${H}`, class: "chart", role: "img", "aria-label": `${title}. ${description}` }, ...content));
}

function axes(x, y, xTicks, yTicks, xName, yName) {
  return svg("g", { class: "axes" },
    ...yTicks.map((value) => svg("line", { x1: LEFT, x2: W - RIGHT, y1: y(value), y2: y(value), class: "grid" })),
    ...yTicks.map((value) => label(LEFT - 5, y(value) + 4, tickText(value), "end")),
    svg("line", { x1: LEFT, x2: W - RIGHT, y1: H - BOTTOM, y2: H - BOTTOM, class: "base" }),
    ...xTicks.map(([place, text]) => label(x(place), H - BOTTOM + 14, text)),
    label((LEFT + W - RIGHT) / 2, H - 6, xName, "middle", { class: "name" }),
    yName ? label(10, (TOP + H - BOTTOM) / 2, yName, "middle",
      { class: "name", transform: `rotate(-90 10 ${(TOP + H - BOTTOM) / 2})` }) : null);
}

const numberTicks = (low, high) => ticks(low, high).map((value) => [value, tickText(value)]);

function bars(heights, x, y, classOf, titleOf) {
  return heights.map((height, index) => height > 0 && svg("rect", {
    x: x(index) + 0.5, width: Math.max(1, x(index + 1) - x(index) - 1),
    y: y(height), height: Math.max(1, y(0) - y(height)), class: classOf(index),
  }, svg("title", null, titleOf(index)))).filter(Boolean);
}

// `marked(low, high)` tells which bins stand out.
function histogram(title, values, low, high, xName, { bins = 20, marked = () => false } = {}) {
  const found = values.filter(isNumber);
  if (!found.length) return figure(title, "No values.", label(W / 2, H / 2, "no values"));
  const counts = new Array(bins).fill(0);
  const width = (high - low) / bins || 1;
  for (const value of found) counts[Math.min(bins - 1, Math.max(0, Math.floor((value - low) / width)))] += 1;
  const top = ceiling(Math.max(...counts));
  const x = scaler(low, high, LEFT, W - RIGHT), y = scaler(0, top, H - BOTTOM, TOP);
  const ends = (index) => [low + index * width, low + (index + 1) * width];
  const sorted = [...found].sort((a, b) => a - b);
  const said = `${plural(found.length, "value")}, lowest ${number(sorted[0])}, median ` +
    `${number(sorted[found.length >> 1])}, highest ${number(sorted[found.length - 1])}.`;
  return figure(title, said,
    axes(x, y, numberTicks(low, high), ticks(0, top, 3).filter(Number.isInteger), xName),
    ...bars(counts, scaler(0, bins, LEFT, W - RIGHT), y, (index) => (marked(...ends(index)) ? "bar mark" : "bar"),
      (index) => `${number(ends(index)[0])} to ${number(ends(index)[1])}: ${count(counts[index])}`));
}

function labelChart(title, labels, runs, names) {
  const top = ceiling(Math.max(0.001, ...runs.flat()));
  const x = scaler(0, labels.length, LEFT, W - RIGHT), y = scaler(0, top, H - BOTTOM, TOP);
  const every = Math.ceil(labels.length / 11), width = (0.84 * (x(1) - x(0))) / runs.length;
  const shown = labels.map((text, index) => [index + 0.5, text.length > 9 ? `${text.slice(0, 8)}…` : text]);
  const listed = (run) => labels.map((text, index) => `${text} ${probability(run[index])}`).join(", ");
  const said = labels.length > 20 ? `${labels.length} labels.`
    : runs.map((run, which) => (names.length > 1 ? `${names[which]}: ` : "") + listed(run)).join("; ");
  return figure(title, said,
    axes(x, y, shown.filter((_, index) => index % every === 0), ticks(0, top, 3), "label"),
    ...runs.flatMap((run, which) => run.map((p, index) => svg("rect", {
      x: x(index + 0.08) + which * width, width: Math.max(1, width - 1), y: y(p), height: y(0) - y(p),
      class: which ? "bar second" : "bar",
    }, svg("title", null, `${labels[index]}: ${probability(p)}`)))));
}

// Small bars of one item; one path, so that a hundred labels cost as much as five.
function miniBars(labels, values, kind = "") {
  const width = Math.min(96, Math.max(40, labels.length * 13)), height = 22, each = width / labels.length;
  const gap = each > 4 ? 1.5 : 0;
  let shape = "";
  values.forEach((p, index) => {
    const tall = Math.max(p * (height - 2), p > 0.0005 ? 1 : 0);
    if (tall) shape += `M${(index * each + gap / 2).toFixed(2)} ${height}v${(-tall).toFixed(2)}h${(each - gap).toFixed(2)}v${tall.toFixed(2)}z`;
  });
  const order = values.map((p, index) => [p, index]).sort((a, b) => b[0] - a[0]).slice(0, 5).sort((a, b) => a[1] - b[1]);
  const said = order.map(([p, index]) => `${labels[index]}: ${probability(p)}`).join(", ");
  return svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, class: `mini ${kind}`, role: "img", "aria-label": said },
    svg("title", null, said), svg("path", { d: `M0 ${height - 0.5}h${width}`, class: "base" }), svg("path", { d: shape, class: "fill" }));
}

// Dots of one item each; where many fall on one place the place is drawn darker. A click opens the nearest item.
function scatter(title, xs, ys, xRange, yRange, xName, yName, { open, diagonal = false } = {}) {
  const x = scaler(...xRange, LEFT + 4, W - RIGHT - 4), y = scaler(...yRange, H - BOTTOM - 4, TOP + 2);
  const places = new Map(), points = [];
  xs.forEach((value, index) => {
    if (!isNumber(value) || !isNumber(ys[index])) return;
    const point = [x(value), y(ys[index]), index];
    points.push(point);
    const key = `${Math.round(point[0] / 2)},${Math.round(point[1] / 2)}`;
    const place = places.get(key);
    if (place) place[2] += 1;
    else places.set(key, [point[0], point[1], 1]);
  });
  if (!points.length) return figure(title, "No values.", label(W / 2, H / 2, "no values"));
  const paths = ["", "", "", ""];
  for (const [px, py, many] of places.values()) {
    paths[Math.min(3, Math.floor(Math.log2(many)))] += `M${px.toFixed(1)} ${py.toFixed(1)}h0`;
  }
  const ends = [Math.max(xRange[0], yRange[0]), Math.min(xRange[1], yRange[1])];
  const drawn = figure(title, `${plural(points.length, "item")}.`,
    axes(x, y, numberTicks(...xRange), ticks(...yRange, 4), xName, yName),
    diagonal && ends[0] < ends[1]
      ? svg("line", { x1: x(ends[0]), y1: y(ends[0]), x2: x(ends[1]), y2: y(ends[1]), class: "diagonal" }) : null,
    ...paths.map((shape, level) => shape && svg("path", { d: shape, class: `dots level${level}` })).filter(Boolean));
  const image = drawn.querySelector("svg");
  if (open) {
    image.classList.add("clickable");
    image.addEventListener("click", (event) => {
      const box = image.getBoundingClientRect(), zoom = W / box.width;
      const at = [(event.clientX - box.left) * zoom, (event.clientY - box.top) * zoom];
      let best = null, least = 12 ** 2;
      for (const [px, py, index] of points) {
        const distance = (px - at[0]) ** 2 + (py - at[1]) ** 2;
        if (distance < least) [least, best] = [distance, index];
      }
      if (best !== null) open(best);
    });
  }
  return drawn;
}
