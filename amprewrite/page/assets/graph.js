// The program as a graph. Modules are groups that open one by one; what is inside a
// closed group is neither built nor laid out, so that 5,000 ops cost no more than what
// is seen.
amp.graph = (() => {
  const { data, make } = amp;
  if (!data.graph) return { ready: false };
  const MOST_SHOWN = 250; // more boxes cannot be read
  const { groups, nodes, edges, casts } = data.graph;
  const [NAME, LABEL, DTYPE, GROUP, KIND, SHARE, MARKED] = [0, 1, 2, 3, 4, 5, 6];
  const [PARENT] = [2];
  const names = nodes.map((node) => node[NAME]);
  const indexOf = new Map(names.map((name, at) => [name, at]));
  const open = new Set(data.graph.open);
  const known = data.tables[0] ? new Set(data.tables[0].rows.map((row) => row[0])) : new Set();

  // --- facts of groups, once -----------------------------------------------------------
  const chain = groups.map(() => []);
  groups.forEach((group, at) => {
    chain[at] = group[PARENT] === null ? [at] : [...chain[group[PARENT]], at];
  });
  const chainOf = (node) => (node < 0 || nodes[node][GROUP] === null ? [] : chain[nodes[node][GROUP]]);
  const common = (one, two) => {
    let at = 0;
    while (at < one.length && at < two.length && one[at] === two[at]) at += 1;
    return one.slice(0, at);
  };
  const facts = groups.map(() => ({ shares: new Map(), share: null, marked: 0, casts: [] }));
  nodes.forEach((node, at) => {
    for (const group of chainOf(at)) {
      const found = facts[group];
      found.shares.set(node[DTYPE], (found.shares.get(node[DTYPE]) || 0) + 1);
      if (node[SHARE] !== null) found.share = (found.share || 0) + amp.number(node[SHARE]);
      found.marked += node[MARKED] ? 1 : 0;
    }
  });
  casts.forEach((cast) => {
    if (!cast.targets.length) return;
    const ends = [...(cast.source < 0 ? [] : [cast.source]), ...cast.targets];
    for (const group of ends.map(chainOf).reduce(common)) facts[group].casts.push(cast);
  });
  const used = new Map();
  edges.forEach(([source, target, dtype, cast]) => {
    for (const at of [source, target]) if (!used.has(at)) used.set(at, { reads: [], readers: [] });
    used.get(target).reads.push([names[source], dtype]);
    used.get(source).readers.push([names[target], dtype]);
  });

  // --- what is seen --------------------------------------------------------------------
  const measure = document.createElement("canvas").getContext("2d");
  const sizes = (label, font) => {
    measure.font = font;
    const lines = label.split("\n");
    return [Math.max(...lines.map((line) => measure.measureText(line).width)), lines.length];
  };
  const FONT = "12px system-ui, sans-serif";
  const SMALL = "10px system-ui, sans-serif";
  const boxed = (label) => {
    const [width, lines] = sizes(label, FONT);
    return { label, width: Math.ceil(width * 1.04) + 22, height: lines * 15 + 12 };
  };

  const groupLabel = (at) => {
    const { shares, share, casts: inside } = facts[at];
    const parts = [...shares].sort((a, b) => b[1] - a[1]).map(([dtype, n]) => `${n} ${amp.short(dtype)}`);
    const running = inside.filter((cast) => !cast.folded && !cast.weight).length;
    const lines = [`${groups[at][0]}  +`, parts.slice(0, 3).join(" · ") + (parts.length > 3 ? " …" : "")];
    const more = [];
    if (running) more.push(`${running} cast${running > 1 ? "s" : ""}`);
    if (share !== null && share >= 0.005) more.push(`${(100 * share).toFixed(0)} % of the error`);
    if (more.length) lines.push(more.join(" · "));
    return lines.join("\n");
  };
  const nodeLabel = (node) => {
    if (node[KIND] !== "op") return `${node[LABEL]}\n${amp.short(node[DTYPE])}`;
    const share = node[SHARE] !== null && node[SHARE] >= 0.005 ? ` · ${(100 * node[SHARE]).toFixed(0)} % of the error` : "";
    return `${node[LABEL]}\n${amp.short(node[DTYPE])}${share}`;
  };

  const elements = () => {
    const closed = []; // the outermost closed group around the members of each group
    groups.forEach((group, at) => {
      const outer = group[PARENT] === null ? null : closed[group[PARENT]];
      closed[at] = outer ?? (open.has(at) ? null : at);
    });
    const seen = (node) => {
      const group = nodes[node][GROUP];
      const inside = group === null ? null : closed[group];
      return inside === null ? `n${node}` : `g${inside}`;
    };
    // The open groups around what is seen, the outermost first.
    const outside = (id) => {
      const at = Number(id.slice(1));
      return id[0] === "n" ? chainOf(at) : chain[at].slice(0, -1);
    };
    const found = [];
    groups.forEach((group, at) => {
      const parent = group[PARENT];
      if (parent !== null && closed[parent] !== null) return;
      const box = boxed(groupLabel(at));
      const state = open.has(at) ? "module" : "group";
      const hurts = !open.has(at) && ((facts[at].share || 0) >= 0.1 || facts[at].marked > 0);
      found.push({
        data: { id: `g${at}`, parent: parent === null ? undefined : `g${parent}`, ...box, name: `${group[0]}  −`, at, ...strip(facts[at].shares) },
        classes: `${state} ${hurts ? "hurts" : ""}`,
      });
    });
    nodes.forEach((node, at) => {
      const group = node[GROUP];
      if (group !== null && closed[group] !== null) return;
      const hurts = (node[SHARE] || 0) >= 0.05 || node[MARKED];
      found.push({
        data: { id: `n${at}`, parent: group === null ? undefined : `g${group}`, ...boxed(nodeLabel(node)), at, dtype: node[DTYPE] },
        classes: `op ${node[KIND]} ${hurts ? "hurts" : ""}`,
      });
    });

    // Edges between what is seen; all casts from one place to one dtype are one mark.
    const lines = new Map();
    const line = (source, target, dtype) => {
      const key = `${source}|${target}|${dtype}`;
      if (source !== target) lines.set(key, { id: key, source, target, dtype });
    };
    const marks = new Map();
    const drawn = new Set();
    const mark = (cast, at, target) => {
      const source = cast.source < 0 ? null : seen(cast.source);
      if (source === target) return null;
      const key = `c${source ?? target}|${cast.from_dtype}|${cast.to_dtype}|${cast.folded ? 1 : 0}`;
      if (!marks.has(key)) marks.set(key, { cast, casts: new Set(), inside: null });
      const found = marks.get(key);
      found.casts.add(at);
      found.inside = found.inside === null ? outside(target) : common(found.inside, outside(target));
      drawn.add(at);
      if (source) line(source, key, cast.from_dtype);
      line(key, target, cast.to_dtype);
      return key;
    };
    for (const [source, target, dtype, at] of edges) {
      const cast = at === null ? null : casts[at];
      if (cast && !cast.weight) mark(cast, at, seen(target));
      else line(seen(source), seen(target), dtype);
    }
    casts.forEach((cast, at) => {
      if (cast.source < 0 && !cast.weight && !drawn.has(at)) for (const target of cast.targets) mark(cast, at, seen(target));
    });
    for (const [key, { cast, casts: all, inside }] of marks) {
      const parent = inside.length ? `g${inside[inside.length - 1]}` : undefined;
      const many = all.size > 1 ? `${all.size} × ` : "";
      const label = `${many}${amp.short(cast.from_dtype)} → ${amp.short(cast.to_dtype)}`;
      const [width] = sizes(label, SMALL);
      found.push({
        data: { id: key, parent, label, width: Math.ceil(width * 1.04) + 16, height: 18, all: [...all], from: cast.from_dtype, to: cast.to_dtype },
        classes: `cast ${cast.folded ? "folded" : ""}`,
      });
    }
    for (const data of lines.values()) found.push({ data });
    return found;
  };

  // The colours of a group: a strip with one part for each dtype, by its number of ops.
  const strip = (shares) => {
    const all = [...shares].sort((a, b) => b[1] - a[1]);
    const total = all.reduce((sum, [, n]) => sum + n, 0) || 1;
    const stops = [];
    let at = 0;
    for (const [dtype, n] of all) {
      stops.push([dtype, at], [dtype, at + (100 * n) / total]);
      at += (100 * n) / total;
    }
    return { stops };
  };

  const style = () => {
    const text = amp.colour("text");
    const muted = amp.colour("muted");
    const line = amp.colour("other-line");
    return [
      { selector: "node", style: { "font-family": "system-ui, sans-serif", "font-size": 12, color: text } },
      { selector: "node.op, node.group", style: {
        shape: "round-rectangle", width: "data(width)", height: "data(height)", label: "data(label)",
        "text-wrap": "wrap", "text-max-width": 1000, "text-valign": "center", "text-halign": "center", "line-height": 1.2,
        "border-width": 1.5 } },
      { selector: "node.op", style: {
        "background-color": (node) => amp.fill(node.data("dtype")), "border-color": (node) => amp.stroke(node.data("dtype")) } },
      { selector: "node.input, node.output", style: { shape: "cut-rectangle", "border-style": "dashed" } },
      { selector: "node.group", style: {
        "background-fill": "linear-gradient", "background-gradient-direction": "to-right",
        "background-gradient-stop-colors": (node) => node.data("stops").map(([dtype]) => amp.fill(dtype)).join(" "),
        "background-gradient-stop-positions": (node) => node.data("stops").map(([, at]) => `${at}%`).join(" "),
        "border-color": line, "border-width": 1.5 } },
      { selector: "node.module", style: {
        shape: "round-rectangle", "background-color": amp.colour("panel"), "background-opacity": 0.75, "border-color": line, "border-width": 1,
        label: "data(name)", "text-valign": "top", "text-halign": "center", "text-margin-y": -3, color: muted, "font-weight": 600, padding: 10 } },
      { selector: "node.cast", style: {
        shape: "round-rectangle", "corner-radius": 9, width: "data(width)", height: "data(height)", label: "data(label)",
        "font-size": 10, "text-valign": "center", "text-halign": "center",
        "background-fill": "linear-gradient", "background-gradient-direction": "to-right",
        "background-gradient-stop-colors": (node) => [node.data("from"), node.data("from"), node.data("to"), node.data("to")].map(amp.fill).join(" "),
        "background-gradient-stop-positions": "0% 50% 50% 100%",
        "border-width": 1.5, "border-color": (node) => amp.stroke(node.data("to")) } },
      { selector: "node.cast.folded", style: { "background-opacity": 0, "border-style": "dashed", "border-width": 1 } },
      { selector: "edge", style: {
        width: 1.6, "line-color": (edge) => amp.stroke(edge.data("dtype")), "target-arrow-color": (edge) => amp.stroke(edge.data("dtype")),
        "target-arrow-shape": "triangle", "arrow-scale": 0.8, "curve-style": "bezier", opacity: 0.8 } },
      { selector: "node.hurts", style: { "border-color": amp.colour("bad"), "border-width": 3, "border-style": "solid" } },
      { selector: "node.picked", style: { "outline-width": 3, "outline-color": amp.colour("accent"), "outline-offset": 2 } },
    ];
  };

  let cy = null;
  let pickedId = null;
  // Each open module is laid out by itself, the innermost first, and is then one box for
  // the module around it: dagre's time for a whole nest grows far faster than its size.
  const [PAD, TITLE] = [10, 18];
  const layout = () => {
    const members = new Map([["", []]]);
    const paths = new Map();
    const path = (node) => {
      const id = node.id();
      if (!paths.has(id)) paths.set(id, node.isChild() ? [...path(node.parent()), id] : [id]);
      return paths.get(id);
    };
    cy.nodes().forEach((node) => {
      const parent = node.isChild() ? node.parent().id() : "";
      if (!members.has(parent)) members.set(parent, []);
      members.get(parent).push(node);
    });
    const lines = new Map();
    cy.edges().forEach((edge) => {
      const [one, two] = [path(edge.source()), path(edge.target())];
      let at = 0;
      while (one[at] === two[at]) at += 1;
      const parent = at ? one[at - 1] : "";
      if (!lines.has(parent)) lines.set(parent, new Map());
      lines.get(parent).set(`${one[at]}|${two[at]}`, { source: one[at], target: two[at] });
    });
    const within = new Map();
    const place = (parent) => {
      const boxes = members.get(parent).map((node) => {
        const [width, height] = members.has(node.id()) ? place(node.id()) : [node.data("width"), node.data("height")];
        return { data: { id: node.id(), width, height } };
      });
      const inner = cytoscape({
        headless: true, styleEnabled: true,
        elements: [...boxes, ...[...(lines.get(parent) || new Map()).values()].map((data) => ({ data }))],
        style: [{ selector: "node", style: { shape: "rectangle", width: "data(width)", height: "data(height)" } }],
      });
      const ranker = boxes.length > 60 ? "longest-path" : "network-simplex";
      inner.layout({ name: "dagre", rankDir: "TB", nodeSep: 16, edgeSep: 6, rankSep: 22, ranker, animate: false, fit: false }).run();
      const found = inner.nodes().boundingBox();
      inner.nodes().forEach((node) => {
        const at = node.position();
        within.set(node.id(), { x: at.x - (found.x1 + found.x2) / 2, y: at.y - (found.y1 + found.y2) / 2 });
      });
      inner.destroy();
      return [found.w + 2 * PAD, found.h + 2 * PAD + TITLE];
    };
    const put = (parent, x, y) => {
      for (const node of members.get(parent)) {
        const at = within.get(node.id());
        if (members.has(node.id())) put(node.id(), x + at.x, y + at.y + TITLE / 2);
        else node.position({ x: x + at.x, y: y + at.y });
      }
    };
    place("");
    cy.batch(() => put("", 0, 0));
  };

  const draw = (anchor) => {
    const before = anchor && cy.getElementById(anchor);
    const kept = before && before.nonempty() ? { ...before.renderedPosition() } : null;
    cy.startBatch();
    cy.elements().remove();
    cy.add(elements());
    cy.endBatch();
    layout();
    const after = anchor && cy.getElementById(anchor);
    if (kept && after && after.nonempty()) {
      const now = after.renderedPosition();
      cy.panBy({ x: kept.x - now.x, y: kept.y - now.y });
    }
    pick(pickedId, false);
  };

  const home = () => {
    cy.fit(undefined, 18);
    const least = 0.62; // smaller text cannot be read
    if (cy.zoom() >= least) {
      cy.zoom(Math.min(cy.zoom(), 1.1));
      cy.center();
    } else {
      cy.zoom(least);
      const box = cy.elements().renderedBoundingBox();
      const first = cy.nodes().filter((node) => !node.isParent()).min((node) => node.position("y"));
      cy.panBy({ x: 0, y: 18 - box.y1 });
      const at = first.ele ? first.ele.renderedPosition("x") : box.x1;
      cy.panBy({ x: cy.width() / 2 - at, y: 0 });
    }
  };

  const pick = (id, show = true) => {
    pickedId = id;
    cy.nodes(".picked").removeClass("picked");
    if (id === null) return;
    const node = cy.getElementById(id);
    if (node.empty()) return;
    node.addClass("picked");
    if (!show) return;
    const box = node.renderedBoundingBox();
    const inside = box.x1 > 0 && box.y1 > 0 && box.x2 < cy.width() && box.y2 < cy.height();
    if (!inside) cy.center(node);
    if (node.hasClass("cast")) {
      amp.details.casts(node.data("all").map((at) => casts[at]));
      amp.say(`cast ${node.data("label")}`);
    } else if (id[0] === "g") {
      const at = node.data("at");
      amp.details.group({ label: groups[at][0], path: groups[at][1], ...facts[at], shares: [...facts[at].shares], open: open.has(at) });
      amp.say(`module ${groups[at][0]}, ${open.has(at) ? "open" : "closed"}, ${groupLabel(at).split("\n")[1]}`);
    } else {
      const name = names[node.data("at")];
      if (known.has(name)) amp.select(name, "graph");
      amp.details.op(name);
      amp.say(`${node.data("label").replace("\n", ", ")}`);
    }
  };

  const toggle = (at) => {
    if (open.has(at)) open.delete(at);
    else open.add(at);
    pickedId = `g${at}`;
    draw(`g${at}`);
    pick(`g${at}`);
  };
  const level = () => {
    const shown = cy.nodes(".group").map((node) => node.data("at"));
    let room = MOST_SHOWN - cy.nodes().length;
    let left = 0;
    for (const at of shown) {
      const gain = groups.filter((group) => group[PARENT] === at).length + nodes.filter((node) => node[GROUP] === at).length;
      if (gain > room) { left += 1; continue; }
      room -= gain;
      open.add(at);
    }
    draw(null);
    home();
    amp.say(left ? `${left} modules stay closed: more than ${MOST_SHOWN} boxes cannot be read; open them one by one` : "one level opened");
    note.textContent = left ? `${left} modules stay closed; open them one by one.` : "";
  };
  const close = () => {
    open.clear();
    draw(null);
    home();
    note.textContent = "";
  };
  const reveal = (name) => {
    const at = indexOf.get(name);
    if (at === undefined) return false;
    let changed = false;
    for (const group of chainOf(at)) if (!open.has(group)) { open.add(group); changed = true; }
    if (changed) draw(null);
    pick(`n${at}`, false);
    cy.zoom(Math.max(cy.zoom(), 0.8));
    cy.center(cy.getElementById(`n${at}`));
    return true;
  };

  const ordered = () =>
    cy.nodes().toArray().sort((a, b) => {
      const [one, two] = [a.boundingBox(), b.boundingBox()];
      return one.y1 - two.y1 || one.x1 - two.x1;
    });
  const step = (by) => {
    const all = ordered();
    const now = all.findIndex((node) => node.id() === pickedId);
    const next = now < 0 ? (by > 0 ? 0 : all.length - 1) : Math.min(all.length - 1, Math.max(0, now + by));
    pick(all[next].id());
  };
  const zoom = (by) => cy.zoom({ level: cy.zoom() * by, renderedPosition: { x: cy.width() / 2, y: cy.height() / 2 } });
  const keys = {
    ArrowDown: () => step(1), ArrowRight: () => step(1), ArrowUp: () => step(-1), ArrowLeft: () => step(-1),
    Enter: () => pickedId && pickedId[0] === "g" && toggle(Number(pickedId.slice(1))),
    " ": () => keys.Enter(),
    Escape: () => {
      const node = pickedId && cy.getElementById(pickedId);
      const parent = node && node.nonempty() && node.parent();
      if (parent && parent.nonempty()) toggle(parent.data("at"));
    },
    "+": () => zoom(1.25), "=": () => zoom(1.25), "-": () => zoom(0.8), 0: () => home(),
  };

  let matches = [];
  let words = "";
  let turn = 0;
  const find = (wanted) => {
    const text = wanted.trim().toLowerCase();
    if (!text) return;
    if (text !== words) {
      words = text;
      turn = 0;
      matches = names.filter((name, at) => {
        const path = nodes[at][GROUP] === null ? "" : groups[nodes[at][GROUP]][1];
        return `${path}.${name} ${nodes[at][LABEL]}`.toLowerCase().includes(text);
      });
    }
    note.textContent = matches.length ? `${turn % matches.length + 1} of ${matches.length}` : "nothing found";
    if (matches.length) {
      const name = matches[turn % matches.length];
      reveal(name);
      if (known.has(name)) amp.select(name, "find");
      amp.details.op(name);
      turn += 1;
    }
  };

  const note = make("span", { class: "count", "aria-live": "polite" });
  const legend = () => {
    const dtypes = new Map();
    for (const node of nodes) dtypes.set(node[DTYPE], (dtypes.get(node[DTYPE]) || 0) + 1);
    const item = (mark, text) => make("li", {}, mark, text);
    const swatch = (dtype) => make("span", { class: "swatch", style: `background:${amp.fill(dtype)};border-color:${amp.stroke(dtype)}` });
    const list = make("ul", { class: "legend", "aria-label": "Legend" });
    const paint = () => {
      const common = [...dtypes].sort((a, b) => b[1] - a[1]).slice(0, 6);
      list.replaceChildren(
        ...common.map(([dtype, n]) => item(swatch(dtype), `${dtype} (${amp.short(dtype)})`)),
        item(make("span", { class: "swatch group" }), "closed module, its ops by precision"),
        item(make("span", { class: "swatch pill", style: `background:linear-gradient(to right,var(--f32) 50%,var(--bf16) 50%);border-color:var(--bf16-line)` }), "cast"),
        item(make("span", { class: "swatch pill folded", style: "border-color:var(--other-line)" }), "cast without cost"),
        nodes.some((node) => node[SHARE] !== null || node[MARKED]) ? item(make("span", { class: "swatch hurts" }), "costs accuracy, or differs") : "");
    };
    paint();
    amp.onTheme(paint);
    return list;
  };

  const build = () => {
    const canvas = make("div", { id: "graph", tabindex: "0", role: "application",
      "aria-label": "Graph of the program. Arrow keys move, Enter opens or closes a module, Escape closes the module around, plus and minus zoom, 0 shows all." });
    const panel = make("div", { class: "details", id: "details", tabindex: "0", "aria-label": "Details" });
    const search = make("input", { type: "search", placeholder: "Find an op or module, Enter for the next", "aria-label": "Find in the graph",
      onkeydown: (event) => event.key === "Enter" && find(event.target.value) });
    const button = (text, act, label) => make("button", { type: "button", "aria-label": label || text, onclick: act }, text);
    amp.section("graph-section", "Program", data.graph.lead,
      legend(),
      make("div", { class: "tools" }, search, button("Open a level", level), button("Close all", close),
        button("+", () => zoom(1.25), "Zoom in"), button("−", () => zoom(0.8), "Zoom out"), button("Show all", home), note),
      make("div", { class: "program" }, canvas, panel),
      make("p", { class: "lead" }, "A click opens a module, a click on its name closes it. Drag to move; Ctrl and the wheel zoom. With the keyboard: arrows, Enter, Escape, + and −, 0."));
    amp.details.attach(panel);
    cy = cytoscape({
      container: canvas, style: style(), elements: [], minZoom: 0.08, maxZoom: 3, boxSelectionEnabled: false, autoungrabify: true,
      userZoomingEnabled: matchMedia("(pointer: coarse)").matches, selectionType: "single", textureOnViewport: false,
    });
    draw(null);
    home();
    cy.on("tap", "node", (event) => {
      const node = event.target;
      const id = node.id();
      if (id[0] !== "g") return pick(id);
      const at = node.data("at");
      const top = node.boundingBox({ includeLabels: true }).y1;
      if (!open.has(at) || event.position.y < top + 24) toggle(at);
      else pick(id);
    });
    canvas.addEventListener("keydown", (event) => {
      const act = keys[event.key];
      if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      act();
    });
    canvas.addEventListener("wheel", (event) => {
      if (!event.ctrlKey) return;
      event.preventDefault();
      const box = canvas.getBoundingClientRect();
      cy.zoom({ level: cy.zoom() * Math.exp(-event.deltaY / 300), renderedPosition: { x: event.clientX - box.left, y: event.clientY - box.top } });
    }, { passive: false });
    amp.onTheme(() => cy.style(style()));
    amp.onWidth(canvas, () => { cy.resize(); home(); });
    amp.onSelect((name, origin) => {
      if (name !== null && origin !== "graph" && origin !== "find") reveal(name);
    });
    graph.cy = cy;
  };

  const around = (name) => {
    const at = indexOf.get(name);
    if (at === undefined) return null;
    const found = used.get(at) || { reads: [], readers: [] };
    return { ...found, casts: casts.filter((cast) => cast.targets.includes(at)) };
  };
  const graph = { ready: true, build, reveal, around, names, open, cy: null };
  return graph;
})();
