"use strict";
// Draws the explanations in #data. Every text comes in as textContent, never as markup.

const DATA = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);
const state = { program: 0, view: "graph", find: "" };

// -- small things ------------------------------------------------------------------------------

function make(name, attributes, ...children) {
  const vector = ["svg", "g", "rect", "text", "path", "line", "circle", "title"].includes(name);
  const node = vector ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (value !== null && value !== undefined && value !== false) node.setAttribute(key, value);
  }
  for (const child of children) if (child !== null && child !== undefined) node.append(child);
  return node;
}

function span([low, high]) {
  return low === high ? String(low) : high === null ? `${low}+` : `${low}-${high}`;
}

function several(count, name) {
  return `${count} ${name}${String(count) === "1" ? "" : "s"}`;
}

function seconds(value) {
  return value < 1 ? `${(value * 1000).toFixed(0)} ms` : `${value.toFixed(2)} s`;
}

function clip(text, most) {
  const line = text.replace(/\s+/g, " ");
  return line.length <= most ? line : most < 2 ? "" : line.slice(0, most - 1) + "…";
}

function clickable(node, name, show) {
  node.setAttribute("tabindex", "0");
  node.setAttribute("role", "button");
  node.setAttribute("aria-label", name);
  const act = () => {
    for (const other of document.querySelectorAll(".chosen")) other.classList.remove("chosen");
    node.classList.add("chosen");
    $("detail").replaceChildren(...show());
    $("detail").scrollTop = 0;
  };
  node.addEventListener("click", act);
  node.addEventListener("keydown", (event) => {
    if (event.key === "Enter" || event.key === " ") { event.preventDefault(); act(); }
  });
  return node;
}

function matches(text) {
  return !state.find || text.toLowerCase().includes(state.find.toLowerCase());
}

function legend(items) {
  return make("div", { class: "legend quiet" }, ...items.map(([color, text]) =>
    make("span", {}, make("i", { style: `background:var(--${color})` }), text)));
}

function textOf(step) {
  return step.site + " " + step.parts.map((part) => part[1]).join("");
}

// -- the panel ---------------------------------------------------------------------------------

function prompt(parts) {
  return make("pre", { class: "prompt" }, ...parts.map(([kind, text]) => make("span", { class: `${kind}-text` }, text)));
}

function stepDetail(one, step) {
  const calls = one.analysis ? one.analysis.calls.filter((call) => call.step === step.site) : [];
  const each = step.each;
  const rows = step.kind === "tool" ? [] : [["prompt tokens", each.prompt], ["shared", each.shared],
    ["computed", each.computed], ["new", each.new], ...(step.kind === "select" ? [["scored", each.scored]] : [])];
  const made = calls.map((call) => call.usage);
  const keys = { "prompt tokens": "prompt", shared: "cached", computed: "computed", new: "completion", scored: "scored" };
  const actual = (name) => made.length === 1 ? String(made[0][keys[name]]) : made.map((use) => use[keys[name]]).slice(0, 8).join(", ");
  return [
    make("h2", {}, step.kind === "tool" ? `${step.name}()` : step.site),
    make("p", { class: "quiet" }, `${step.kind}, ${step.asks}; ${step.loc}` + (step.critical ? "; on the longest chain" : "")),
    step.kind === "tool" ? make("p", {}, `called ${several(span(step.counts.tools), "time")}`) :
      make("table", { class: "numbers" }, make("tr", {}, make("th", {}, several(span(step.counts.calls), "call")), make("th", {}, "estimate"), calls.length ? make("th", {}, "actual") : null),
        ...rows.map(([name, value]) => make("tr", {}, make("td", {}, name), make("td", {}, span(value)), calls.length ? make("td", {}, actual(name)) : null))),
    ...(step.without_bound.length ? [make("p", { class: "quiet" }, `+: no bound is known for ${step.without_bound.join(", ")}`)] : []),
    ...(step.parts.length ? [make("h3", {}, "prompt as expected"), legend([["quiet", "shared with an earlier prompt"], ["ink", "computed"], ["open", "not known yet"]]), prompt(step.parts)] : []),
    ...calls.slice(0, 20).flatMap((call) => callTexts(call, calls.length > 1)),
  ];
}

