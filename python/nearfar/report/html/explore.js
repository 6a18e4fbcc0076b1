const listed = read("result").columns;
const columns = Object.fromEntries(listed.map((c) => [c.name, c]));
const keys = listed.filter((c) => !c.metric).map((c) => c.name);
const metrics = Object.keys(model.metrics);
const count = listed[0].values.length;
const SHOWN = 200;

const cell = (name, row) => {
  const { values, texts } = columns[name];
  return texts ? texts[values[row]] : values[row];
};
/* The largest unit that a value reaches, and the value in it. */
function inUnits(value, names, step) {
  let v = value, i = 0;
  while (Math.abs(v) >= step && i < names.length - 1) { v /= step; i += 1; }
  return `${Number(v.toPrecision(4))}\u00a0${names[i]}`;
}
function label(name, value) {
  if (value === null) return "-";
  if (typeof value !== "number") return value;
  if (name.endsWith("_bytes")) return inUnits(value, ["B", "KiB", "MiB", "GiB", "TiB"], 1024);
  if (name.endsWith("_ns")) return inUnits(value, ["ns", "\u00b5s", "ms", "s"], 1000);
  const digits = Number(value.toPrecision(6));
  return Math.abs(digits) >= 1e4 && Math.abs(digits) < 1e15
    ? digits.toLocaleString("en").replaceAll(",", "\u202f") : String(digits);
}
/* Some six ticks at whole binary units. */
function sizeTicks(values) {
  const [least, most] = [Math.min(...values), Math.max(...values)];
  let step = 1;
  while (step * 6 < most - least) step *= 2;
  const ticks = [];
  for (let at = Math.floor(least / step) * step; at < most + step; at += step) ticks.push(at);
  return ticks;
}
/* Numbers in order, texts as the rows have them. */
function levels(name) {
  const found = [...new Set(columns[name].values)];
  if (columns[name].texts) return columns[name].texts;
  return found.sort((a, b) => a - b);
}
function options(select, items, chosen) {
  select.replaceChildren(...items.map(([value, text]) => {
    const made = document.createElement("option");
    made.value = value;
    made.textContent = text;
    return made;
  }));
  if (chosen !== undefined) select.value = chosen;
}

/* --- filters */

const chosen = {};
for (const name of keys) {
  const all = levels(name);
  if (all.length < 2 || all.length > model.limits.choices) continue;
  const holder = document.createElement("label");
  holder.className = "check";
  const select = document.createElement("select");
  select.dataset.column = name;
  options(select, [["", "any"], ...all.map((v, i) => [String(i), label(name, v)])]);
  select.addEventListener("change", () => {
    chosen[name] = select.value === "" ? undefined : all[Number(select.value)];
    update();
  });
  holder.append(name, " ", select);
  byId("filters").append(holder);
}
byId("search").addEventListener("input", () => update());

function matching() {
  const wanted = byId("search").value.trim().toLowerCase();
  const rows = [];
  for (let row = 0; row < count; row += 1) {
    const fits = Object.entries(chosen)
      .every(([name, value]) => value === undefined || cell(name, row) === value);
    if (fits && (!wanted || keys.some((name) =>
      String(label(name, cell(name, row))).toLowerCase().includes(wanted)))) rows.push(row);
  }
  return rows;
}

/* --- chart */

const chart = new Chart("explore", 8);
const few = keys.filter((name) => {
  const found = levels(name).length;
  return found > 1 && found <= model.limits.colours;
});
options(byId("pick-x"), [...keys, ...metrics].map((n) => [n, n]), model.x);
options(byId("pick-y"), metrics.map((n) => [n, n]));
options(byId("pick-colour"), [["", "none"], ...few.map((n) => [n, n])],
  few.find((name) => name !== model.x) ?? "");
for (const name of ["x", "y", "colour"]) {
  byId(`pick-${name}`).addEventListener("change", () => draw(matching()));
}
byId("log").addEventListener("change", () => draw(matching()));

const axisOf = (name) => {
  const end = Object.keys(model.axes).find((e) => name.endsWith(e));
  return end ? model.axes[end] : undefined;
};

