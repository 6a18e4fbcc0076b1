const read = (id) => JSON.parse(document.getElementById(`data-${id}`).textContent);
const byId = (id) => document.getElementById(id);
const themes = read("themes");
const model = read("model");
const dark = matchMedia("(prefers-color-scheme: dark)");
const theme = () => (dark.matches ? themes.dark : themes.light);

/* `count` colours of the heat ramp that stand out from the page's background. */
function ramp(count) {
  const { low, high } = theme();
  const last = themes.heat.length - 1;
  return Array.from({ length: count }, (_, i) => {
    const share = count > 1 ? i / (count - 1) : 0.5;
    return themes.heat[Math.round((low + (high - low) * share) * last)];
  });
}

function config(series) {
  const t = theme();
  return {
    background: "transparent",
    font: getComputedStyle(document.body).fontFamily,
    view: { stroke: null },
    axis: {
      labelColor: t.muted, titleColor: t.muted, gridColor: t.line, domainColor: t.muted,
      tickColor: t.muted, labelFontSize: 12, titleFontSize: 12, titleFontWeight: 500,
      titlePadding: 10,
    },
    legend: { labelColor: t.ink, titleColor: t.muted, labelFontSize: 12 },
    text: { color: t.ink },
    rule: { color: t.ink },
    line: { color: t.category[0] },
    area: { color: t.category[0], line: { color: t.category[0] } },
    bar: { color: t.category[0] },
    range: { category: t.category, ordinal: ramp(series || 1) },
  };
}

/* One chart: `draw` makes it anew, as after a change of colour scheme or scale; `show` changes only
   its data. Calls are queued, because both are asynchronous. */
class Chart {
  constructor(name, series) {
    this.name = name;
    this.series = series;
    this.spec = model.charts[name].spec;
    this.sets = {};
    this.queue = Promise.resolve();
    // An inner element, because Vega overwrites the role and label of its element.
    this.place = document.createElement("div");
    byId(`${name}-chart`).replaceChildren(this.place);
    dark.addEventListener("change", () => this.draw());
  }

  draw(sets) {
    if (sets) this.sets = sets;
    return this.then(async () => {
      if (this.embedded) this.embedded.finalize();
      const spec = structuredClone(this.spec);
      spec.datasets = this.sets;
      this.embedded = await vegaEmbed(this.place, spec, {
        mode: "vega-lite", renderer: "svg", actions: false, ast: true, config: config(this.series),
      });
    });
  }

  show(sets) {
    this.sets = sets;
    return this.then(async () => {
      for (const [name, rows] of Object.entries(sets)) this.embedded.view.data(name, rows);
      await this.embedded.view.runAsync();
    });
  }

  then(step) {
    this.queue = this.queue.then(step);
    return this.queue;
  }
}

function save(name, type, text) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

/* The embedded text, not parsed: numbers beyond 2^53 stay exact. */
byId("save-json").addEventListener("click", () =>
  save("nearfar.json", "application/json", byId("data-result").textContent));

function table(headers, rows, caption, marked) {
  const holder = document.createElement("div");
  holder.className = "scroll";
  holder.tabIndex = 0;
  holder.setAttribute("role", "region");
  holder.setAttribute("aria-label", caption);
  const made = document.createElement("table");
  made.createCaption().textContent = caption;
  const cell = (row, tag, text, scope) => {
    const c = document.createElement(tag);
    c.textContent = text;
    if (scope) c.scope = scope;
    row.append(c);
  };
  const head = made.createTHead().insertRow();
  for (const h of headers) cell(head, "th", h, "col");
  const body = made.createTBody();
  rows.forEach((values, i) => {
    const row = body.insertRow();
    if (i === marked) row.className = "marked";
    values.forEach((v, j) => cell(row, j ? "td" : "th", v, j ? "" : "row"));
  });
  holder.append(made);
  return holder;
}