function callTexts(call, one) {
  const title = one ? `row ${call.row}, ${call.site}` : "as it went";
  const out = [make("h3", {}, `${title}: ${seconds(call.ended_s - call.ready_s)}`)];
  if (call.answer === null) return out;
  out.push(make("pre", { class: "made" }, make("span", { class: "shared-text" }, call.cached_text),
    make("span", { class: "computed-text" }, call.rest_text), make("span", { class: "answer" }, call.answer)));
  return out;
}

function callDetail(one, call) {
  const use = call.usage;
  return [
    make("h2", {}, call.site),
    make("p", { class: "quiet" }, `row ${call.row}, ready at ${seconds(call.ready_s)}, first text at ${seconds(call.first_s)}, ended at ${seconds(call.ended_s)}`),
    make("table", { class: "numbers" }, ...[["prompt tokens", use.prompt], ["cached", use.cached], ["computed", use.computed], ["new", use.completion]].map(([name, value]) =>
      make("tr", {}, make("td", {}, name), make("td", {}, String(value))))),
    ...callTexts(call, false),
  ];
}

// -- the graph of steps ------------------------------------------------------------------------

function layers(steps) {
  const at = new Map(steps.map((step, index) => [step.site, index]));
  const before = steps.map((step) => step.after.map((site) => at.get(site)).filter((index) => index !== undefined));
  const depth = steps.map(() => -1);
  const above = steps.map(() => null);
  const visit = (index, path) => {
    if (depth[index] >= 0) return depth[index];
    if (path.has(index)) return 0; // a loop's own step
    path.add(index);
    above[index] = new Set();
    let deepest = 0;
    for (const other of before[index]) {
      deepest = Math.max(deepest, visit(other, path) + 1);
      above[index].add(other);
      for (const further of above[other] || []) above[index].add(further);
    }
    path.delete(index);
    return (depth[index] = deepest);
  };
  steps.forEach((_, index) => visit(index, new Set()));
  // An edge that a longer way stands for is not drawn.
  const edges = before.flatMap((list, index) => list.filter((other) =>
    !list.some((between) => between !== other && above[between] && above[between].has(other))).map((other) => [other, index]));
  return { depth, edges };
}

function graph(one) {
  const steps = one.estimate.steps;
  const { depth, edges } = layers(steps);
  const rows = [];
  depth.forEach((layer, index) => (rows[layer] = rows[layer] || []).push(index));
  const widest = Math.max(1, ...rows.map((row) => row.length));
  const gapX = 14, gapY = 40, height = 72;
  const width = Math.min(230, Math.max(150, ($("view").clientWidth - 50) / widest - gapX)), letters = width / 6.6;
  const place = [];
  rows.forEach((row, layer) => row.forEach((index, column) => {
    place[index] = [(widest - row.length) * (width + gapX) / 2 + column * (width + gapX) + 4, layer * (height + gapY) + 4];
  }));
  const chain = one.estimate.chain;
  const hot = new Set(chain); // and the functions between its calls
  steps.forEach((step, index) => {
    const next = edges.some(([from, to]) => from === index && chain.includes(steps[to].site));
    if (step.kind === "tool" && next && step.after.some((site) => chain.includes(site))) hot.add(step.site);
  });
  const onChain = (a, b) => chain.some((site, index) => site === steps[a].site && chain[index + 1] === steps[b].site) ||
    [a, b].some((index) => steps[index].kind === "tool") && hot.has(steps[a].site) && hot.has(steps[b].site);
  const drawing = make("svg", { width: widest * (width + gapX) + 8, height: rows.length * (height + gapY), role: "group" });
  for (const [from, to] of edges) {
    const x1 = place[from][0] + width / 2, y1 = place[from][1] + height, x2 = place[to][0] + width / 2, y2 = place[to][1];
    const bend = Math.max(20, (y2 - y1) / 2);
    drawing.append(make("path", { class: onChain(from, to) ? "edge critical" : "edge", d: `M${x1} ${y1} C${x1} ${y1 + bend} ${x2} ${y2 - bend} ${x2} ${y2}` }));
  }
  steps.forEach((step, index) => {
    const [x, y] = place[index];
    const kinds = ["node", step.kind, step.critical ? "critical" : "", matches(textOf(step)) ? "" : "dim"];
    const said = step.kind === "tool" ? "declared function" : `${span(step.each.prompt)} in, ${span(step.each.shared)} shared`;
    const calls = step.kind === "tool" ? step.counts.tools : step.counts.calls;
    const out = step.kind === "gen" ? `${span(step.each.new)} new tokens` : step.kind === "select" ? clip(step.asks, letters - 2) : "";
    const times = calls[0] === 1 && calls[1] === 1 ? "" : ` ×${span(calls)}`;
    drawing.append(clickable(make("g", { class: kinds.join(" ").trim(), "data-site": step.site },
      make("title", {}, `${step.site}\n${step.loc}`),
      make("rect", { x, y, width, height, rx: 8 }),
      make("text", { x: x + 10, y: y + 22 }, clip(`${step.name}${forkOf(step.site)}${times}`, letters - 3)),
      make("text", { x: x + 10, y: y + 41, class: "quiet" }, clip(said, letters)),
      make("text", { x: x + 10, y: y + 59, class: "quiet" }, out)), step.site, () => stepDetail(one, step)));
  });
  return [legend([["hot", "longest chain"]]), drawing];
}

