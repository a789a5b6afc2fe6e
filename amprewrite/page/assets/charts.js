// Errors by depth: one position for each op in program order, a logarithmic axis.
amp.charts = (() => {
  const { make } = amp;
  const COLOURS = ["muted", "bad", "f16-line", "f8-line"];
  const positive = (cell) => {
    const found = cell === null ? NaN : amp.number(cell);
    return found > 0 && Number.isFinite(found) ? found : null;
  };

  const axis = (label, more = {}) => ({
    stroke: amp.colour("muted"), grid: { stroke: amp.colour("line"), width: 1 }, ticks: { stroke: amp.colour("line") },
    label, labelSize: 22, font: "12px system-ui, sans-serif", labelFont: "12px system-ui, sans-serif", ...more,
  });

  const tens = (u, splits) => splits.map((at) => (at && Math.log10(at) % 1 === 0 ? at : null));

  const build = (chart, key) => {
    const plot = make("div", { class: "plot" });
    const named = make("div", { class: "named", "aria-hidden": "true" }, " ");
    amp.section(key, chart.title, chart.lead, make("div", { class: "chart" }, plot, named));
    const values = [chart.names.map((_, at) => at), ...chart.lines.map((line) => line.values.map(positive))];
    const paint = (line, at) => (line.dtype ? amp.stroke(line.dtype) : amp.colour(COLOURS[at % COLOURS.length]));
    let drawn = null;
    const draw = () => {
      if (drawn) drawn.destroy();
      const background = amp.colour("page");
      drawn = new uPlot({
        width: Math.max(280, plot.clientWidth), height: 320,
        scales: { x: { time: false }, y: { distr: 3 } },
        axes: [axis(chart.across), axis(chart.up, { size: 62, grid: { stroke: amp.colour("line"), width: 1, filter: tens }, ticks: { stroke: amp.colour("line"), filter: tens }, values: (u, ticks) => ticks.map((t) => (t && Math.log10(t) % 1 === 0 ? t.toExponential(0) : "")) })],
        series: [{ label: chart.across, value: (u, at) => (at === null ? "–" : String(at + 1)) },
          ...chart.lines.map((line, at) => ({
            label: line.name, stroke: paint(line, at), width: line.points ? 0 : 2, spanGaps: true,
            value: (u, found) => (found === null ? "–" : amp.error(found)),
            ...(line.points ? { paths: () => null, points: { show: true, size: 6, fill: paint(line, at), stroke: background, width: 0.5 } } : { points: { show: false } }),
          }))],
        cursor: { drag: { x: true, y: false }, points: { size: 8 } },
        hooks: { setCursor: [(u) => { named.textContent = u.cursor.idx === null || u.cursor.idx === undefined ? " " : chart.names[u.cursor.idx]; }] },
      }, values, plot);
      drawn.over.addEventListener("click", () => {
        const at = drawn.cursor.idx;
        if (at !== null && at !== undefined) amp.select(chart.names[at], "chart");
      });
    };
    draw();
    amp.onTheme(draw);
    amp.onWidth(plot, draw);
  };
  return { build, axis };
})();
