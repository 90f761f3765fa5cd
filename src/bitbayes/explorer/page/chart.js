// A chart of confidences: one line for each method, with its colour and its marker.

function element(name, attributes, text = "") {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.textContent = text;
  return made;
}

const MARKERS = {
  plain: "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0",
  temperature: "M0 -5L4.8 3.6L-4.8 3.6Z",
  bitbayes: "M-3.8 -3.8h7.6v7.6h-7.6Z",
};

// `lines` are confidences by method, at equal steps from `from` to `to`; `ticks` are places with their labels; `seen`
// is a range that is shaded; `marks` are places with a dashed line; `thick` are the methods that matter.
function drawChart(chart, { lines, lowest, from, to, ticks, title, seen, marks = [], thick = Object.keys(lines) }) {
  const width = chart.clientWidth;
  const height = chart.clientHeight;
  const [left, right, top, bottom] = [44, width - 8, 16, height - 36];
  const inside = (place) => Math.min(Math.max(place, from), to);
  const xOf = (place) => left + ((inside(place) - from) / (to - from)) * (right - left);
  const yOf = (confidence) => bottom - ((confidence - lowest) / (1 - lowest)) * (bottom - top);
  const parts = [];
  if (seen)
    parts.push(element("rect", { class: "seen", x: xOf(seen[0]), y: top, width: xOf(seen[1]) - xOf(seen[0]), height: bottom - top }));
  for (const share of [0, 0.5, 1]) {
    const value = lowest + share * (1 - lowest);
    parts.push(element("line", { class: "grid", x1: left, x2: right, y1: yOf(value), y2: yOf(value) }));
    parts.push(element("text", { x: left - 6, y: yOf(value) + 4, "text-anchor": "end" }, `${trim(100 * value, 1)}%`));
  }
  for (const [place, label] of ticks) {
    const anchor = place === to ? "end" : "middle";
    parts.push(element("text", { x: xOf(place), y: bottom + 16, "text-anchor": anchor }, label));
  }
  parts.push(element("text", { x: (left + right) / 2, y: bottom + 32, "text-anchor": "middle" }, title));
  for (const { place, text } of marks) {
    parts.push(element("line", { class: "mark", x1: xOf(place), x2: xOf(place), y1: top - 4, y2: bottom }));
    parts.push(element("text", { class: "name", x: xOf(place), y: top - 6, "text-anchor": "middle" }, text));
  }
  Object.entries(lines).forEach(([method, values], turn) => {
    const at = (i) => [xOf(from + ((to - from) * i) / (values.length - 1)), yOf(values[i])].map((each) => each.toFixed(1));
    const path = Array.from(values, (_, i) => `${i ? "L" : "M"}${at(i).join(" ")}`);
    const kind = `${method}${thick.includes(method) ? " chosen" : ""}`;
    parts.push(element("path", { class: `line ${kind}`, d: path.join("") }));
    const gap = (values.length - 1) / 6;
    for (let i = gap * (0.5 + turn / 3); i < values.length; i += gap)
      parts.push(element("path", { class: `dot ${method}`, d: MARKERS[method], transform: `translate(${at(Math.round(i))})` }));
  });
  chart.setAttribute("viewBox", `0 0 ${width} ${height}`);
  chart.replaceChildren(...parts);
}