function forkOf(site) {
  const found = /\[[\d,]+\]/.exec(site);
  return found ? ` ${found[0]}` : "";
}

// -- the tree of prefixes ----------------------------------------------------------------------

function prefixes(one) {
  const nodes = one.estimate.tree.map((node) => ({ ...node, below: [], rows: 0 }));
  const roots = [];
  for (const node of nodes) (node.above < 0 ? roots : nodes[node.above].below).push(node);
  for (let index = nodes.length - 1; index >= 0; index--) {
    const node = nodes[index];
    node.rows = node.rows || 1;
    if (node.above >= 0) nodes[node.above].rows += node.rows;
  }
  const size = (node) => Math.max(node.tokens[2], 1);
  let longest = 1, row = 0;
  const placed = [];
  const put = (list, x, y) => {
    for (const node of list) {
      placed.push([node, x, y]);
      longest = Math.max(longest, x + size(node));
      put(node.below, x + size(node), y);
      y += node.rows;
    }
    return y;
  };
  row = put(roots, 0, 0);
  const room = Math.max(520, $("view").clientWidth - 40), tall = row > 60 ? 16 : 30, shownRows = Math.min(row, 400);
  const scale = room / longest;
  const drawing = make("svg", { width: room + 4, height: shownRows * tall + 4, role: "group" });
  for (const [node, x, y] of placed) {
    if (y >= shownRows) continue;
    const wide = Math.max(size(node) * scale, 3), high = Math.min(node.rows, shownRows - y) * tall;
    const text = `${span(node.tokens)}${node.prompts > 1 ? ` x ${node.prompts}` : ""}: ${node.text}`;
    drawing.append(clickable(make("g", { class: `block node ${node.prompts > 1 ? "shared" : ""} ${matches(node.text) ? "" : "dim"}`.trim(), "data-tokens": span(node.tokens) },
      make("title", {}, `${several(span(node.tokens), "token")}, ${several(node.prompts, "prompt")}`),
      make("rect", { x: x * scale, y: y * tall, width: wide, height: high, rx: 3 }),
      make("text", { x: x * scale + 5, y: y * tall + Math.min(high / 2 + 4, 34) }, clip(text, Math.floor((wide - 8) / 6.6)))),
    `prefix of ${several(node.prompts, "prompt")}`, () => [
      make("h2", {}, `${several(span(node.tokens), "token")}, in ${several(node.prompts, "prompt")}`),
      make("p", { class: "quiet" }, node.prompts > 1 ? `computed once, and shared by ${node.prompts - 1} more` : "computed for one prompt"),
      make("pre", { class: "prompt" }, node.text),
      ...(node.ends.length ? [make("h3", {}, "prompts that end here"), make("ul", {}, ...node.ends.slice(0, 50).map((end) => make("li", {}, end)))] : []),
    ]));
  }
  const computed = placed.reduce((sum, [node]) => sum + node.tokens[2], 0);
  const all = placed.reduce((sum, [node]) => sum + node.tokens[2] * node.prompts, 0);
  return [
    legend([["shared", "tokens x prompts that share them"], ["own", "of one prompt"]]),
    make("p", { class: "quiet" }, `${Math.round(all)} prompt tokens, ${Math.round(computed)} in the tree` + (shownRows < row ? `; the first ${shownRows} of ${row} prompts` : "")),
    drawing,
  ];
}

