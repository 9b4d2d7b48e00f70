// Elements from plain values. Text goes in as text nodes only: nothing in this application parses markup.

/** An element. `properties` are attributes; those that are functions are listeners, and false or null leaves one out. */
export function element(name, properties = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (typeof value === "function") made.addEventListener(key, value);
    else if (key === "data") Object.assign(made.dataset, value);
    else if (value === true) made.setAttribute(key, "");
    else if (value !== false && value != null) made.setAttribute(key, value);
  }
  made.append(...children.flat().filter((child) => child != null && child !== false));
  return made;
}

export function find(selector, within = document) {
  return within.querySelector(selector);
}

const ICONS = {
  search: "M11 4a7 7 0 1 0 0 14 7 7 0 0 0 0-14Zm5 12 4 4",
  send: "M12 19V5m-6 6 6-6 6 6",
  stop: "M7 7h10v10H7z",
  plus: "M12 5v14M5 12h14",
  trash: "M5 7h14M10 7V4h4v3m-7 0 1 13h8l1-13",
  menu: "M4 7h16M4 12h16M4 17h16",
  code: "m9 7-5 5 5 5m6-10 5 5-5 5",
  open: "M14 5h5v5m0-5-8 8M10 6H5v13h13v-5",
  copy: "M9 9h10v11H9zM5 15V4h10",
  sun: "M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8Zm0-5v2m0 14v2M3 12h2m14 0h2M5.6 5.6 7 7m10 10 1.4 1.4M5.6 18.4 7 17M17 7l1.4-1.4",
  moon: "M19 14.5A7.5 7.5 0 0 1 9.5 5a7.5 7.5 0 1 0 9.5 9.5Z",
  auto: "M12 4a8 8 0 1 0 0 16 8 8 0 0 0 0-16Zm0 0v16m0-12h5m-5 4h7m-7 4h5",
  keys: "M4 7h16v10H4zm4 7h8M8 10.5h.01m4 0h.01m4 0h.01",
  fold: "m6 9 6 6 6-6",
  check: "m5 13 4 4L19 7",
  cross: "M6 6l12 12M18 6 6 18",
  before: "m14 6-6 6 6 6",
  after: "m10 6 6 6-6 6",
  filter: "M4 6h16M7 12h10m-7 6h4",
  save: "M12 4v11m-5-5 5 5 5-5M5 20h14",
  link: "M10 14a4 4 0 0 0 6 0l3-3a4 4 0 0 0-6-6l-1 1m2 4a4 4 0 0 0-6 0l-3 3a4 4 0 0 0 6 6l1-1",
};

/** A line drawing, hidden from screen readers: what it stands for is said in words beside it. */
export function icon(name) {
  const space = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(space, "svg");
  for (const [key, value] of Object.entries({ viewBox: "0 0 24 24", class: "icon", "aria-hidden": "true" })) {
    svg.setAttribute(key, value);
  }
  const path = document.createElementNS(space, "path");
  path.setAttribute("d", ICONS[name]);
  svg.append(path);
  return svg;
}
