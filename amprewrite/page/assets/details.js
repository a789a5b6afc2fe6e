// The panel beside the graph: everything that is known about the selected op, group or
// cast.
amp.details = (() => {
  const { data, make } = amp;
  const table = data.tables[0];
  const rows = new Map();
  if (table) for (const row of table.rows) rows.set(row[0], row);

  let panel = null;
  const shown = (...children) => panel && panel.replaceChildren(...children);
  const link = (name) =>
    make("button", { class: "link", type: "button", onclick: () => amp.select(name, "details") }, name);
  const pairs = (found) => {
    const list = make("dl");
    for (const [head, value] of found) list.append(make("dt", {}, head), make("dd", {}, value));
    return list;
  };
  const list = (title, items, most = 12) => {
    if (!items.length) return [];
    const found = make("ul", {}, ...items.slice(0, most).map((item) => make("li", {}, ...item)));
    if (items.length > most) found.append(make("li", {}, `${items.length - most} more`));
    return [make("h3", {}, title), found];
  };
  const castItem = (cast) => [
    make("code", {}, cast.value), " ", amp.chips(`${cast.from_dtype} -> ${cast.to_dtype}`),
    cast.folded ? ` free (${cast.folded})` : ` ${amp.bytes(cast.bytes)}`,
  ];

  const cell = (value, kind) =>
    kind === "dtype" ? amp.chips(value) : kind === "code" || kind === "path" ? make("code", {}, String(value)) : amp.text(value, kind);

  const op = (name) => {
    const row = rows.get(name);
    const found = [make("h3", {}, make("code", {}, name))];
    if (row) {
      const known = table.columns
        .map((column, index) => [column, row[index]])
        .filter(([, value], index) => index > 0 && value !== null && value !== "");
      found.push(pairs(known.map(([column, value]) => [column.title, cell(value, column.kind)])));
    }
    if (amp.graph && amp.graph.ready) {
      const around = amp.graph.around(name);
      if (around) {
        found.push(
          ...list("Reads", around.reads.map(([from, dtype]) => [link(from), " in ", amp.chip(dtype)])),
          ...list("Read by", around.readers.map(([to, dtype]) => [link(to), " in ", amp.chip(dtype)])),
          ...list("Casts of its operands", around.casts.map(castItem)));
      }
    }
    shown(...found);
  };

  const group = (found) => {
    const { label, path, shares, casts, share, open } = found;
    const total = shares.reduce((sum, [, n]) => sum + n, 0);
    const running = casts.filter((cast) => !cast.folded);
    const heaviest = [...running].sort((a, b) => b.bytes - a.bytes);
    const known = [["module", make("code", {}, path || "(root)")], ["ops", amp.count(total)]];
    for (const [dtype, n] of shares) known.push([amp.chip(dtype), `${n} ops`]);
    known.push(["casts", `${running.length}, ${amp.bytes(running.reduce((s, c) => s + c.bytes, 0))}`]);
    if (share !== null) known.push(["error", `${amp.share(share)} of it`]);
    shown(make("h3", {}, make("code", {}, label)), pairs(known),
      make("p", { class: "lead" }, open ? "Enter or a click on its name closes it." : "Enter or a click opens it."),
      ...list("Heaviest casts inside", heaviest.map(castItem), 8));
  };

  const casts = (found) => {
    const bytes = found.reduce((sum, cast) => sum + cast.bytes, 0);
    const first = found[0];
    const names = amp.graph.names;
    shown(
      make("h3", {}, found.length > 1 ? `${found.length} casts` : "Cast"),
      pairs([["dtype", amp.chips(`${first.from_dtype} -> ${first.to_dtype}`)],
        ["cost", first.folded ? `none (${first.folded})` : `${amp.bytes(bytes)} read and written`]]),
      ...list("Values", found.map((cast) => [...castItem(cast), " for ",
        ...cast.targets.slice(0, 4).flatMap((at) => [link(names[at]), " "])])));
  };

  const hint = () => shown(make("p", { class: "lead" },
    "Select an op, a module or a cast: its precision, the reason and its casts are shown here."));

  amp.onSelect((name, origin) => name !== null && origin !== "graph" && op(name));
  return { attach: (node) => { panel = node; hint(); }, op, group, casts, hint };
})();
