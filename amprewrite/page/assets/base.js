"use strict";
// What all parts of the page share: the data, colours by dtype, numbers as text, and the
// selection of an op, which every part shows in its own way.
const amp = (() => {
  const data = JSON.parse(document.getElementById("data").textContent);

  const make = (tag, attributes = {}, ...children) => {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
      else if (value !== undefined && value !== null) node.setAttribute(name, value);
    }
    node.append(...children.filter((child) => child !== null && child !== undefined));
    return node;
  };

  const colour = (name) =>
    getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  const COLOURED = { float32: "f32", bfloat16: "bf16", float16: "f16", float64: "f64" };
  const family = (dtype) =>
    COLOURED[dtype] || (String(dtype).startsWith("float8") ? "f8" : "other");
  const fill = (dtype) => colour(family(dtype));
  const stroke = (dtype) => colour(`${family(dtype)}-line`);
  const short = (dtype) => data.short[dtype] || dtype;

  const number = (cell) => {
    if (typeof cell === "number") return cell;
    return { inf: Infinity, "-inf": -Infinity }[cell] ?? NaN;
  };
  const count = (cell) => number(cell).toLocaleString("en-US");
  const error = (cell) => {
    const found = number(cell);
    if (found === 0) return "0";
    if (!Number.isFinite(found)) return String(cell);
    return found < 1e-2 || found >= 1e3 ? found.toExponential(1) : found.toPrecision(2);
  };
  const share = (cell) => {
    const found = 100 * number(cell);
    return `${found > 0 && found < 0.1 ? found.toPrecision(1) : found.toFixed(1)} %`;
  };
  const bytes = (cell) => {
    const found = number(cell);
    for (const [unit, size] of [["GB", 1e9], ["MB", 1e6], ["kB", 1e3]])
      if (found >= size) return `${(found / size).toPrecision(3)} ${unit}`;
    return `${found} B`;
  };
  const text = (cell, kind) => {
    if (cell === null || cell === undefined || cell === "") return "";
    const known = { count, error, share, bytes }[kind];
    return known ? known(cell) : String(cell);
  };

  const chip = (dtype) =>
    make("span", {
      class: "chip",
      title: dtype,
      style: `background:var(--${family(dtype)});border-color:var(--${family(dtype)}-line)`,
    }, short(dtype));
  // A cell of dtypes: `float32 -> bfloat16`, `float32, bfloat16`.
  const chips = (cell) => {
    const found = make("span");
    for (const part of String(cell).split(/(, | -> )/)) {
      if (part === " -> ") found.append(" → ");
      else if (part === ", ") found.append(" ");
      else if (part) found.append(chip(part));
    }
    return found;
  };

  const listeners = [];
  let selected = null;
  const select = (name, origin) => {
    selected = name;
    for (const listener of listeners) listener(name, origin);
  };
  const say = (words) => {
    document.getElementById("live").textContent = words;
  };

  const sections = [];
  const section = (key, title, lead, ...children) => {
    const node = make("section", { id: key, "aria-labelledby": `${key}-title` },
      make("h2", { id: `${key}-title` }, title),
      lead ? make("p", { class: "lead" }, lead) : null, ...children);
    document.getElementById("main").append(node);
    sections.push([key, title]);
    return node;
  };

  const dark = matchMedia("(prefers-color-scheme: dark)");
  const onTheme = (listener) => dark.addEventListener("change", listener);
  const onWidth = (node, listener) => {
    let width = node.clientWidth;
    new ResizeObserver(() => {
      if (node.clientWidth === width || !node.clientWidth) return;
      width = node.clientWidth;
      listener(width);
    }).observe(node);
  };

  return {
    data, make, colour, fill, stroke, short, number, count, error, share, bytes, text,
    chip, chips, select, say, section, sections, onTheme, onWidth,
    onSelect: (listener) => listeners.push(listener),
    selected: () => selected,
  };
})();
