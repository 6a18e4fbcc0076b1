for (const [name, { spec, series, ...sets }] of Object.entries(model.charts)) {
  new Chart(name, series || 1).draw(sets);
}

function setUpFilter() {
  const folds = [...document.querySelectorAll("details.paper")];
  const opened = folds.map((fold) => fold.open);
  const update = () => {
    const wanted = byId("search").value.trim().toLowerCase();
    let [shown, all] = [0, 0];
    folds.forEach((fold, at) => {
      const named = fold.firstElementChild.textContent.toLowerCase().includes(wanted);
      let here = 0;
      for (const row of fold.querySelectorAll("tbody tr")) {
        const fits = named || row.textContent.toLowerCase().includes(wanted);
        row.hidden = !fits;
        here += fits;
        all += 1;
      }
      fold.hidden = !here;
      fold.open = wanted ? here > 0 : opened[at];
      shown += here;
    });
    byId("count").textContent = `${shown} of ${all} rows`;
  };
  byId("search").addEventListener("input", update);
  update();
}
setUpFilter();
