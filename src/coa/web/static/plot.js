// Pictures from the data that coa/web/plots.py computes: line plots, bars, funnels.
import { element } from "./dom.js";
import { plain, visible } from "./text.js";

const SPACE = "http://www.w3.org/2000/svg";
let made = 0;

function drawn(name, attributes) {
  const shape = document.createElementNS(SPACE, name);
  for (const [key, value] of Object.entries(attributes)) shape.setAttribute(key, value);
  return shape;
}

/** A line plot. It is a slider for the keyboard: the arrows move along the points, Enter follows the point's link. */
export class Plot {
  /** `link` makes an address of a point's href, or null. `go` follows one. */
  constructor(plot, { link = (href) => href, go = (address) => (location.hash = address), mark = null, heading = "h3" } = {}) {
    this.link = link;
    this.go = go;
    this.mark = mark;
    this.hidden = new Set();
    this.log = false;
    this.smooth = false;
    this.at = null;
    this.id = `plot-${(made += 1)}`;
    this.svg = drawn("svg", { preserveAspectRatio: "none", "aria-hidden": "true" });
    this.yAxis = element("div", { class: "plot-y", "aria-hidden": "true" });
    this.xAxis = element("div", { class: "plot-x", "aria-hidden": "true" });
    this.xTitle = element("div", { class: "plot-x-title", "aria-hidden": "true" });
    this.cursor = element("div", { class: "plot-cursor", hidden: true });
    this.tip = element("div", { class: "plot-tip", hidden: true });
    this.area = element("div", { class: "plot-area", tabindex: "0", role: "slider", "aria-orientation": "horizontal",
      pointermove: (event) => this.#point(event), pointerleave: () => this.#leave(), click: (event) => this.#click(event),
      keydown: (event) => this.#key(event), focus: () => this.at !== null && this.#stand(this.at), blur: () => this.#hide() },
      this.svg, this.cursor, this.tip);
    this.title = element(heading, { id: this.id });
    this.about = element("p", { class: "plot-about soft" });
    this.tools = element("div", { class: "plot-tools" });
    this.legend = element("ul", { class: "plot-legend", "aria-label": "Series" });
    this.values = element("details", { class: "plot-values", toggle: () => this.#table() },
      element("summary", {}, "Values"));
    this.element = element("figure", { class: "plot", "aria-labelledby": this.id },
      element("header", {}, this.title, this.tools), this.about,
      element("div", { class: "plot-box" }, this.yAxis, this.area, this.xTitle, this.xAxis), this.legend, this.values);
    this.update(plot);
  }

  /** Draws new data, and keeps what was chosen. */
  update(plot) {
    this.plot = plot;
    this.title.replaceChildren(...visible(plot.title));
    this.about.textContent = plot.about;
    this.about.hidden = !plot.about;
    if (!plot.log) this.log = false;
    this.svg.setAttribute("viewBox", `0 0 ${plot.box[0]} ${plot.box[1]}`);
    this.area.setAttribute("aria-label", `${plain(plot.title)} by ${plot.x_title}`);
    this.#tools();
    this.#legend();
    this.#draw();
    if (this.values.open) this.#table();
  }

  get scale() {
    return this.log ? this.plot.log : this.plot.linear;
  }

  #tools() {
    const toggle = (words, title, field) => element("button", { type: "button", class: "quiet small", title,
      "aria-pressed": String(this[field]), click: (event) => {
        this[field] = !this[field];
        event.currentTarget.setAttribute("aria-pressed", String(this[field]));
        this.#draw();
      } }, words);
    this.tools.replaceChildren(
      ...(this.plot.window ? [toggle("smooth", `Moving mean over ${this.plot.window} points`, "smooth")] : []),
      ...(this.plot.log ? [toggle("log", "Logarithmic scale", "log")] : []));
  }

  #legend() {
    const { series } = this.plot;
    this.legend.hidden = series.length < 2;
    this.legend.replaceChildren(...series.map(({ name, hue, last }) => element("li", { data: { hue } },
      element("button", { type: "button", class: "quiet small", "aria-pressed": String(!this.hidden.has(name)),
        title: "Show or hide", click: (event) => {
          if (!this.hidden.delete(name)) this.hidden.add(name);
          event.currentTarget.setAttribute("aria-pressed", String(!this.hidden.has(name)));
          this.#draw();
        } }, element("span", { class: "swatch" }), visible(name), element("span", { class: "soft" }, last)))));
  }

