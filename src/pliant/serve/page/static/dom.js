// Elements made of text and attributes only: nothing that came from elsewhere is ever read as markup.
const SVG = "http://www.w3.org/2000/svg";

export const $ = (id) => document.getElementById(id);

function made(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("--")) element.style.setProperty(name, String(value));
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

export const h = (tag, attributes = {}, ...children) => made(document.createElement(tag), attributes, children);
export const s = (tag, attributes = {}, ...children) => made(document.createElementNS(SVG, tag), attributes, children);

/** Replace what is in `parent`; nothing moves where the text would be the same. */
export function fill(parent, ...children) {
  parent.replaceChildren(...children.flat().filter((child) => child !== null && child !== undefined));
}

export function text(element, value) {
  if (element.textContent !== value) element.textContent = value;
}

/** Rows of a table: `columns` are [title, class]; a cell is a text or an element. */
export function rows(table, columns, cells, classes = []) {
  const caption = table.querySelector("caption");
  fill(
    table,
    caption,
    h("thead", {}, h("tr", {}, columns.map(([title, kind]) => h("th", { scope: "col", class: kind }, title)))),
    h("tbody", {}, cells.map((row, i) => h("tr", { class: classes[i] || null }, row.map((cell, j) =>
      cell instanceof HTMLTableCellElement ? cell : h("td", { class: columns[j][1] }, cell))))),
  );
}

/** A new table with a caption that is read and not seen. */
export function table(name, columns, cells) {
  const made = h("table", {}, h("caption", { class: "hidden" }, name));
  rows(made, columns, cells);
  return made;
}

/** A swatch of an endpoint's colour, then its name. */
export const keyed = (color, name) => [h("span", { class: "key", "aria-hidden": "true", "--k": color }), name];

export const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
export const isStill = () => matchMedia("(prefers-reduced-motion: reduce)").matches;