// -- the time line -----------------------------------------------------------------------------

function timeLine(one) {
  const calls = one.analysis.calls.slice(0, 400);
  const end = Math.max(...calls.map((call) => call.ended_s), 0.001);
  const several = new Set(calls.map((call) => call.row)).size > 1;
  const names = 210, room = Math.max(320, $("view").clientWidth - names - 60), tall = 24;
  const drawing = make("svg", { width: names + room + 20, height: calls.length * tall + 30, role: "group" });
  for (let tick = 0; tick <= 4; tick++) {
    const x = names + room * tick / 4;
    drawing.append(make("line", { class: "axis", x1: x, x2: x, y1: 16, y2: calls.length * tall + 20 }),
      make("text", { class: "quiet", x: x - (tick === 4 ? 34 : 0), y: 11 }, seconds(end * tick / 4)));
  }
  calls.forEach((call, index) => {
    const y = index * tall + 20;
    const at = (time) => names + time / end * room;
    const critical = one.analysis.chain.includes(call.site) && !several;
    const name = (several ? `${call.row}: ` : "") + call.site;
    drawing.append(clickable(make("g", { class: `bar node ${critical ? "critical" : ""} ${matches(name + (call.rest_text || "") + (call.answer || "")) ? "" : "dim"}`.trim(), "data-site": call.site },
      make("title", {}, `${call.site}: ${seconds(call.ended_s - call.ready_s)}`),
      make("rect", { class: "hit", x: 0, y, width: names + room + 6, height: tall - 2 }),
      make("text", { x: 4, y: y + 15 }, clip(name, 32)),
      make("rect", { class: "wait", x: at(call.ready_s), y: y + 4, width: Math.max(at(call.first_s) - at(call.ready_s), 0), height: tall - 10, rx: 2 }),
      make("rect", { class: "work", x: Math.min(at(call.first_s), names + room - 3), y: y + 4, width: Math.max(at(call.ended_s) - at(call.first_s), 3), height: tall - 10, rx: 2 })),
    call.site, () => callDetail(one, call)));
  });
  return [legend([["line", "waits, or reads its prompt"], ["accent", "generates"], ["hot", "longest chain"]]), drawing];
}

// -- the automata of constraints ---------------------------------------------------------------

function automata(one) {
  return [
    legend([["accent", "forced: read in one step"], ["line", "a choice of the model"]]),
    ...one.automata.flatMap((held) => [make("h3", {}, held.title), held.left_out ? make("p", { class: "quiet" }, "too many edges to draw") : automaton(held)]),
  ];
}

