// One item, opened: its texts and all of its figures, in a dialog that Escape closes.

const LONG = 20000;
let current = -1;

function textBlock(name, text) {
  const body = el("pre", { class: "text", dir: "auto", tabindex: "0", "aria-label": name }, text.slice(0, LONG));
  const parts = [el("h3", null, name), body];
  if (text.length > LONG) {
    const all = el("button", { type: "button", class: "all", on: { click: () => { body.textContent = text; all.remove(); body.focus(); } } },
      `Show all ${count(text.length)} characters`);
    parts.push(all);
  }
  return el("section", null, ...parts);
}

function probabilityList(metric, run, item, kind) {
  const p = run.p[item];
  if (!p) return null;
  const most = Math.max(...p);
  const shown = metric.labels.map((text, index) => [text, p[index]]).filter(([, value]) => metric.labels.length <= 12 || value >= 0.005);
  const rows = shown.map(([text, value]) => el("tr", null, el("th", { scope: "row" }, snippet(text, 24)),
    el("td", { class: "long" }, svg("svg", { viewBox: "0 0 100 10", class: `mini ${kind}`, preserveAspectRatio: "none", "aria-hidden": "true" },
      svg("rect", { x: 0, y: 0, height: 10, width: Math.max(0.4, value * 100), class: value === most ? "fill" : "fill weak" }))),
    el("td", null, probability(value))));
  const rest = metric.labels.length - shown.length;
  return el("table", { class: "labels" }, el("caption", null, "label probabilities"), el("tbody", null, ...rows),
    rest ? el("tfoot", null, el("tr", null, el("td", { colspan: 3, class: "quiet" }, `${rest} labels below .005`))) : null);
}

const known = (run, item) => run.code[item] && run.code[item] !== "unknown";

function figuresOf(metric, run, which, item) {
  const title = COMPARING ? `${metric.name} · ${DATA.runs[which]}` : metric.name;
  if (!isNumber(run.score[item])) {
    return el("section", { class: "card" }, el("h3", null, title),
      el("p", { class: "unscored" }, "Unscored: ", ...(known(run, item) ? [el("code", null, run.code[item]), ": "] : []), el("span", { class: "reason", dir: "auto" }, snippet(reasonOf(run, item), 2000))));
  }
  const entries = [["score", number(run.score[item], 3)], ["label mass", probability(run.mass[item])],
    ["std", number(run.std[item], 3)], ["entropy (nats)", number(run.entropy[item], 3)]];
  if (isNumber(humanOf(metric, item))) entries.push([metric.rating, number(humanOf(metric, item), 3)]);
  if (metric.threshold !== null) entries.push([`${metric.better === "low" ? "at most" : "reaches"} ${metric.threshold}`, passes(metric, run.score[item]) ? "yes" : "no"]);
  if (run.dropped[item]) entries.push(["tokens cut to fit", count(run.dropped[item])]);
  const others = (run.other[item] || []).map(([token, p]) =>
    el("li", null, el("code", null, JSON.stringify(token)), ` ${probability(p)}`));
  return el("section", { class: "card" }, el("h3", null, title),
    el("dl", { class: "entries" }, ...entries.flatMap(([name, value]) => [el("dt", null, name), el("dd", null, value)])),
    run.mass[item] < metric.lowMass
      ? el("p", { class: "low" }, `Label mass below ${metric.lowMass}: the judge wants to write something other than a label.`) : null,
    others.length ? el("p", { class: "quiet" }, "likeliest other tokens") : null,
    others.length ? el("ul", { class: "tokens" }, ...others) : null,
    probabilityList(metric, run, item, which ? "second" : ""),
    ...(which ? [] : whyOf(metric, item)).map(writtenReason), which ? null : thoughtList(metric, item));
}

// The thoughts that a judge drew before it answered; the score is that of the mean over them.
function thoughtList(metric, item) {
  const [, texts] = (metric.thoughts || []).find(([place]) => place === item) || [item, []];
  return texts.length ? el("section", { class: "written" }, el("h4", null, "Thoughts before the score"),
    el("ol", null, ...texts.map((text) => el("li", { class: "why" }, snippet(text, 2000))))) : null;
}

