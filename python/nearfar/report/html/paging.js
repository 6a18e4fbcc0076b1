const memory = byId("memory");
const storage = byId("storage");

function setUpTimes() {
  const chart = new Chart("times", 1);
  const bars = model.charts.times.spec.layer[0];
  const { parts } = model.charts.times;
  const zoom = byId("zoom");
  const here = () => model.cells[`${memory.value},${storage.value}`];

  const sets = () => {
    const rows = here().rows;
    const best = rows.find((r) => r.best);
    const cut = zoom.checked ? 4 * best.total_ns : Infinity;
    return {
      bars: rows.flatMap((r) => {
        let below = 0;
        return parts.map(([name, part], order) => {
          const value = Math.max(0, Math.min(r[name], cut - below));
          below += r[name];
          return { ...r, part, order, value };
        });
      }),
      best: [{ label: best.label, total: best.total_ns, text: "▼ best" }],
    };
  };

  const update = () => {
    const rows = here().rows;
    byId("finding").textContent = here().sentence;
    byId("times-table").replaceChildren(table(
      model.charts.times.heads,
      rows.map((r) => [
        r.label + (r.best ? " (best)" : ""), ...parts.map(([name]) => r[`${name}_label`]),
        r.total_ns_label, r.versus_label,
      ]),
      `Time per reference, ${memory.selectedOptions[0].text}, ${storage.selectedOptions[0].text}`,
      rows.findIndex((r) => r.best),
    ));
    for (const cell of document.querySelectorAll("button.cell")) {
      const chosen = cell.dataset.memory === memory.value && cell.dataset.storage === storage.value;
      cell.setAttribute("aria-pressed", String(chosen));
    }
  };

  const change = () => {
    if (!here()) return;
    update();
    chart.show(sets());
  };
  for (const control of [memory, storage, zoom]) control.addEventListener("change", change);
  for (const cell of document.querySelectorAll("button.cell")) {
    cell.addEventListener("click", () => {
      memory.value = cell.dataset.memory;
      storage.value = cell.dataset.storage;
      change();
    });
  }
  bars.encoding.y.scale = { zero: true, nice: true };
  update();
  chart.draw(sets());
}

const outlines = {
  "circle": "M8 3a5 5 0 1 0 0 10a5 5 0 1 0 0-10z",
  "square": "M3.5 3.5h9v9h-9z",
  "triangle-up": "M8 2.5l5.5 10.5h-11z",
  "triangle-down": "M8 13.5l5.5-10.5h-11z",
  "diamond": "M8 2l4.5 6l-4.5 6l-4.5-6z",
  "cross": "M6 2.5h4v3.5h3.5v4h-3.5v3.5h-4v-3.5h-3.5v-4h3.5z",
};

function setUpRates(name, series) {
  const chart = new Chart(name, series);
  const { points, curves } = model.charts[name];
  const boxes = name === "faults" ? [...document.querySelectorAll("input.series")] : [];
  const control = (what) => byId(`${name}-${what}`);

  const sets = () => {
    const shown = new Set(boxes.filter((b) => b.checked).map((b) => b.value));
    const log = control("log").checked;
    const wanted = (r) => (!boxes.length || shown.has(r.series)) && r.value !== null
      && (!log || r.value > 0);
    return {
      points: control("points").checked ? points.filter(wanted) : [],
      curves: control("curves").checked ? curves.filter(wanted) : [],
    };
  };

  /* The axis covers all measured points, also hidden ones, so that it does not move. Curves do not
     extend it, because a bad fit would compress the points. */
  const scale = () => {
    const values = points.map((p) => p.value).filter((v) => v > 0);
    const least = values.length ? Math.min(...values) : 1e-6;
    const most = values.length ? Math.max(...values) : 1;
    for (const layer of chart.spec.layer) {
      layer.encoding.y.scale = control("log").checked
        ? { type: "log", nice: false, domain: [least / 1.4, most * 1.4] }
        : { type: "linear", nice: true, domain: [0, most * 1.05] };
      layer.encoding.y.axis.format = control("log").checked ? "~e" : "~g";
    }
  };

  const legend = () => {
    const colours = ramp(series);
    for (const shape of document.querySelectorAll(`#${name} svg.shape`)) {
      const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
      path.setAttribute("d", outlines[shape.dataset.shape]);
      path.setAttribute("fill", colours[Number(shape.dataset.series)]);
      shape.replaceChildren(path);
    }
  };

  const change = () => chart.show(sets());
  for (const box of boxes) box.addEventListener("change", change);
  control("points").addEventListener("change", change);
  control("curves").addEventListener("change", change);
  control("log").addEventListener("change", () => {
    scale();
    chart.draw(sets());
  });
  if (boxes.length) {
    for (const [id, on] of [["series-all", true], ["series-none", false]]) {
      byId(id).addEventListener("click", () => {
        for (const box of boxes) box.checked = on;
        change();
      });
    }
  }
  dark.addEventListener("change", legend);
  legend();
  scale();
  chart.draw(sets());
}

function setUpMemory() {
  const { points, marks } = model.charts.enough;
  new Chart("enough", 1).draw({ points, marks });
}

if (memory && storage) {
  if (model.charts.enough) setUpMemory();
  setUpTimes();
  setUpRates("faults", memory.options.length);
  setUpRates("tlb", 1);
}

byId("save-csv").addEventListener("click", () => {
  const rows = read("result").rows;
  const names = Object.keys(rows[0] || {});
  const field = (v) => {
    const text = v === null || v === undefined ? "" : String(v);
    return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  const lines = [names, ...rows.map((r) => names.map((n) => r[n]))];
  save("nearfar-rows.csv", "text/csv", lines.map((l) => l.map(field).join(",") + "\n").join(""));
});
