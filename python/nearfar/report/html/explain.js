/* An icicle plot of program, library, function and line; the chosen block fills the width. */
function setUpIcicle() {
  const holder = byId("icicle");
  if (!holder) return;
  const lines = read("result").functions;
  const tail = (path) => path.slice(path.lastIndexOf("/") + 1);
  const measure = byId("measure");
  const names = { ns: "time", tlb_misses: "TLB misses", faults: "faults" };

  function buildTree(key) {
    const root = { name: "all", fullName: "all code", value: 0, children: new Map(), depth: 0 };
    for (const line of lines) {
      if (!line[key]) continue;
      const steps = [
        [line.program || "(program)", line.program],
        [tail(line.library), line.library],
        [line.function || "(others)", line.function],
      ];
      if (line.file) steps.push([`${tail(line.file)}:${line.line}`, `${line.file}:${line.line}`]);
      let node = root;
      node.value += line[key];
      for (const [name, fullName] of steps) {
        if (!node.children.has(name)) {
          node.children.set(name, {
            name, fullName, value: 0, children: new Map(), parent: node, depth: node.depth + 1,
          });
        }
        node = node.children.get(name);
        node.value += line[key];
      }
    }
    return root;
  }

  let root = buildTree(measure.value);
  let focus = root;
  const percent = (share) => `${Number((100 * share).toPrecision(2))}\u00a0%`;

  function describe(node) {
    const path = [];
    for (let at = node; at.parent; at = at.parent) path.unshift(at.fullName || at.name);
    byId("icicle-reading").textContent =
      `${path.join(" > ") || "all code"}: ${percent(node.value / root.value)} of the `
      + names[measure.value];
  }

  function block(node, left, width) {
    const made = document.createElement("button");
    made.type = "button";
    made.className = `depth-${node.depth}`;
    made.style.left = `${100 * left}%`;
    made.style.width = `${100 * width}%`;
    made.style.top = `${node.depth * 32}px`;
    made.textContent = node.name;
    const share = percent(node.value / root.value);
    made.setAttribute("aria-label", `${node.fullName || node.name}, ${share}`);
    made.addEventListener("click", () => {
      focus = node === focus && node.parent ? node.parent : node;
      draw();
      describe(focus);
    });
    for (const event of ["pointerenter", "focus"]) {
      made.addEventListener(event, () => describe(node));
    }
    return made;
  }

  function draw() {
    const blocks = [];
    // 2 pixels; narrower blocks are not drawn.
    const minWidth = 2 / Math.max(holder.clientWidth, 1);
    for (let at = focus.parent; at; at = at.parent) blocks.unshift(block(at, 0, 1));
    const place = (node, left, width) => {
      blocks.push(block(node, left, width));
      let from = left;
      const children = [...node.children.values()].sort((a, b) => b.value - a.value);
      for (const child of children) {
        const part = width * child.value / node.value;
        if (part >= minWidth) place(child, from, part);
        from += part;
      }
    };
    place(focus, 0, 1);
    holder.replaceChildren(...blocks);
    holder.style.height = `${5 * 32}px`;
    hideLongNames();
  }

  /* The line below the plot and the ARIA labels have the hidden names. */
  function hideLongNames() {
    for (const one of holder.children) {
      one.classList.remove("narrow");
      one.classList.toggle("narrow", one.scrollWidth > one.clientWidth);
    }
  }

  measure.addEventListener("change", () => {
    root = focus = buildTree(measure.value);
    draw();
    describe(root);
  });
  new ResizeObserver(hideLongNames).observe(holder);
  draw();
}

setUpIcicle();
