function setUpFleet() {
  const chart = new Chart("curve", 1);
  const picks = [...document.querySelectorAll("button.pick")];

  const sets = (vm) => ({ curve: vm.curve, marks: vm.marks });

  const update = (index) => {
    const vm = model.vms[index];
    const why = byId("why-text");
    const sentence = document.createElement("p");
    const name = document.createElement("b");
    name.textContent = `${vm.name}: `;
    sentence.append(name, vm.why);
    const list = document.createElement("dl");
    for (const [term, value] of vm.facts) {
      const dt = document.createElement("dt");
      const dd = document.createElement("dd");
      dt.textContent = term;
      dd.textContent = value;
      list.append(dt, dd);
    }
    why.replaceChildren(sentence, list);
    byId("curve-table").replaceChildren(table(
      model.charts.curve.heads,
      vm.curve.map((p) => [
        p.page_label, p.predicted_label, p.simulated_label, p.translation_label, p.data_label,
        p.fitted,
      ]),
      `Time per reference of ${vm.name}`,
    ));
    picks.forEach((pick, i) => pick.setAttribute("aria-pressed", String(i === index)));
  };

  picks.forEach((pick, index) => pick.addEventListener("click", () => {
    update(index);
    chart.show(sets(model.vms[index]));
  }));
  update(0);
  chart.draw(sets(model.vms[0]));
}

if (model.vms.length) setUpFleet();