function draw(rows) {
  const [x, y, colour] = ["x", "y", "colour"].map((n) => byId(`pick-${n}`).value);
  const groups = new Map();
  for (const row of rows) {
    const value = cell(y, row);
    const at = cell(x, row);
    if (value === null || at === null) continue;
    const series = colour ? String(label(colour, cell(colour, row))) : y;
    const key = JSON.stringify([at, series]);
    const known = groups.get(key);
    if (known) {
      known.sum += value;
      known.rows += 1;
      known.least = Math.min(known.least, value);
      known.most = Math.max(known.most, value);
    } else {
      groups.set(key, { x: at, c: series, sum: value, rows: 1, least: value, most: value });
    }
  }
  const log = byId("log").checked;
  const points = [...groups.values()]
    .map((g) => ({ ...g, y: g.sum / g.rows, x_label: label(x, g.x), y_label: label(y, g.sum / g.rows) }))
    .filter((g) => !log || g.least > 0);
  const numeric = columns[x].numeric;
  const order = numeric ? undefined : levels(x);
  const positive = numeric && x.endsWith("_bytes") && points.every((p) => p.x > 0);
  const spec = structuredClone(model.charts.explore.spec);
  const names = [...new Set(points.map((p) => p.c))];
  for (const layer of spec.layer) {
    const { encoding } = layer;
    encoding.x.type = numeric ? "quantitative" : "nominal";
    encoding.x.scale = positive ? { type: "log", base: 2, padding: 12 } : numeric
      ? { zero: false, padding: 12 } : { padding: 0.5 };
    if (order) encoding.x.sort = order;
    encoding.x.axis = { title: x, labelOverlap: "greedy", labelSeparation: 6 };
    if (numeric && axisOf(x)) encoding.x.axis.labelExpr = axisOf(x);
    if (positive) encoding.x.axis.values = [...new Set(points.map((p) => p.x))];
    encoding.y.scale = log ? { type: "log" } : { zero: false, nice: true };
    encoding.y.axis = { title: y, tickCount: 6, labelOverlap: "greedy", labelSeparation: 2 };
    if (axisOf(y)) encoding.y.axis.labelExpr = axisOf(y);
    if (y.endsWith("_bytes") && !log && points.length) {
      encoding.y.axis.values = sizeTicks(points.flatMap((p) => [p.least, p.most]));
    }
    encoding.color.scale = { domain: names };
    if (encoding.shape) encoding.shape.scale = { domain: names };
    if (layer.mark.type === "line" && !numeric) layer.mark.opacity = 0;
  }
  chart.spec = spec;
  chart.draw({ points });
}

/* --- paired differences */

function setUpDifferences() {
  const bys = [...new Set(model.differences.map((d) => d.by))];
  options(byId("pick-by"), bys.map((n) => [n, n]));
  options(byId("pick-of"), metrics.map((n) => [n, n]));
  const update = () => {
    const [by, of] = [byId("pick-by").value, byId("pick-of").value];
    const found = model.differences.find((d) => d.by === by && d.of === of);
    const heads = [by, ...model.heads];
    byId("differences-table").replaceChildren(
      table(heads, found ? found.rows : [], `${of} by ${by}`));
  };
  byId("pick-by").addEventListener("change", update);
  byId("pick-of").addEventListener("change", update);
  update();
}
if (model.differences.length) setUpDifferences();

/* --- rows */

options(byId("pick-sort"), [["", "as run"],
  ...metrics.flatMap((n) => [[`+${n}`, `${n}, least first`], [`-${n}`, `${n}, most first`]])]);
byId("pick-sort").addEventListener("change", () => show(matching()));

function show(rows) {
  const how = byId("pick-sort").value;
  const sorted = [...rows];
  if (how) {
    const sign = how[0] === "+" ? 1 : -1;
    const name = how.slice(1);
    const end = sign * Infinity;
    sorted.sort((a, b) => sign * ((cell(name, a) ?? end) - (cell(name, b) ?? end)) || a - b);
  }
  const names = [...keys, ...metrics];
  const cells = sorted.slice(0, SHOWN).map((row) => names.map((n) => label(n, cell(n, row))));
  const caption = rows.length > SHOWN ? `The first ${SHOWN} of ${rows.length} rows` : "Rows";
  byId("rows-table").replaceChildren(table(names, cells, caption));
}

byId("save-csv").addEventListener("click", () => {
  const names = [...keys, ...metrics];
  const quote = (v) => (v === null ? "" : /[",\n]/.test(v) ? `"${String(v).replaceAll('"', '""')}"` : v);
  const lines = matching().map((row) => names.map((n) => quote(cell(n, row))).join(","));
  save("nearfar.csv", "text/csv", `${[names.join(","), ...lines].join("\n")}\n`);
});

/* Numbers that differ a hundredfold are begun with on a logarithmic axis. */
const known = columns[byId("pick-y").value].values.filter((v) => v !== null);
const [least, most] = [known.reduce((a, b) => Math.min(a, b), Infinity), known.reduce((a, b) => Math.max(a, b), 0)];
byId("log").checked = least > 0 && most > 100 * least;

function update() {
  const rows = matching();
  byId("count").textContent = `${rows.length} of ${count} rows`;
  draw(rows);
  show(rows);
}
update();
