// Exponents of weights, activations and gradients, with the ranges of the formats drawn
// over them.
amp.exponents = (() => {
  const { data, make } = amp;
  const found = data.histograms;
  const KINDS = ["weight", "activation", "weight gradient", "activation gradient"];
  const PLURAL = { weight: "Weights", activation: "Activations", "weight gradient": "Gradients of weights", "activation gradient": "Gradients of activations" };
  const BAND = 17;

  const sum = (rows) => {
    const counts = new Map();
    let zeros = 0;
    let nonfinite = 0;
    for (const row of rows) {
      zeros += row.zeros;
      nonfinite += row.nonfinite;
      for (const [exponent, n] of Object.entries(row.counts)) counts.set(Number(exponent), (counts.get(Number(exponent)) || 0) + n);
    }
    const total = [...counts.values()].reduce((a, b) => a + b, 0);
    return { counts, zeros, nonfinite, total };
  };
  const below = (counts, total, exponent) => {
    let n = 0;
    for (const [e, c] of counts) if (e < exponent) n += c;
    return total ? n / total : 0;
  };

  const present = found ? found.rows.flatMap((row) => Object.keys(row.counts).map(Number)) : [];
  const low = Math.min(-26, ...present) - 1; // one axis for all, so that they compare
  const high = Math.max(17, ...present) + 1;

  const chart = (place, kind, rows) => {
    const all = sum(rows);
    const half = found.ranges.find((range) => range.name === "float16");
    const lost = below(all.counts, all.total, half.subnormal);
    const subnormal = below(all.counts, all.total, half.normal) - lost;
    const choice = make("select", { "aria-label": `Tensor: ${PLURAL[kind]}` }, make("option", { value: "" }, `all ${rows.length} tensors`),
      ...rows.map((row, at) => make("option", { value: String(at) }, [row.path, row.name].filter(Boolean).join(": "))));
    const plot = make("div", { class: "plot", role: "img", "aria-label":
      `${PLURAL[kind]}: ${amp.share(lost)} of the nonzero elements lie below float16, ${amp.share(subnormal)} among its subnormal numbers` });
    const words = make("p", { class: "lead" });
    place.append(make("div", { class: "chart" }, make("h3", {}, PLURAL[kind]), words, make("div", { class: "tools" }, choice), plot));
    let drawn = null;
    const draw = () => {
      const picked = choice.value === "" ? all : sum([rows[Number(choice.value)]]);
      const gone = below(picked.counts, picked.total, half.subnormal);
      const small = below(picked.counts, picked.total, half.normal) - gone;
      const parts = [`${amp.count(picked.total)} nonzero elements`, `${amp.count(picked.zeros)} zeros`];
      if (picked.nonfinite) parts.push(`${amp.count(picked.nonfinite)} not finite`);
      words.textContent = `${parts.join(", ")}. In float16 ${amp.share(gone)} of the nonzero ones become zero, ${amp.share(small)} subnormal.`;
      const x = Array.from({ length: high - low + 1 }, (_, at) => low + at);
      const y = x.map((e) => (picked.total ? (100 * (picked.counts.get(e) || 0)) / picked.total : 0));
      if (drawn) drawn.destroy();
      drawn = new uPlot({
        width: Math.max(280, plot.clientWidth), height: 320, padding: [found.ranges.length * BAND + 8, 8, 0, 0],
        legend: { show: true }, cursor: { drag: { x: false, y: false } },
        scales: { x: { time: false, range: [low - 0.5, high + 0.5] }, y: { range: (u, least, most) => [0, (most || 1) * 1.05] } },
        axes: [amp.charts.axis("exponent: elements from 2^e to 2^(e+1)"),
          amp.charts.axis("% of the nonzero elements", { size: 52 })],
        series: [{ label: "exponent" },
          { label: "elements", value: (u, v) => (v === null ? "–" : `${v.toPrecision(3)} %`), stroke: amp.colour("muted"), fill: amp.colour("muted") + "99", width: 0,
            paths: uPlot.paths.bars({ size: [0.9, 60], align: 0 }), points: { show: false } }],
        hooks: { draw: [ranges] },
      }, [x, y], plot);
    };
    choice.addEventListener("change", draw);
    draw();
    amp.onTheme(draw);
    amp.onWidth(plot, draw);
  };

  // A bar for each format above the plot: full where its numbers are normal, pale where
  // they are subnormal; lines go down where float16 ends.
  const ranges = (u) => {
    const { ctx } = u;
    const ratio = devicePixelRatio;
    const { left, top, width, height } = u.bbox;
    const at = (exponent) => Math.min(left + width, Math.max(left, u.valToPos(exponent, "x", true)));
    ctx.save();
    ctx.font = `${11 * ratio}px system-ui, sans-serif`;
    ctx.textBaseline = "middle";
    found.ranges.forEach((range, row) => {
      const y = top - (found.ranges.length - row) * BAND * ratio - 2 * ratio;
      const tall = (BAND - 4) * ratio;
      const [a, b, c] = [range.subnormal - 0.5, range.normal - 0.5, range.largest + 0.5].map(at);
      ctx.fillStyle = amp.fill(range.name);
      ctx.strokeStyle = amp.stroke(range.name);
      ctx.lineWidth = ratio;
      ctx.globalAlpha = 0.45;
      ctx.fillRect(a, y, b - a, tall);
      ctx.globalAlpha = 1;
      ctx.fillRect(b, y, c - b, tall);
      ctx.strokeRect(a, y, c - a, tall);
      ctx.fillStyle = amp.colour("text");
      ctx.textAlign = "center";
      const label = width / ratio < 420 ? amp.short(range.name) : range.name;
      if (c - b > 40 * ratio) ctx.fillText(label, (b + c) / 2, y + tall / 2 + ratio / 2);
    });
    const half = found.ranges.find((range) => range.name === "float16");
    ctx.setLineDash([4 * ratio, 4 * ratio]);
    ctx.strokeStyle = amp.stroke("float16");
    for (const exponent of [half.subnormal - 0.5, half.normal - 0.5, half.largest + 0.5]) {
      ctx.beginPath();
      ctx.moveTo(at(exponent), top - BAND * found.ranges.length * ratio);
      ctx.lineTo(at(exponent), top + height);
      ctx.stroke();
    }
    ctx.restore();
  };

  const scaleText = () => {
    const { scale } = found;
    if (!scale) return "";
    const lost = `Without a loss scale ${amp.share(scale.lost)} of the nonzero gradient elements become zero in float16.`;
    if (!scale.fits) return `${lost} No single scale keeps the small ones without an overflow of the large ones.`;
    if (scale.least === 0) return `${lost} None is needed; up to 2^${scale.most} is safe.`;
    return `${lost} A loss scale from 2^${scale.least} (${amp.count(2 ** scale.least)}) to 2^${scale.most} (${amp.count(2 ** scale.most)}) keeps 99.9 % of them, and none can overflow.`;
  };

  const build = () => {
    const place = make("div", { class: "charts" });
    amp.section("exponents", "Exponents",
      "How large the elements are, and which formats hold them: above the bars the range of each format, pale where its numbers are subnormal.",
      scaleText() ? make("p", { id: "loss-scale" }, scaleText()) : null, place);
    for (const kind of KINDS) {
      const rows = found.rows.filter((row) => row.kind === kind);
      if (rows.length) chart(place, kind, rows);
    }
  };
  return { ready: found !== null, build };
})();
