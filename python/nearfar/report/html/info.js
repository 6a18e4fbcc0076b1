for (const [name, { spec, ...sets }] of Object.entries(model.charts)) {
  new Chart(name, 1).draw(sets);
}
