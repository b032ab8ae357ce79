// Markdown as elements. Never as HTML: whatever a model writes, it is text, or one of these few.

import { h } from "./dom.js";

/** The blocks of a text: headings, lists, quotes, code, tables, rules, paragraphs. */
export function markdown(text) {
  const lines = text.replaceAll("\r\n", "\n").split("\n");
  const blocks = [];
  for (let at = 0; at < lines.length; ) {
    const take = KINDS.find(([starts]) => starts(lines, at))[1];
    const [block, next] = take(lines, at);
    if (block) blocks.push(block);
    at = next;
  }
  return blocks;
}

const FENCE = /^\s{0,3}(`{3,}|~{3,})\s*([\w+#.-]*)/;
const HEADING = /^(#{1,6})\s+(.*?)\s*#*$/;
const RULE = /^\s{0,3}([-*_])(\s*\1){2,}\s*$/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const ROW = /^\s*\|.*\|\s*$/;
const DASHES = /^\s*\|[\s:|-]*-[\s:|-]*\|\s*$/;

const KINDS = [
  [(lines, at) => !lines[at].trim(), (_, at) => [null, at + 1]],
  [(lines, at) => FENCE.test(lines[at]), fence],
  [(lines, at) => HEADING.test(lines[at]), heading],
  [(lines, at) => RULE.test(lines[at]), (_, at) => [h("hr"), at + 1]],
  [(lines, at) => lines[at].startsWith(">"), quote],
  [(lines, at) => ITEM.test(lines[at]), list],
  [(lines, at) => ROW.test(lines[at]) && DASHES.test(lines[at + 1] || ""), table],
  [() => true, paragraph],
];

function fence(lines, at) {
  const [, mark, language] = FENCE.exec(lines[at]);
  let end = at + 1;
  while (end < lines.length && !lines[end].trim().startsWith(mark)) end++;
  const code = h("code", { "data-language": language }, lines.slice(at + 1, end).join("\n"));
  return [h("pre", { tabindex: "0" }, code), end + 1];
}

function heading(lines, at) {
  const [, marks, words] = HEADING.exec(lines[at]);
  return [h(`h${Math.min(6, marks.length + 1)}`, {}, inline(words)), at + 1];
}

function quote(lines, at) {
  let end = at;
  while (end < lines.length && lines[end].startsWith(">")) end++;
  const inner = lines.slice(at, end).map((line) => line.replace(/^>\s?/, ""));
  return [h("blockquote", {}, markdown(inner.join("\n"))), end];
}

/** Items of one kind; what is indented deeper belongs to the item above. */
function list(lines, at) {
  const [, indent, mark] = ITEM.exec(lines[at]);
  const ordered = /\d/.test(mark);
  const items = [];
  let end = at;
  for (; end < lines.length; end++) {
    const found = ITEM.exec(lines[end]);
    if (found && found[1].length <= indent.length) {
      if (found[1].length < indent.length || /\d/.test(found[2]) !== ordered) break;
      items.push({ words: found[3], inner: [] });
    } else if (lines[end].trim() && (found || /^\s/.test(lines[end]))) {
      items.at(-1).inner.push(lines[end]);
    } else break;
  }
  const inner = (item) => (item.inner.length ? markdown(dedent(item.inner)) : []);
  const made = items.map((item) => h("li", {}, inline(item.words), inner(item)));
  return [h(ordered ? "ol" : "ul", ordered ? { start: parseInt(mark) } : {}, made), end];
}

function dedent(lines) {
  const least = Math.min(...lines.map((line) => line.search(/\S/)));
  return lines.map((line) => line.slice(least)).join("\n");
}

function table(lines, at) {
  const cells = (line) => line.trim().slice(1, -1).split("|").map((cell) => cell.trim());
  let end = at + 2;
  while (end < lines.length && ROW.test(lines[end])) end++;
  const row = (line, kind) => h("tr", {}, cells(line).map((cell) => h(kind, {}, inline(cell))));
  const body = lines.slice(at + 2, end).map((line) => row(line, "td"));
  return [h("table", {}, h("thead", {}, row(lines[at], "th")), h("tbody", {}, body)), end];
}

function paragraph(lines, at) {
  let end = at + 1;
  const ends = () => KINDS.slice(0, -1).some(([starts]) => starts(lines, end));
  while (end < lines.length && !ends()) end++;
  const parts = lines.slice(at, end).flatMap((line, i) => [i ? h("br") : "", ...inline(line)]);
  return [h("p", {}, parts), end];
}

const INLINE = new RegExp(
  [
    /(?<ticks>`+)(?<code>.+?)\k<ticks>/,
    /\*\*(?<strong>.+?)\*\*/,
    /(?<![\w*])\*(?<em>[^\s*][^*]*?)\*(?![\w*])/,
    /~~(?<del>.+?)~~/,
    /\[(?<words>[^\]]+)\]\((?<to>https?:\/\/[^\s)]+)\)/,
  ]
    .map((kind) => kind.source)
    .join("|"),
);

const ELSEWHERE = { rel: "noopener noreferrer", target: "_blank" };

/** Code, strong, emphasis, struck out, and links to the web. */
export function inline(text) {
  const parts = [];
  for (let found; (found = INLINE.exec(text)); text = text.slice(found.index + found[0].length)) {
    if (found.index) parts.push(text.slice(0, found.index));
    const { code, strong, em, del, words, to } = found.groups;
    if (code) parts.push(h("code", {}, code));
    else if (words) parts.push(h("a", { href: to, ...ELSEWHERE }, words));
    else parts.push(h(strong ? "strong" : em ? "em" : "del", {}, inline(strong || em || del)));
  }
  if (text) parts.push(text);
  return parts;
}