  #draw() {
    const { scale, plot } = this;
    this.yAxis.replaceChildren(...scale.ticks.map(({ at, label }) => placed(element("span", {}, label), "bottom", at)));
    this.xAxis.replaceChildren(...plot.x_ticks.map(({ at, label }) => placed(element("span", {}, label), "left", at)));
    this.xTitle.textContent = plot.x_title;
    const lines = scale.ticks.map(({ at }) => `M0 ${plot.box[1] * (1 - at)}H${plot.box[0]}`).join("");
    const shapes = [drawn("path", { class: "grid", d: lines })];
    plot.series.forEach(({ name, hue }, number) => {
      if (this.hidden.has(name)) return;
      const { path, smooth, points } = scale.drawings[number];
      const faded = this.smooth && smooth;
      const group = drawn("g", { "data-hue": hue, class: "series" });
      group.append(drawn("path", { class: faded ? "line faded" : "line", d: path }));
      if (plot.dots && !faded) group.append(drawn("path", { class: "dots", d: points.map(([x, y]) => `M${x} ${y}h0`).join("") }));
      if (faded) group.append(drawn("path", { class: "line", d: smooth }));
      shapes.push(group);
    });
    if (this.mark !== null) {
      const x = this.mark * plot.box[0];
      shapes.push(drawn("path", { class: "mark", d: `M${x} 0V${plot.box[1]}` }));
    }
    this.svg.replaceChildren(...shapes);
    this.#stops();
  }

  /** The places that the cursor can stand at: the x of every visible point, with the points there. */
  #stops() {
    const found = new Map();
    this.plot.series.forEach((series, number) => {
      if (this.hidden.has(series.name)) return;
      for (const [x, y, label, value] of this.scale.drawings[number].points) {
        if (!found.has(x)) found.set(x, { x, label, points: [] });
        found.get(x).points.push({ series, y, value });
      }
    });
    this.stops = [...found.values()].sort((one, other) => one.x - other.x);
    this.at = this.at === null ? null : Math.min(this.at, this.stops.length - 1);
    this.area.setAttribute("aria-valuemin", "0");
    this.area.setAttribute("aria-valuemax", String(Math.max(this.stops.length - 1, 0)));
    this.#say(this.at ?? Math.max(this.stops.length - 1, 0));
  }

  #say(at) {
    const stop = this.stops[at];
    this.area.setAttribute("aria-valuenow", String(at));
    this.area.setAttribute("aria-valuetext", stop ? words(this.plot, stop) : "nothing is shown");
  }

  #target(stop) {
    for (const { series } of stop?.points ?? []) {
      if (series.href) return this.link(series.href.replace("{x}", stop.label.replaceAll(",", "")));
    }
    return null;
  }

  #stand(at) {
    const stop = this.stops[at];
    if (!stop) return this.#leave();
    this.at = at;
    const [width, height] = this.plot.box;
    const left = `${(100 * stop.x) / width}%`;
    this.cursor.hidden = false;
    this.cursor.style.setProperty("left", left);
    this.cursor.replaceChildren(...stop.points.map(({ series, y }) => {
      const dot = element("span", { data: { hue: series.hue } });
      dot.style.setProperty("top", `${(100 * y) / height}%`);
      return dot;
    }));
    const target = this.#target(stop);
    this.area.classList.toggle("linked", Boolean(target));
    this.tip.hidden = false;
    this.tip.classList.toggle("to-left", stop.x > width / 2);
    this.tip.style.setProperty("left", left);
    this.tip.replaceChildren(element("strong", {}, `${this.plot.x_title} ${stop.label}`),
      ...stop.points.map(({ series, value }) => element("span", { data: { hue: series.hue } },
        element("span", { class: "swatch" }), `${plain(series.name)} ${value}`)),
      ...(target ? [element("span", { class: "soft" }, "click or Enter: the attempts behind it")] : []));
    this.#say(at);
  }

  #hide() {
    this.cursor.hidden = this.tip.hidden = true;
  }

  #leave() {
    if (document.activeElement === this.area) return; // the keys hold the cursor
    this.#hide();
    this.at = null;
  }

  #point(event) {
    const box = this.area.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * this.plot.box[0];
    this.#stand(nearest(this.stops, x));
  }

  #click(event) {
    this.#point(event);
    const target = this.#target(this.stops[this.at]);
    if (target) this.go(target);
  }

  #key(event) {
    const last = this.stops.length - 1;
    const here = this.at ?? last;
    const page = Math.max(1, Math.round(last / 10));
    const next = { ArrowLeft: here - 1, ArrowDown: here - 1, ArrowRight: here + 1, ArrowUp: here + 1, Home: 0, End: last,
      PageDown: here - page, PageUp: here + page }[event.key];
    if (event.key === "Enter") {
      const target = this.#target(this.stops[here]);
      if (target) this.go(target);
    } else if (next === undefined) return;
    else this.#stand(Math.min(Math.max(this.at === null && event.key.startsWith("Arrow") ? here : next, 0), last));
    event.preventDefault();
    event.stopPropagation();
  }

  /** The numbers, for those who would rather read them. Made when it is opened. */
  #table() {
    while (this.values.children.length > 1) this.values.lastChild.remove();
    if (!this.values.open) return;
    const series = this.plot.series.filter(({ name }) => !this.hidden.has(name));
    const rows = this.stops.slice(-MOST_ROWS).reverse().map((stop) => {
      const target = this.#target(stop);
      return element("tr", {},
        element("th", { scope: "row" }, target ? element("a", { href: target }, stop.label) : stop.label),
        series.map((one) => element("td", {}, stop.points.find((point) => point.series === one)?.value ?? "")));
    });
    const notes = [
      this.stops.length > MOST_ROWS ? `The last ${MOST_ROWS} points.` : "",
      this.plot.thinned ? `Of ${this.plot.thinned.toLocaleString("en")} points, the lowest and highest of each stretch are shown.` : "",
    ].filter((note) => note);
    this.values.append(...notes.map((note) => element("p", { class: "soft" }, note)),
      element("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": `Values of ${plain(this.plot.title)}` },
        element("table", {}, element("thead", {}, element("tr", {}, element("th", { scope: "col" }, this.plot.x_title),
          series.map(({ name }) => element("th", { scope: "col" }, visible(name))))), element("tbody", {}, rows))));
  }
}

