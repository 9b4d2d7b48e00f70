// A part of the page as one file that needs nothing else and runs nothing. Only the elements and attributes that are
// listed here are written; everything else, above all scripts and listeners, has no way into the file.
import { fillAll } from "./pieces.js";

const POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'";
const LEFT_OUT = new Set(["BUTTON", "SCRIPT", "INPUT", "SELECT", "TEXTAREA", "IFRAME", "OBJECT", "EMBED", "LINK", "STYLE", "META", "TEMPLATE", "FORM", "IMG"]);
const ELEMENTS = new Set(("A ARTICLE ASIDE B BR CAPTION CODE DD DETAILS DIV DL DT EM FIGCAPTION FIGURE FOOTER H1 H2 H3 H4 HEADER LI MAIN MARK NAV OL P PRE "
  + "SECTION SMALL SPAN STRONG SUMMARY TABLE TBODY TD TH THEAD TIME TR UL svg g path rect circle line text polyline").split(" "));
const ATTRIBUTES = /^(class|title|open|hidden|start|scope|role|colspan|rowspan|style|viewBox|d|x|y|x1|x2|y1|y2|cx|cy|r|width|height|points|transform|text-anchor|aria-[a-z]+|data-[a-z-]+)$/;
const VOID = new Set(["BR"]);

function escaped(text) {
  return text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;").replaceAll('"', "&quot;");
}

function attributes(node) {
  let made = "";
  for (const { name, value } of node.attributes) {
    if (ATTRIBUTES.test(name)) made += ` ${name}="${escaped(value)}"`;
  }
  if (node.tagName === "A" && /^https?:$/.test(node.protocol) && !node.getAttribute("href").startsWith("#")) {
    made += ` href="${escaped(node.href)}" rel="noopener noreferrer nofollow"`;
  }
  return made;
}

function write(node, out) {
  if (node.nodeType === Node.TEXT_NODE) return void out.push(escaped(node.data));
  if (node.nodeType !== Node.ELEMENT_NODE || LEFT_OUT.has(node.tagName)) return;
  const name = ELEMENTS.has(node.tagName) ? node.tagName.toLowerCase() : "span";
  out.push(`<${name}${attributes(node)}>`);
  if (VOID.has(node.tagName)) return;
  for (const child of node.childNodes) write(child, out);
  out.push(`</${name}>`);
}

function styles() {
  const rules = [...document.styleSheets].flatMap((sheet) => {
    const text = [...sheet.cssRules].map((rule) => rule.cssText).join("\n");
    return sheet.media.mediaText ? [`@media ${sheet.media.mediaText} {\n${text}\n}`] : [text];
  });
  return rules.join("\n").replaceAll("</", "<\\/");
}

/** The element as a whole page. Folded texts are in it, folded. */
export function asPage(shown, title) {
  fillAll(shown);
  const body = [];
  write(shown, body);
  const theme = document.documentElement.dataset.theme;
  return `<!doctype html>
<html lang="en"${theme ? ` data-theme="${escaped(theme)}"` : ""}>
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="${POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="generator" content="coa view">
<title>${escaped(title)}</title>
<style>
${styles()}
</style>
</head>
<body class="view saved">
<main>${body.join("")}</main>
</body>
</html>
`;
}

export async function savePage(shown, title, name) {
  const page = new Blob([asPage(shown, title)], { type: "text/html" });
  const address = URL.createObjectURL(page);
  const link = document.createElement("a");
  link.href = address;
  link.download = `${name.replace(/[^\p{L}\p{N}._-]+/gu, "-").slice(0, 80)}.html`;
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(address), 60_000);
}