function automaton(held) {
  const depth = new Map([[0, 0]]), rows = [[0]], gap = 190, tall = 74, radius = 13;
  for (const from of depth.keys()) { // a map is walked while it grows: breadth first
    for (const [source, target] of held.edges) {
      if (source !== from || depth.has(target)) continue;
      depth.set(target, depth.get(from) + 1);
      (rows[depth.get(target)] = rows[depth.get(target)] || []).push(target);
    }
  }
  const widest = Math.max(...rows.map((row) => row.length)), place = new Map(), ends = new Map(held.states);
  rows.forEach((row, layer) => row.forEach((each, column) =>
    place.set(each, [(widest - row.length) * gap / 2 + column * gap + gap / 2, layer * tall + radius + 8])));
  const pairs = new Map();
  for (const [source, target, label, forced] of held.edges) {
    const key = `${source} ${target}`;
    if (!pairs.has(key)) pairs.set(key, { source, target, labels: [], forced: true });
    pairs.get(key).labels.push(label);
    pairs.get(key).forced = pairs.get(key).forced && forced;
  }
  const drawing = make("svg", { class: "automaton", width: widest * gap + 40, height: rows.length * tall + 20, role: "group", "aria-label": held.title });
  for (const { source, target, labels, forced } of pairs.values()) {
    const [x1, y1] = place.get(source), [x2, y2] = place.get(target), back = depth.get(target) <= depth.get(source);
    const side = gap / 2 - 14, d = back
      ? `M${x1 + radius} ${y1} C${x1 + side} ${y1 + 26} ${x2 + side} ${y2 - 26} ${x2 + radius} ${y2}`
      : `M${x1} ${y1 + radius} C${x1} ${y1 + tall / 2} ${x2} ${y2 - tall / 2} ${x2} ${y2 - radius}`;
    const text = labels.join(" | ");
    drawing.append(make("path", { class: forced ? "edge forced" : "edge", d }), make("text",
      { class: `label ${matches(text) ? "" : "dim"}`.trim(), x: back ? x1 + radius + 6 : (x1 + x2) / 2 + 6, y: back ? y1 + 4 : (y1 + y2) / 2 + 4 }, clip(text, 26), make("title", {}, text)));
  }
  for (const [each, [cx, cy]] of place) {
    const end = ends.get(each), node = make("g", { class: `state node ${end ? "end" : ""}`.trim() },
      make("circle", { cx, cy, r: radius }), end ? make("circle", { cx, cy, r: radius - 3 }) : null,
      make("text", { x: cx, y: cy + 4, "text-anchor": "middle" }, String(each)));
    drawing.append(clickable(node, `state ${each}`, () => [
      make("h2", {}, `state ${each}` + (end ? ", where the text may end" : "")),
      make("table", {}, make("tr", {}, ...["reads", "to", ""].map((name) => make("th", {}, name))),
        ...held.edges.filter(([source]) => source === each).map(([, target, label, forced]) => make("tr", {},
          make("td", {}, make("code", {}, label)), make("td", {}, String(target)), make("td", {}, forced ? "forced" : "")))),
    ]));
  }
  return drawing;
}

// -- numbers and remarks -----------------------------------------------------------------------

function table(one) {
  const found = new Map((one.analysis ? one.analysis.steps : []).map((step) => [step.site, step]));
  const beside = (value, actual) => actual === undefined ? span(value) : `${span(value)} / ${actual}`;
  const unforeseen = [...found.values()].filter((actual) => !actual.expected);
  return [
    ...(found.size ? [make("p", { class: "quiet" }, "estimate / actual, over all calls of a step")] : []),
    make("table", {}, make("tr", {}, ...["step", "calls", "prompt", "shared", "computed", "new", ...(found.size ? ["time"] : [])].map((name) => make("th", {}, name))),
      ...one.estimate.steps.filter((step) => step.kind !== "tool").map((step) => {
        const actual = found.get(step.site), use = actual ? actual.usage : {}, counts = step.counts;
        return make("tr", { class: actual && !actual.within ? "off" : "" }, make("td", {}, step.site),
          ...[[counts.calls, use.calls], [counts.prompt, use.prompt], [counts.shared, use.cached], [counts.computed, use.computed], [counts.new, use.completion]].map(([value, count]) => make("td", {}, beside(value, count))),
          actual ? make("td", {}, seconds(actual.seconds)) : null);
      }),
      ...unforeseen.map((actual) => make("tr", { class: actual.within ? "" : "off" }, make("td", {}, actual.site + (actual.within ? " (behind a graph break)" : " (not foreseen)")), ...["calls", "prompt", "cached", "computed", "completion"].map((key) => make("td", {}, String(actual.usage[key])))))),
  ];
}

