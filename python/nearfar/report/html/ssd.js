/* Without faults the page has no histogram. */
if (byId("which")) {
  const cells = read("cells");
  const which = byId("which");
  const chart = new Chart("service", 2);
  /* Vega warns about empty data sets, so these get an invisible row. */
  const sets = ({ bars, threshold }) => ({
    bars: bars.length ? bars : [{ low: 1, high: 2, value: 0, kind: "actual" }],
    threshold: [threshold ?? { low: bars.length ? bars[0].low : 1, shown: 0 }],
  });
  const choose = () => chart.draw(sets(cells[Number(which.value)]));
  which.addEventListener("change", choose);
  choose();
}
for (const [name, { spec, ...sets }] of Object.entries(model.charts))
  if (name !== "service") new Chart(name, 1).draw(sets);
