function setUpHeat() {
  const map = byId("heat-map");
  if (!map) return;
  const { times, per_bin: perBin, rows, counts, seconds } = read("heat");
  const height = Math.max(240, Math.min(480, rows.length * 3));
  const most = counts.reduce((m, row) => row.reduce((n, c) => Math.max(n, c), m), 1);
  const digits = (n) => Math.round(n).toLocaleString("en").replaceAll(",", "\u202f");
  const short = (n) => {
    for (const [unit, size] of [["G", 1e9], ["M", 1e6], ["k", 1e3]]) {
      if (n >= size) return `${Number((n / size).toPrecision(3))} ${unit}`;
    }
    return String(Math.round(n));
  };
  const time = (bin) => `${Number(seconds[bin].toPrecision(3))} s`;
  const rgb = themes.heat.map((c) => [1, 3, 5].map((i) => parseInt(c.slice(i, i + 2), 16)));
  /* Logarithmic: a page touched once and one touched a million times both show. On a dark page the
     ramp starts higher, so that once is still seen. */
  const colour = (count) => {
    const start = dark.matches ? 0.22 : 0;
    const share = most > 1 ? Math.log(count) / Math.log(most) : 1;
    return rgb[Math.round((start + (1 - start) * share) * (rgb.length - 1))];
  };
  const image = document.createElement("canvas");
  image.width = times;
  image.height = rows.length;

  function paint() {
    const pixels = image.getContext("2d").createImageData(times, rows.length);
    counts.forEach((row, a) => row.forEach((count, t) => {
      if (!count) return;
      // The highest address is the top row.
      pixels.data.set([...colour(count), 255], 4 * ((rows.length - 1 - a) * times + t));
    }));
    image.getContext("2d").putImageData(pixels, 0, 0);
    const scale = byId("heat-scale").getContext("2d");
    for (let i = 0; i < 128; i++) {
      scale.fillStyle = `rgb(${colour(most ** (i / 127))})`;
      scale.fillRect(i, 0, 1, 1);
    }
  }

  const bands = [];
  rows.forEach(([, , label], a) => {
    const last = bands.at(-1);
    if (last && last.label === label) last.end = a + 1;
    else bands.push({ label, start: a, end: a + 1 });
  });

  let cursor = null;
  function draw() {
    const width = map.clientWidth;
    const ratio = devicePixelRatio || 1;
    map.style.height = `${height}px`;
    map.width = Math.round(width * ratio);
    map.height = Math.round(height * ratio);
    const pen = map.getContext("2d");
    pen.imageSmoothingEnabled = false;
    pen.drawImage(image, 0, 0, map.width, map.height);
    pen.fillStyle = theme().muted;
    for (const band of bands.slice(1)) {
      pen.fillRect(0, Math.round(map.height * (1 - band.start / rows.length)), map.width, ratio);
    }
    if (cursor) {
      const [w, h] = [map.width / times, map.height / rows.length];
      const [x, y] = [cursor.time * w, map.height - (cursor.row + 1) * h];
      pen.strokeStyle = theme().ink;
      pen.lineWidth = 2 * ratio;
      pen.strokeRect(x - 2 * ratio, y - 2 * ratio, w + 4 * ratio, h + 4 * ratio);
    }
  }

  function label() {
    const holder = byId("heat-bands");
    holder.style.height = `${height}px`;
    let free = height;
    holder.replaceChildren(...bands.flatMap((band) => {
      const middle = height * (1 - (band.start + band.end) / 2 / rows.length);
      if (middle > free) return [];
      free = middle - 16;
      const name = document.createElement("span");
      const inner = document.createElement("bdi");
      // The end of a path tells files apart.
      inner.textContent = (band.label || "(no name)")
        .replace(/^page cache: \/.*\/(.)/, "cache: $1").replace(/^\/.*\/(.)/, "$1")
        .replace("(anonymous) ", "");
      name.title = band.label;
      name.append(inner);
      name.style.top = `${Math.max(0, Math.min(height - 16, middle - 8))}px`;
      return [name];
    }));
    const ticks = [0, 0.25, 0.5, 0.75, 1].map((share) => {
      const tick = document.createElement("span");
      tick.textContent = seconds ? time(Math.round(share * times))
        : short(share * times * perBin) + (share === 1 ? " references" : "");
      return tick;
    });
    byId("heat-ticks").replaceChildren(...ticks);
    byId("heat-least").textContent = "1 reference";
    byId("heat-most").textContent = digits(most);
  }

  function update() {
    const [low, high, name] = rows[cursor.row];
    const from = cursor.time * perBin;
    byId("heat-reading").textContent =
      `${digits(counts[cursor.row][cursor.time])} references to ${name || "(no name)"}, `
      + `${low} to ${high}, records ${short(from)} to ${short(from + perBin)}`
      + (seconds ? `, ${time(cursor.time)} to ${time(cursor.time + 1)}` : "");
    draw();
  }

  const within = (value, end) => Math.max(0, Math.min(end - 1, value));
  map.addEventListener("pointermove", (event) => {
    const box = map.getBoundingClientRect();
    cursor = {
      time: within(Math.floor((event.clientX - box.left) / box.width * times), times),
      row: within(Math.floor((1 - (event.clientY - box.top) / box.height) * rows.length),
        rows.length),
    };
    update();
  });
  const steps = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };
  map.addEventListener("keydown", (event) => {
    const step = steps[event.key];
    if (!step) return;
    event.preventDefault();
    const far = event.shiftKey ? 10 : 1;
    cursor = cursor ? {
      time: within(cursor.time + far * step[0], times),
      row: within(cursor.row + far * step[1], rows.length),
    } : { time: 0, row: rows.length - 1 };
    update();
  });
  dark.addEventListener("change", () => {
    paint();
    draw();
  });
  new ResizeObserver(draw).observe(map.parentElement);
  paint();
  label();
  draw();
}

setUpHeat();