const MOST_ROWS = 200;

function placed(made, side, at) {
  made.style.setProperty(side, `${100 * at}%`);
  return made;
}

function words(plot, stop) {
  return `${plot.x_title} ${stop.label}: ${stop.points.map(({ series, value }) => `${plain(series.name)} ${value}`).join(", ")}`;
}

/** The index of the stop that is nearest to x. */
function nearest(stops, x) {
  let low = 0;
  let high = stops.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (stops[middle].x < x) low = middle + 1;
    else high = middle;
  }
  return low > 0 && x - stops[low - 1].x < stops[low].x - x ? low - 1 : low;
}

function box(name, start, width) {
  const made = element("span", { class: name });
  made.style.setProperty("left", `${start}%`);
  made.style.setProperty("width", `${Math.max(width, 0)}%`);
  return made;
}

function labelled(row, target) {
  const text = visible(row.label);
  return element("span", { class: "label" }, target ? element("a", { href: target }, text) : text);
}

/** Horizontal bars with intervals where there are any; a label leads to the runs behind its bar. */
export function bars({ title, rows }, link = () => null) {
  return element("figure", { class: "bars" }, element("figcaption", {}, visible(title)),
    element("ul", {}, rows.map((row) => {
      const track = element("span", { class: "track", "aria-hidden": "true" }, box("fill", 0, row.fill));
      if (row.interval) track.append(box(row.open ? "interval open" : "interval", row.interval[0], row.interval[1] - row.interval[0]));
      return element("li", { data: row.hue ? { hue: row.hue } : {} }, labelled(row, row.href && link(row.href)),
        element("span", { class: "amount" }, row.note), track);
    })));
}

/** What enters and what each stage keeps, as centred bars that narrow. */
export function funnel({ title, rows }, link = () => null) {
  return element("figure", { class: "bars funnel" }, element("figcaption", {}, visible(title)),
    element("ul", {}, rows.map((row) => element("li", {}, labelled(row, row.href && link(row.href)),
      element("span", { class: "amount" }, row.note),
      element("span", { class: "track", "aria-hidden": "true" },
        row.lost ? box("lost", 50 - row.lost / 2, row.lost) : null, box("fill", 50 - row.fill / 2, row.fill))))));
}

