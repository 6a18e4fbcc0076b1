for (const [name, figure] of Object.entries(model.charts)) {
  new Chart(name, figure.series).draw({ points: figure.points, curves: figure.curves });
}