function notes(one) {
  const list = (title, items) => items.length ? [make("h3", {}, title), make("ul", {}, ...items.map((item) => make("li", {}, item)))] : [];
  const pre = (title, items) => items.length ? [make("h3", {}, title), make("pre", {}, items.join("\n"))] : [];
  return [
    ...list("remarks of the passes", one.remarks.map((remark) => `${remark.pass}: ${remark.message}` + (remark.loc ? ` (${remark.loc})` : ""))),
    ...list("graph breaks: ordinary Python takes over", one.breaks.map((place) => `${place.loc}: ${place.reason}` + (place.hint ? `; ${place.hint}` : ""))),
    ...pre("warnings", one.warnings),
    ...list("not estimated", one.estimate.ends.map((end) => `from ${end.loc} on: ${end.why}`)),
    ...(one.analysis ? pre("rows that failed", one.analysis.errors.map(([row, error]) => `row ${row}: ${error}`)) : []),
    make("h3", {}, "how to read it"),
    make("p", {}, "A count such as 84-116 is between the two; 16+ has no upper bound. Shared tokens are those with which an earlier prompt of the run begins too."),
  ];
}

// -- the whole ---------------------------------------------------------------------------------

const VIEWS = { graph: ["Steps", graph], prefixes: ["Prefixes", prefixes], time: ["Time line", timeLine], automata: ["Automata", automata], table: ["Numbers", table], notes: ["Notes", notes] };

function head(one) {
  const { counts, depth, chain, chain_tokens: chainTokens } = one.estimate;
  const used = one.analysis ? one.analysis.usage : {};
  const beside = (value, actual) => actual === undefined ? span(value) : `${span(value)} / ${actual}`;
  const items = [
    [beside(counts.calls, used.calls), "calls"], [span([depth, counts.calls[1] === null ? null : Math.max(depth, chain.length)]), "one after another"],
    [beside(counts.prompt, used.prompt), one.estimate.exact ? "prompt tokens" : "prompt tokens (guessed)"],
    [beside(counts.shared, used.cached), "shared"], [beside(counts.computed, used.computed), "computed"],
    [beside(counts.new, used.completion), "new tokens"], [span(counts.submits), "submits of the plan"],
    [`${chain.length} calls, ${span(chainTokens)} new`, "longest chain"],
  ];
  if (one.price) items.push([`$${one.price.low.toPrecision(3)}-${one.price.high === null ? "" : "$" + one.price.high.toPrecision(3)}`, one.price.source]);
  else if (one.priced) items.push(["not known", "price"]);
  if (one.analysis) items.push([seconds(one.analysis.seconds), "slowest row"]);
  return [
    make("h1", {}, one.estimate.program, make("small", {}, ` on ${one.estimate.target}` + (one.estimate.rows > 1 ? `, ${one.estimate.rows} rows` : "") + (one.analysis ? ": estimate / actual" : ": estimate"))),
    make("div", { class: "totals" }, ...items.map(([value, name]) => make("div", {}, make("b", {}, value), make("span", {}, name)))),
  ];
}

function tab(name, selected, act) {
  const button = make("button", { type: "button", role: "tab", "aria-selected": String(selected), tabindex: selected ? "0" : "-1" }, name);
  button.addEventListener("click", () => {
    const list = button.parentElement;
    act();
    list.querySelector("[aria-selected=true]").focus(); // the tabs were drawn anew
  });
  return button;
}

function draw() {
  const one = DATA[state.program];
  const views = Object.entries(VIEWS).filter(([name]) => (name !== "time" || one.analysis) && (name !== "automata" || one.automata.length));
  if (!views.some(([name]) => name === state.view)) state.view = "graph";
  $("head").replaceChildren(...head(one));
  $("programs").replaceChildren(...(DATA.length > 1 ? DATA.map((other, index) => tab(other.estimate.program, index === state.program, () => { state.program = index; draw(); })) : []));
  $("tabs").replaceChildren(...views.map(([name, [title]]) => tab(title, name === state.view, () => { state.view = name; draw(); })));
  $("view").replaceChildren(...VIEWS[state.view][1](one));
}

for (const list of [$("programs"), $("tabs")]) list.addEventListener("keydown", (event) => {
  const tabs = [...list.children], at = tabs.indexOf(document.activeElement);
  const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: -1 }[event.key];
  if (to === undefined) return;
  event.preventDefault();
  tabs.at(to % tabs.length).click();
});
$("search").addEventListener("input", (event) => { state.find = event.target.value; draw(); });
$("theme").addEventListener("click", () => {
  const dark = document.documentElement.dataset.theme ? document.documentElement.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = dark ? "light" : "dark";
});
window.addEventListener("resize", draw);
draw();