// A reason, in the judge's words: about the label that was the likeliest, and never the cause of the score.
function writtenReason(reason) {
  const doubts = [];
  if (reason.text && !reason.cites) doubts.push("cites nothing of the text, and may fit any text");
  if (reason.text && !reason.complete) doubts.push("did not come to an end");
  const origin = [["written by", reason.judge], ["prompt sha256", reason.prompt]].filter(([, value]) => value);
  return el("section", { class: "written" }, el("h4", null, `Why ${snippet(reason.label, 40)}?`),
    el("p", { class: reason.text ? "why" : "unscored", dir: "auto" }, reason.text || `No reason: ${snippet(reason.error, 2000)}`),
    doubts.length ? el("p", { class: "low" }, `This reason ${doubts.join("; it ")}.`) : null,
    origin.length ? el("dl", { class: "entries quiet" },
      ...origin.flatMap(([name, value]) => [el("dt", null, name), el("dd", null, value)])) : null);
}

function step(by) {
  const place = state.shown.indexOf(current);
  const next = state.shown[place + by];
  if (place >= 0 && next !== undefined) fillItem(next);
}

function fillItem(item) {
  current = item;
  const place = state.shown.indexOf(item), dialog = byId("item");
  const held = dialog.contains(document.activeElement) && document.activeElement.getAttribute("data-step");
  const button = (name, text, off, handler) =>
    el("button", { type: "button", "data-step": name, disabled: off, on: { click: handler } }, text);
  const head = el("header", null, el("h2", { id: "item-title", tabindex: "-1" }, `Row ${DATA.rows[item]}${NUMBERED ? "" : ` · ${shortened(DATA.keys[item], 80)}`}`),
    el("div", { class: "actions" },
      el("a", { class: "link", href: linkOf(item) }, "Link to this row"),
      button("previous", "Previous", place <= 0, () => step(-1)),
      button("next", "Next", place < 0 || place >= state.shown.length - 1, () => step(1)),
      button("close", "Close", false, () => dialog.close())));
  const first = [DATA.output, DATA.source].filter((column) => column >= 0);
  const rest = DATA.columns.map((_, index) => index).filter((index) => !first.includes(index));
  const there = [...first, ...rest].map((column) => [DATA.columns[column].name, textAt(column, item), first.includes(column)])
    .filter(([, text]) => text !== null);
  const isLong = ([, text, named]) => named || text.length > 160 || text.includes("\n");
  const short = there.filter((entry) => !isLong(entry));
  const figures = DATA.metrics.flatMap((metric) => metric.runs.map((run, which) => figuresOf(metric, run, which, item)));
  dialog.replaceChildren(head, el("div", { class: "body" },
    el("div", { class: "texts" }, ...there.filter(isLong).map(([name, text]) => textBlock(name, text)),
      short.length ? el("dl", { class: "entries" },
        ...(NUMBERED ? [] : [el("dt", null, "row"), el("dd", null, String(DATA.rows[item]))]),
        ...short.flatMap(([name, text]) => [el("dt", null, name), el("dd", { dir: "auto" }, text)])) : null),
    el("div", { class: "cards" }, ...figures)));
  dialog.scrollTop = 0;
  if (dialog.open) writeLink();
  const again = held && dialog.querySelector(`[data-step="${held}"]`);
  (again && !again.disabled ? again : head.querySelector("h2")).focus();
}

function openItem(item) {
  if (byId("item").open) {
    fillItem(item);
    return;
  }
  const opener = document.activeElement;
  fillItem(item);
  const dialog = byId("item");
  dialog.addEventListener("close", () => {
    // Back to the row of the item that was read last, where it is on this page of the table.
    const row = document.querySelector(`#item-table [data-item="${current}"]`);
    const target = row || (document.contains(opener) ? opener : null);
    if (target) target.focus();
    writeLink();
  }, { once: true });
  if (!dialog.open) dialog.showModal();
  writeLink();
  byId("item-title").focus();
}
