const cells = read("cells");
const states = read("states");
const which = byId("which");
const chart = new Chart("service", 2);
/* Never an empty set: Vega warns that it has no extent. What is not there is drawn unseen. */
const sets = (cell) => {
  const bars = cell.bars.length ? cell.bars : [{ low: 1, high: 2, value: 0, kind: "actual" }];
  const [low, shown] = cell.threshold > 0 ? [cell.threshold, 1] : [bars[0].low, 0];
  return { bars, threshold: [{ low, shown, label: time(low) }] };
};

function time(ns) {
  for (const [unit, size] of [["s", 1e9], ["ms", 1e6], ["\u00b5s", 1e3]]) {
    if (ns >= size) return `${Number((ns / size).toPrecision(4))}\u00a0${unit}`;
  }
  return `${Math.round(ns)}\u00a0ns`;
}

const canvas = byId("lanes");
const LANE = 26;
let cell = cells[0];
let [start, end] = [0, 1];

function whole() {
  return Math.max(1, ...cell.lanes.map((lane) => lane.length));
}

function draw() {
  const ratio = devicePixelRatio || 1;
  const height = LANE * Math.max(1, cell.lanes.length);
  canvas.style.height = `${height}px`;
  canvas.width = Math.round(canvas.clientWidth * ratio);
  canvas.height = Math.round(height * ratio);
  const pen = canvas.getContext("2d");
  const wide = canvas.width / (end - start);
  cell.lanes.forEach((lane, number) => {
    const y = number * LANE * ratio;
    const first = Math.max(0, Math.floor(start));
    const last = Math.min(lane.length, Math.ceil(end));
    let from = first;
    for (let at = first + 1; at <= last; at++) {
      if (at < last && lane[at] === lane[from]) continue;
      const colour = states[lane[from]][1];
      if (colour !== "transparent") {
        pen.fillStyle = colour;
        // Never thinner than a pixel: what was short is still seen.
        const width = Math.max(1, (at - from) * wide);
        pen.fillRect((from - start) * wide, y + 4 * ratio, width, (LANE - 8) * ratio);
      }
      from = at;
    }
    pen.fillStyle = theme().muted;
    pen.fillRect(0, y + (LANE - 1) * ratio, canvas.width, ratio);
  });
  const ticks = [0, 0.5, 1].map((share) => {
    const tick = document.createElement("span");
    tick.textContent = time((start + share * (end - start)) * cell.stretch_ns);
    return tick;
  });
  byId("lanes-ticks").replaceChildren(...ticks);
}

function view(from, to) {
  const length = Math.min(Math.max(to - from, 8), whole());
  start = Math.min(Math.max(0, from), whole() - length);
  end = start + length;
  draw();
}

const zoom = (factor, middle = (start + end) / 2) =>
  view(middle - (middle - start) * factor, middle + (end - middle) * factor);
const move = (share) => view(start + share * (end - start), end + share * (end - start));
const actions = {
  "zoom-in": () => zoom(0.5), "zoom-out": () => zoom(2), "zoom-all": () => view(0, whole()),
  earlier: () => move(-0.5), later: () => move(0.5),
};
for (const [id, action] of Object.entries(actions)) byId(id).addEventListener("click", action);
const keys = {
  ArrowLeft: "earlier", ArrowRight: "later", "+": "zoom-in", "=": "zoom-in", "-": "zoom-out",
  0: "zoom-all",
};
canvas.addEventListener("keydown", (event) => {
  if (!keys[event.key] || event.ctrlKey || event.metaKey) return;
  event.preventDefault();
  actions[keys[event.key]]();
});

let held = null;
const place = (event) => {
  const box = canvas.getBoundingClientRect();
  return start + (event.clientX - box.left) / box.width * (end - start);
};
canvas.addEventListener("dblclick", (event) => zoom(0.5, place(event)));
canvas.addEventListener("pointerdown", (event) => {
  held = { x: event.clientX, start, end };
  canvas.setPointerCapture(event.pointerId);
});
canvas.addEventListener("pointerup", () => { held = null; });
canvas.addEventListener("pointercancel", () => { held = null; });
canvas.addEventListener("pointermove", (event) => {
  if (held) {
    const by = (held.x - event.clientX) / canvas.clientWidth * (held.end - held.start);
    view(held.start + by, held.end + by);
    return;
  }
  const number = Math.floor((event.clientY - canvas.getBoundingClientRect().top) / LANE);
  const lane = cell.lanes[number];
  if (!lane) return;
  const at = Math.floor(place(event));
  const [from, to] = [at, at + 1].map((edge) => time(edge * cell.stretch_ns));
  byId("lanes-reading").textContent =
    `thread ${number}, ${from} to ${to}: ${states[lane[at] || "."][0]}`;
});

function choose() {
  cell = cells[Number(which.value)];
  byId("lanes-reading").textContent =
    `${cell.name}: ${cell.lanes.length} threads, ${time(cell.seconds * 1e9)}`;
  view(0, whole());
  return chart.draw(sets(cell));
}

which.addEventListener("change", choose);
dark.addEventListener("change", draw);
new ResizeObserver(draw).observe(canvas.parentElement);
choose();
