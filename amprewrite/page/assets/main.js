// Build the page from top to bottom, then say so by `data-ready` on the body.
(() => {
  const { data, make } = amp;
  const waiting = new Set(amp.tables.all().map((table) => `table-${table.key}`));
  const done = () => {
    document.body.dataset.ready = String(Math.round(performance.now()));
  };
  amp.built = (name) => {
    waiting.delete(name);
    if (!waiting.size) requestAnimationFrame(() => setTimeout(done, 0));
  };

  document.getElementById("top").append(
    make("div", { class: "heading" }, make("h1", {}, data.title),
      data.verdict ? make("p", { class: `verdict ${data.tone}` }, data.verdict) : null),
    data.lead ? make("p", { class: "lead" }, data.lead) : "");

  const bar = () => {
    const total = data.shares.reduce((sum, [, n]) => sum + n, 0);
    if (!total) return [];
    const words = data.shares.map(([dtype, n]) => `${n} ops in ${dtype}`).join(", ");
    const strip = make("div", { class: "bar", role: "img", "aria-label": words },
      ...data.shares.map(([dtype, n]) => {
        const part = make("span", { title: `${dtype}: ${n} ops` });
        const paint = () => { part.style.background = amp.stroke(dtype); };
        part.style.flex = String(n);
        paint();
        amp.onTheme(paint);
        return part;
      }));
    const legend = make("ul", { class: "legend" }, ...data.shares.map(([dtype, n]) =>
      make("li", {}, amp.chip(dtype), `${amp.count(n)} ops (${Math.round((100 * n) / total)} %)`)));
    return [strip, legend];
  };
  amp.section("summary", "Summary", "",
    make("dl", { class: "facts" }, ...data.facts.map((fact) => make("div", { class: `fact ${fact.tone}` },
      make("dt", {}, fact.label), make("dd", {}, fact.value, fact.note ? make("small", {}, fact.note) : null)))),
    ...bar(),
    data.notes.length ? make("ul", { class: "notes" }, ...data.notes.map((note) => make("li", {}, note))) : null);

  data.before.forEach(amp.tables.build);
  if (amp.graph.ready) amp.graph.build();
  data.tables.forEach(amp.tables.build);
  data.charts.forEach((chart, at) => amp.charts.build(chart, `chart-${at}`));
  if (amp.exponents.ready) amp.exponents.build();

  document.getElementById("contents").append(
    make("ul", {}, ...amp.sections.map(([key, title]) => make("li", {}, make("a", { href: `#${key}` }, title)))));
  document.getElementById("foot").append(
    make("p", {}, "Written by amprewrite. This file holds all it needs and loads nothing."),
    make("details", { id: "licences" }, make("summary", {}, "Libraries in this page and their licences"),
      ...data.licences.map((library) => make("div", {},
        make("h3", {}, `${library.name} ${library.version} (${library.licence})`), make("pre", {}, library.text)))));
  if (!waiting.size) done();
})();
