// Tables that are searched and sorted; only the rows in sight exist in the page.
amp.tables = (() => {
  const { data, make } = amp;
  const ROW = 33;
  const HEIGHT = 520;
  const built = new Map();

  const compare = (a, b) => {
    const [one, two] = [a, b].map((cell) => (cell === null || cell === "" ? -Infinity : amp.number(cell)));
    const [x, y] = [one, two].map((n) => (Number.isNaN(n) ? Number.MAX_VALUE : n));
    return x === y ? 0 : x < y ? -1 : 1;
  };
  const NUMBERS = new Set(["count", "bytes", "error", "share"]);

  // The table takes a text as HTML, an element as it is.
  const words = (text) => make("span", {}, String(text));

  const cell = (kind, largest) => (found) => {
    const value = found.getValue();
    if (value === null || value === "") return "";
    if (kind === "dtype") return amp.chips(value);
    if (kind === "path") return make("code", { class: "tail" }, make("bdi", {}, String(value)));
    if (kind === "code") return make("code", {}, String(value));
    if (kind === "share")
      return make("span", {}, amp.share(value),
        make("span", { class: "cellbar", style: `width:${(44 * amp.number(value) / largest).toFixed(1)}px` }));
    return words(amp.text(value, kind));
  };

  const WIDTHS = { code: 170, path: 190, dtype: 130, count: 90, bytes: 100, error: 142, share: 130, text: 150 };

  const build = (table) => {
    const place = make("div", { id: `table-${table.key}` });
    const shown = make("span", { class: "count", "aria-live": "polite" });
    const search = make("input", { type: "search", placeholder: "Search all columns", "aria-label": `Search: ${table.title}` });
    const filter = make("select", { "aria-label": `Precision: ${table.title}` }, make("option", { value: "" }, "all precisions"));
    const chosen = table.columns.findIndex((column) => column.kind === "dtype" && !column.hidden);
    const small = table.rows.length <= 12;
    const tools = small ? null : make("div", { class: "tools" }, search, chosen < 0 ? null : filter, shown);
    if (chosen >= 0)
      for (const dtype of new Set(table.rows.map((row) => row[chosen]).filter(Boolean)))
        filter.append(make("option", { value: dtype }, dtype));
    amp.section(table.key, table.title, table.lead, tools, place);

    const texts = table.rows.map((row) => row.filter((found) => found !== null).join(" ").toLowerCase());
    const rows = table.rows.map((row, at) => ({ at, ...row }));
    const grid = new Tabulator(place, {
      data: rows, index: "at", layout: "fitColumns", rowHeight: ROW,
      ...(small ? {} : { height: `${Math.min(HEIGHT, ROW * (rows.length + 1) + 6)}px` }),
      placeholder: "No row matches the search.",
      initialSort: table.sort ? [{ column: String(table.columns.findIndex((c) => c.title === table.sort)), dir: "desc" }] : [],
      columns: table.columns.flatMap((column, at) => column.hidden ? [] : [{
        title: column.title, titleFormatter: () => words(column.title), field: String(at),
        headerTooltip: () => words(column.hint || column.title),
        minWidth: WIDTHS[column.kind], formatter: cell(column.kind, Math.max(1e-9, ...(column.kind === "share" ? table.rows.map((row) => amp.number(row[at] ?? 0) || 0) : []))), tooltip: (event, found) => words(found.getValue() ?? ""),
        ...(NUMBERS.has(column.kind) ? { sorter: compare, hozAlign: "right", headerHozAlign: "right", headerSortStartingDir: "desc", widthGrow: 1 }
          : { sorter: "string", widthGrow: { text: 2, path: 3, code: 2 }[column.kind] || 1 }),
      }]),
      rowFormatter: (row) => {
        const element = row.getElement();
        element.tabIndex = 0;
        element.classList.toggle("picked", row.getData()[0] === amp.selected());
      },
    });
    const pick = (name) => amp.select(name, `table-${table.key}`);
    grid.on("rowClick", (event, row) => pick(row.getData()[0]));
    place.addEventListener("keydown", (event) => {
      if (event.key !== "Enter") return;
      const head = event.target.closest(".tabulator-col");
      if (head) head.click();
      const row = event.target.closest(".tabulator-row");
      if (row) row.click();
    });
    const count = (n) => {
      shown.textContent = n === rows.length ? `${amp.count(n)} rows` : `${amp.count(n)} of ${amp.count(rows.length)} rows`;
    };
    grid.on("tableBuilt", () => {
      place.querySelectorAll(".tabulator-col").forEach((head) => { head.tabIndex = 0; });
      count(rows.length);
      amp.built(`table-${table.key}`);
    });
    grid.on("dataFiltered", (filters, found) => count(found.length));
    let timer = 0;
    const run = () => {
      const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
      const dtype = filter.value;
      grid.setFilter((row) => (!dtype || row[chosen] === dtype) && words.every((word) => texts[row.at].includes(word)));
    };
    search.addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(run, 120); });
    filter.addEventListener("change", run);

    const at = new Map(table.rows.map((row, index) => [row[0], index]));
    amp.onSelect((name, origin) => {
      grid.getRows("visible").forEach((row) => row.reformat());
      if (origin === `table-${table.key}` || !at.has(name)) return;
      grid.scrollToRow(at.get(name), "center", false).catch(() => shown.textContent && undefined);
    });
    built.set(table.key, grid);
  };
  return { build, built, all: () => [...data.before, ...data.tables] };
})();
