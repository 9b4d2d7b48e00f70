// Files, or parts of them, that could not be read.
import { element } from "./dom.js";
import { move } from "./keyboard.js";
import { plural, visible } from "./text.js";

export async function show(main, _, data) {
  const list = element("div", {});
  main.append(element("h1", {}, "Problems"), list);
  async function refresh() {
    const { problems } = await data.problems();
    list.replaceChildren(...draw(problems));
  }
  await refresh();
  return { title: "Problems", refresh, keys: { j: () => move(1, "tbody tr", list), k: () => move(-1, "tbody tr", list) },
    shortcuts: [[["j"], "Next problem"], [["k"], "Previous problem"]] };
}

function draw(problems) {
  if (!problems.length) return [element("p", { class: "soft" }, "Everything could be read.")];
  return [
    element("p", { class: "soft" }, `${plural(problems.length, "place")} could not be read. Everything else is shown.`),
    element("table", { class: "plain" }, element("caption", { class: "unseen" }, "Problems"),
      element("thead", {}, element("tr", {}, ["File", "Place", "Problem"].map((title) => element("th", { scope: "col" }, title)))),
      element("tbody", {}, problems.slice(0, 1000).map(({ file, place, message }) => element("tr", { tabindex: "-1" },
        element("td", { class: "file" }, visible(file)), element("td", { class: "place" }, visible(String(place ?? ""))), element("td", {}, visible(message.slice(0, 2000))))))),
  ];
}
