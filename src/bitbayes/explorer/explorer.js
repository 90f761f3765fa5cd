// The page: the map, the chart, the controls and the five steps. All numbers come from mathematics.js.

const TOYS = NUMBERS.toys.map(unpackToy);
const METHODS = { plain: "the plain network", temperature: "temperature scaling", bitbayes: "bitbayes" };
const NO_RESIDUAL = -3; // the left end of its slider; 0, its middle, is as tuned
const SIDE_MOVING = 100; // points along a side of the map while something moves, and when it rests
const SIDE_AT_REST = 224;
const FIRST_DELTA = -1; // of the chart, as powers of ten
const LAST_DELTA = 4;
const ZOOMED_OUT = 2;
const INK = "#16181b"; // on the map, in light and in dark
const RAY = "#0072b2";

const find = (id) => document.getElementById(id);
const calm = matchMedia("(prefers-reduced-motion: reduce)");
const dark = matchMedia("(prefers-color-scheme: dark)");

const state = {
  toy: TOYS[0],
  method: "plain",
  zoom: 0, // as a power of ten, like the next two
  temperature: 0,
  prior: 0,
  residual: NO_RESIDUAL,
  angle: 35,
  mode: "ray",
  added: [], // numbers x, y, x, y, …
  step: 0,
};

// ---- What the settings are -------------------------------------------------------------------------------

function settings(method = state.method) {
  return {
    method,
    temperature: 10 ** state.temperature,
    priorVariance: 10 ** state.prior,
    residual: state.residual <= NO_RESIDUAL ? 0 : 10 ** state.residual,
  };
}

let posterior; // of the toy's points and those that were added
let atData; // the toy's points, prepared for predictions

function refit() {
  posterior = fitPosterior(state.toy, Float64Array.from([...state.toy.points, ...state.added]));
  atData = prepare(state.toy, posterior, state.toy.points);
  prepared = null;
}

function predictAt(points, method) {
  const made = prepare(state.toy, posterior, points);
  return largest(predict(state.toy, posterior, settings(method), made), state.toy.classes);
}

// ---- The view --------------------------------------------------------------------------------------------

// The square at zoom ×1 holds the data, with a margin, and the origin, where all rays begin.
function firstView(toy) {
  const axes = [0, 1].map((axis) => toy.points.filter((_, i) => i % 2 === axis));
  const ranges = axes.map((values) => [Math.min(...values), Math.max(...values)]);
  const centre = ranges.map(([low, high]) => (low + high) / 2);
  const size = Math.max(...ranges.map(([low, high]) => high - low));
  return { centre, half: Math.max(0.68 * size, 1.15 * Math.max(...centre.map(Math.abs))), size };
}
TOYS.forEach((toy) => (toy.view = firstView(toy)));

function view() {
  const { centre, half } = state.toy.view;
  const reach = half * 10 ** state.zoom;
  return { left: centre[0] - reach, top: centre[1] + reach, reach };
}

function toScreen([x, y], size) {
  const { left, top, reach } = view();
  return [((x - left) / (2 * reach)) * size, ((top - y) / (2 * reach)) * size];
}

function toPlane([x, y], size) {
  const { left, top, reach } = view();
  return [left + (x / size) * 2 * reach, top - (y / size) * 2 * reach];
}

function direction() {
  const radians = (state.angle * Math.PI) / 180;
  return [Math.cos(radians), Math.sin(radians)];
}

// The δ at which the ray leaves the map.
function rayEnd() {
  const { left, top, reach } = view();
  const [x, y] = direction();
  const sides = [
    x > 0 ? (left + 2 * reach) / x : x < 0 ? left / x : Infinity,
    y > 0 ? top / y : y < 0 ? (top - 2 * reach) / y : Infinity,
  ];
  return Math.min(...sides);
}

// Where the handle of the ray is: a little inside the map.
const handleDelta = () => 0.93 * rayEnd();

// ---- Colours ---------------------------------------------------------------------------------------------

// Each stop is lightness, and the two colour axes of OKLab, in which distances are those that people see. All
// stops are equally far apart, so that equal steps of confidence look equal.
const STOPS = {
  light: [[0.965, 0.002, 0.016], [0.79, 0.055, 0.065], [0.62, 0.125, 0.045], [0.45, 0.13, -0.025], [0.28, 0.075, -0.075]],
  dark: [[0.2, 0.012, -0.022], [0.375, 0.085, -0.045], [0.55, 0.14, 0.015], [0.735, 0.09, 0.075], [0.92, 0.015, 0.068]],
};

function colourAt(stops, share) {
  const place = Math.min(Math.max(share, 0), 1) * (stops.length - 1);
  const below = Math.min(Math.floor(place), stops.length - 2);
  const [l, a, b] = stops[below].map((value, i) => value + (place - below) * (stops[below + 1][i] - value));
  const cubes = [l + 0.3963377774 * a + 0.2158037573 * b, l - 0.1055613458 * a - 0.0638541728 * b, l - 0.0894841775 * a - 1.291485548 * b].map(
    (value) => value ** 3
  );
  return [
    [4.0767416621, -3.3077115913, 0.2309699292],
    [-1.2684380046, 2.6097574011, -0.3413193965],
    [-0.0041960863, -0.7034186147, 1.707614701],
  ].map((row) => {
    const linear = Math.min(Math.max(row.reduce((sum, value, i) => sum + value * cubes[i], 0), 0), 1);
    return Math.round(255 * (linear <= 0.0031308 ? 12.92 * linear : 1.055 * linear ** (1 / 2.4) - 0.055));
  });
}

const colourTable = () =>
  Array.from({ length: 256 }, (_, i) => colourAt(STOPS[dark.matches ? "dark" : "light"], i / 255));
let colours = colourTable();

function drawLegend() {
  const stops = Array.from({ length: 9 }, (_, i) => `rgb(${colours[Math.round((i / 8) * 255)]})`);
  find("colours").style.background = `linear-gradient(to right, ${stops})`;
  const lowest = 100 / state.toy.classes;
  find("ticks").replaceChildren(
    ...[0, 1, 2, 3, 4].map((i) => {
      const tick = document.createElement("span");
      tick.textContent = `${trim(lowest + ((100 - lowest) * i) / 4, 1)} %`;
      return tick;
    })
  );
}

// ---- The map ---------------------------------------------------------------------------------------------

const canvas = find("map");
const brush = canvas.getContext("2d");
const small = document.createElement("canvas");
let prepared = null; // what the map's points need, for one view: see `prepare`
let moving = false;

function gridPoints(side) {
  const { left, top, reach } = view();
  const step = (2 * reach) / side;
  const points = new Float64Array(2 * side * side);
  for (let row = 0, i = 0; row < side; row++)
    for (let column = 0; column < side; column++, i += 2) {
      points[i] = left + (column + 0.5) * step;
      points[i + 1] = top - (row + 0.5) * step;
    }
  return points;
}

function drawMap() {
  const side = moving ? SIDE_MOVING : SIDE_AT_REST;
  const key = `${state.toy.name} ${state.zoom} ${side}`;
  if (!prepared || prepared.key !== key)
    prepared = { key, ...prepare(state.toy, posterior, gridPoints(side)) };
  const { classes } = state.toy;
  const probabilities = predict(state.toy, posterior, settings(), prepared);
  const confidence = largest(probabilities, classes);

  small.width = small.height = side;
  const pixels = new ImageData(side, side);
  const lowest = 1 / classes;
  for (let i = 0; i < confidence.length; i++) {
    const level = Math.round((255 * (confidence[i] - lowest)) / (1 - lowest));
    const [red, green, blue] = colours[Math.max(level, 0)]; // rounding can leave it just below
    pixels.data[4 * i] = red;
    pixels.data[4 * i + 1] = green;
    pixels.data[4 * i + 2] = blue;
    pixels.data[4 * i + 3] = 255;
  }
  small.getContext("2d").putImageData(pixels, 0, 0);

  const size = canvas.clientWidth;
  const ratio = window.devicePixelRatio || 1;
  if (canvas.width !== Math.round(size * ratio)) canvas.width = canvas.height = Math.round(size * ratio);
  brush.setTransform(ratio, 0, 0, ratio, 0, 0);
  brush.imageSmoothingQuality = "high";
  brush.drawImage(small, 0, 0, size, size);
  drawBoundary(probabilities, side, size);
  drawData(size);
  drawRay(size);
  drawScale(size);

  let sum = 0;
  for (let i = 0; i < side; i++)
    sum += confidence[i] + confidence[side * (side - 1) + i] + confidence[side * i] + confidence[side * i + side - 1];
  return sum / (4 * side);
}

// A dark line on a light one: seen on every colour of the map.
function strokeTwice(path, width, colour = INK) {
  brush.lineJoin = brush.lineCap = "round";
  for (const [style, extra] of [["rgba(255, 255, 255, 0.8)", 2.5], [colour, 0]]) {
    brush.strokeStyle = style;
    brush.lineWidth = width + extra;
    brush.stroke(path);
  }
}

// The lines on which the two largest probabilities are equal, by marching squares over log p_i − log max p_j.
function drawBoundary(probabilities, side, size) {
  const { classes: k } = state.toy;
  const path = new Path2D();
  const step = size / side;
  const lead = new Float64Array(side * side);
  for (let own = k === 2 ? 1 : 0; own < k; own++) {
    for (let i = 0; i < lead.length; i++) {
      let other = 1e-300;
      for (let j = 0; j < k; j++) if (j !== own) other = Math.max(other, probabilities[i * k + j]);
      lead[i] = Math.log(Math.max(probabilities[i * k + own], 1e-300) / other);
    }
    for (let row = 0; row < side - 1; row++)
      for (let column = 0; column < side - 1; column++) {
        const first = row * side + column;
        const sign = lead[first] > 0;
        if (sign === lead[first + 1] > 0 && sign === lead[first + side] > 0 && sign === lead[first + side + 1] > 0) continue;
        const corners = [first, first + 1, first + side + 1, first + side];
        const signs = corners.map((corner) => lead[corner] > 0);
        const places = [[0, 0], [1, 0], [1, 1], [0, 1]];
        const crossings = [];
        for (let edge = 0; edge < 4; edge++) {
          const next = (edge + 1) % 4;
          if (signs[edge] === signs[next]) continue;
          const share = lead[corners[edge]] / (lead[corners[edge]] - lead[corners[next]]);
          crossings.push(places[edge].map((value, axis) => value + share * (places[next][axis] - value)));
        }
        for (let i = 0; i + 1 < crossings.length; i += 2) {
          path.moveTo((column + 0.5 + crossings[i][0]) * step, (row + 0.5 + crossings[i][1]) * step);
          path.lineTo((column + 0.5 + crossings[i + 1][0]) * step, (row + 0.5 + crossings[i + 1][1]) * step);
        }
      }
  }
  strokeTwice(path, 1.5);
}

// Every class has a shape, and neighbours differ in their fill: no colour is needed to tell them apart.
function drawMark(x, y, shape, radius) {
  brush.beginPath();
  if (shape === 0) brush.arc(x, y, radius, 0, 2 * Math.PI);
  else {
    const corners = { 1: 3, 2: 4, 3: 4, added: 4 }[shape];
    const turn = { 1: -Math.PI / 2, 2: Math.PI / 4, 3: 0, added: 0 }[shape];
    for (let i = 0; i < corners; i++) {
      const angle = turn + (2 * Math.PI * i) / corners;
      brush.lineTo(x + 1.25 * radius * Math.cos(angle), y + 1.25 * radius * Math.sin(angle));
    }
    brush.closePath();
  }
  const light = shape === 0 || shape === 2;
  brush.fillStyle = shape === "added" ? "#ffd23f" : light ? "#ffffff" : INK;
  brush.strokeStyle = light || shape === "added" ? INK : "#ffffff";
  brush.lineWidth = shape === "added" ? 1.75 : 1.1;
  brush.fill();
  brush.stroke();
}

function drawData(size) {
  const { points, labels, view: first } = state.toy;
  const width = (first.size / (2 * view().reach)) * size; // of all data, in pixels
  const radius = Math.min(4.2, Math.max(1.6, width / 55));
  if (width > 14)
    labels.forEach((label, i) => drawMark(...toScreen([points[2 * i], points[2 * i + 1]], size), label, radius));
  for (let i = 0; i < state.added.length; i += 2)
    drawMark(...toScreen([state.added[i], state.added[i + 1]], size), "added", 5);
  if (width <= 60) {
    const [x, y] = toScreen(first.centre, size);
    const ring = new Path2D();
    const around = Math.max(9, 0.62 * width);
    ring.arc(x, y, around, 0, 2 * Math.PI);
    strokeTwice(ring, 1.5);
    writeOnMap("all data", x, y + around + 14);
  }
}

// Ink on a white label.
function writeOnMap(text, x, y) {
  brush.font = "600 12.5px system-ui, sans-serif";
  brush.textAlign = "center";
  brush.textBaseline = "middle";
  const width = brush.measureText(text).width + 10;
  brush.fillStyle = "rgba(255, 255, 255, 0.86)";
  brush.beginPath();
  brush.roundRect(x - width / 2, y - 9, width, 18, 5);
  brush.fill();
  brush.fillStyle = INK;
  brush.fillText(text, x, y + 0.5);
}

function drawRay(size) {
  const [x, y] = direction();
  const at = (delta) => toScreen([delta * x, delta * y], size);
  const path = new Path2D();
  path.moveTo(...at(0));
  path.lineTo(...at(rayEnd()));
  strokeTwice(path, 3, RAY);
  const origin = new Path2D();
  origin.arc(...at(0), 2, 0, 2 * Math.PI);
  strokeTwice(origin, 3, RAY);
  const { alpha } = finalRegion(state.toy, direction());
  if (alpha < handleDelta() && alpha > 0.12 * rayEnd()) {
    const [left, top] = at(alpha);
    const tick = new Path2D(); // across the ray
    tick.moveTo(left - 7 * y, top - 7 * x);
    tick.lineTo(left + 7 * y, top + 7 * x);
    strokeTwice(tick, 3, RAY);
    writeOnMap("α", left + 20 * y, top + 20 * x);
  }
  const [left, top] = at(handleDelta());
  brush.beginPath();
  brush.arc(left, top, 9, 0, 2 * Math.PI);
  brush.fillStyle = "#ffffff";
  brush.strokeStyle = RAY;
  brush.lineWidth = 4;
  brush.fill();
  brush.stroke();
}

// A line with its length: the largest of 1, 2, 5, 10, … that takes at most a third of the map.
function drawScale(size) {
  const most = (2 * view().reach) / 3;
  const unit = 10 ** Math.floor(Math.log10(most));
  const length = [5, 2, 1].map((each) => each * unit).find((each) => each <= most);
  const pixels = (length / (2 * view().reach)) * size;
  const [left, right] = [size - 14 - pixels, size - 14];
  const path = new Path2D();
  path.moveTo(left, size - 20);
  path.lineTo(left, size - 14);
  path.lineTo(right, size - 14);
  path.lineTo(right, size - 20);
  strokeTwice(path, 1.5);
  writeOnMap(trim(length, 2), (left + right) / 2, size - 27);
}

// ---- The chart along the ray -----------------------------------------------------------------------------

const chart = find("chart");

function element(name, attributes, text = "") {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.textContent = text;
  return made;
}

function drawChart(region, limits) {
  const width = chart.clientWidth;
  const height = chart.clientHeight;
  const [left, right, top, bottom] = [44, width - 8, 16, height - 36];
  const lowest = 1 / state.toy.classes;
  const xOf = (power) => left + ((power - FIRST_DELTA) / (LAST_DELTA - FIRST_DELTA)) * (right - left);
  const yOf = (confidence) => bottom - ((confidence - lowest) / (1 - lowest)) * (bottom - top);
  const inside = (power) => Math.min(Math.max(power, FIRST_DELTA), LAST_DELTA);
  const parts = [];

  const end = xOf(inside(Math.log10(rayEnd())));
  parts.push(element("rect", { class: "seen", x: left, y: top, width: end - left, height: bottom - top }));
  for (const share of [0, 0.5, 1]) {
    const value = lowest + share * (1 - lowest);
    parts.push(element("line", { class: "grid", x1: left, x2: right, y1: yOf(value), y2: yOf(value) }));
    parts.push(element("text", { x: left - 6, y: yOf(value) + 4, "text-anchor": "end" }, `${trim(100 * value, 1)} %`));
  }
  for (let power = FIRST_DELTA; power <= LAST_DELTA; power++) {
    const anchor = power === LAST_DELTA ? "end" : "middle";
    const label = (10 ** power).toLocaleString("en");
    if (power !== LAST_DELTA - 1 || width > 420) // on a narrow screen it would touch the last one
      parts.push(element("text", { x: xOf(power), y: bottom + 16, "text-anchor": anchor }, label));
  }
  parts.push(element("text", { x: (left + right) / 2, y: bottom + 32, "text-anchor": "middle" }, "distance δ (shaded: on the map)"));

  const powers = Array.from({ length: 151 }, (_, i) => FIRST_DELTA + ((LAST_DELTA - FIRST_DELTA) * i) / 150);
  const [x, y] = direction();
  const points = Float64Array.from(powers.flatMap((power) => [x * 10 ** power, y * 10 ** power]));
  const order = Object.keys(METHODS).sort((a, b) => (a === state.method) - (b === state.method));
  for (const method of order) {
    const confidence = predictAt(points, method);
    const path = powers.map((power, i) => `${i ? "L" : "M"}${xOf(power).toFixed(1)} ${yOf(confidence[i]).toFixed(1)}`);
    const chosen = method === state.method ? " chosen" : "";
    parts.push(element("path", { class: `line ${method}${chosen}`, d: path.join("") }));
  }
  const alpha = Math.log10(region.alpha);
  if (alpha > FIRST_DELTA && alpha < LAST_DELTA) {
    parts.push(element("line", { class: "mark", x1: xOf(alpha), x2: xOf(alpha), y1: top - 4, y2: bottom }));
    parts.push(element("text", { x: xOf(alpha), y: top - 6, "text-anchor": "middle" }, "α"));
  }
  const y2 = yOf(limits);
  parts.push(element("line", { class: "mark", x1: xOf(LAST_DELTA - 1), x2: right, y1: y2, y2 }));
  parts.push(element("text", { x: right, y: y2 - top > 30 ? y2 - 8 : y2 + 19, "text-anchor": "end" }, `limit ${percent(limits)}`));
  chart.setAttribute("viewBox", `0 0 ${width} ${height}`);
  chart.replaceChildren(...parts);
}

// ---- Numbers as text -------------------------------------------------------------------------------------

// At most so many digits behind the point, and none that are zero.
const trim = (value, digits) => value.toLocaleString("en", { maximumFractionDigits: digits });

const percent = (share) => `${(100 * share).toFixed(1)}\u00a0%`; // no line ends before the sign

// Three digits; from 100,000 on as a power of ten.
function plainNumber(value) {
  if (value < 1e5) return value.toLocaleString("en", { maximumSignificantDigits: 3 });
  const [digits, power] = value.toExponential(1).split("e+");
  const raised = [...power].map((digit) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[digit]).join("");
  return digits === "1.0" ? `10${raised}` : `${digits}·10${raised}`;
}

function describe(region, limits, data, border) {
  const { method, temperature, priorVariance, residual } = settings();
  const numbers = {
    plain: "",
    temperature: ` at temperature ${plainNumber(temperature)}`,
    bitbayes: ` with prior variance ${plainNumber(priorVariance)}, temperature ${plainNumber(temperature)} and ${
      residual ? `${residual === 1 ? "" : `${plainNumber(residual)} times `}the tuned residual` : "no residual"
    }`,
  };
  const count = state.added.length / 2;
  const added = count ? ` ${count} added ${count === 1 ? "point" : "points"}.` : "";
  return (
    `${state.toy.title}, zoom ×${plainNumber(10 ** state.zoom)}, ${METHODS[method]}${numbers[method]}.${added} ` +
    `The mean confidence is ${percent(data)} at the data and ${percent(border)} on the map’s border. ` +
    `On the ray at ${state.angle}°, no unit switches beyond α\u00a0=\u00a0${plainNumber(region.alpha)}, ` +
    `and the confidence tends to ${percent(limits)}.`
  );
}

// ---- Drawing everything ----------------------------------------------------------------------------------

let waiting = false;
let settling = 0;
let telling = 0;

// Draw soon. While something moves the map is coarse; it is fine again a moment later.
function redraw(coarse = false) {
  if (coarse) {
    moving = true;
    clearTimeout(settling);
    settling = setTimeout(() => {
      moving = false;
      redraw();
    }, 120);
  }
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => {
    waiting = false;
    draw();
  });
}

function draw() {
  const region = finalRegion(state.toy, direction());
  const limits = Math.max(...limit(state.toy, posterior, settings(), region));
  const border = drawMap();
  const shares = largest(predict(state.toy, posterior, settings(), atData), state.toy.classes);
  const data = shares.reduce((sum, share) => sum + share, 0) / shares.length;
  drawChart(region, limits);
  find("alpha").textContent = plainNumber(region.alpha);
  find("limit").textContent = percent(limits);
  find("at-data").textContent = percent(data);
  find("at-border").textContent = percent(border);
  showSettings();
  // A screen reader is told when things have come to rest.
  clearTimeout(telling);
  telling = setTimeout(() => {
    telling = 0;
    find("state").textContent = describe(region, limits, data, border);
  }, 400);
}

function setSlider(id, value, text, used = true) {
  const input = find(id);
  input.value = value;
  input.disabled = !used;
  input.setAttribute("aria-valuetext", text);
  input.closest(".slider").classList.toggle("off", !used);
  find(`${id}-value`).textContent = used ? text : "not used";
}

function showSettings() {
  const { method, temperature, priorVariance, residual } = settings();
  const bayes = method === "bitbayes";
  setSlider("zoom", state.zoom, `×${plainNumber(10 ** state.zoom)}`);
  setSlider("temperature", state.temperature, plainNumber(temperature), method !== "plain");
  setSlider("prior", state.prior, plainNumber(priorVariance), bayes);
  const tuned = residual === 1 ? "as tuned" : `×${plainNumber(residual)}`;
  setSlider("residual", state.residual, residual ? tuned : "off", bayes);
  setSlider("angle", state.angle, `${state.angle}°`);
  for (const [name, value] of [["method", method], ["mode", state.mode], ["toy", state.toy.name]])
    document.querySelector(`input[name=${name}][value="${value}"]`).checked = true;
  canvas.classList.toggle("adding", state.mode === "add");
  find("clear").disabled = !state.added.length;
  find("tuned").disabled = !bayes;
}

// ---- The five steps --------------------------------------------------------------------------------------

function tunedPowers() {
  const { priorVariance, temperature } = state.toy.tuned;
  return { prior: Math.log10(priorVariance), temperature: Math.log10(temperature), residual: 0 };
}

// Each step: what it sets when it begins, what "Show me" moves, and the row of the control that does it.
const STEPS = [
  {
    title: "Zoom out",
    text: "Near its data, the network is unsure only between the classes. Zoom out: far from all data it is almost 100 % sure, although it has seen nothing there.",
    begin: () => ({ method: "plain", zoom: 0 }),
    show: () => ({ zoom: ZOOMED_OUT }),
    row: "zoom-row",
  },
  {
    title: "Temperature does not help",
    text: "A temperature divides all logits by one number. Raise it: the network becomes unsure at the data, and further out it is as sure as before.",
    begin: () => ({ method: "temperature", temperature: 0, zoom: ZOOMED_OUT }),
    show: () => ({ temperature: 1, zoom: 3 }),
    row: "temperature-row",
  },
  {
    title: "Widen the prior",
    text: "bitbayes averages over a Gaussian over the weights of the last layer. Now the confidence has a limit below 100 % on every ray. The wider the prior, the lower the limit.",
    begin: () => ({ method: "bitbayes", temperature: 0, prior: 0, residual: NO_RESIDUAL, zoom: ZOOMED_OUT }),
    show: () => ({ prior: 4 }),
    row: "prior-row",
  },
  {
    title: "Add the residual",
    text: "The residual is a variance that grows with the distance from the training data, near them and beyond. In every direction the confidence goes to that of a blind guess. At the data it hardly changes.",
    begin: () => ({ method: "bitbayes", temperature: 0, prior: 1, residual: NO_RESIDUAL, zoom: 1 }),
    show: () => ({ residual: tunedPowers().residual }),
    row: "residual-row",
  },
  {
    title: "Add your own points",
    text: "Touch the map to add points, best where the network is unsure. The posterior is updated at once, without training: near the new points the network may be sure again.",
    begin: () => ({ method: "bitbayes", ...tunedPowers(), zoom: 1, mode: "add" }),
    show: () => addCloud(),
    row: "modes",
  },
];

function goTo(step) {
  state.step = step;
  const { title, text, begin, row } = STEPS[step];
  find("step-count").textContent = `Step ${step + 1} of ${STEPS.length}`;
  find("step-title").textContent = title;
  find("step-text").textContent = text;
  find("back").disabled = step === 0;
  find("next").textContent = step === STEPS.length - 1 ? "Start again" : "Next";
  document.querySelectorAll(".hint").forEach((each) => each.classList.remove("hint"));
  find(row).classList.add("hint");
  state.mode = "ray";
  stopMoving();
  const { zoom, ...others } = begin();
  Object.assign(state, others);
  moveTo({ zoom }, 500);
}

// Points around the end of the ray, as somebody might add them.
function addCloud() {
  const reach = view().reach;
  const [x, y] = direction().map((value) => 0.6 * handleDelta() * value);
  for (let i = 0; i < 12; i++) {
    const angle = 2.4 * i; // the golden angle spreads them evenly
    const radius = 0.055 * reach * Math.sqrt(i);
    state.added.push(x + radius * Math.cos(angle), y + radius * Math.sin(angle));
  }
  refit();
  return {};
}

// ---- Motion ----------------------------------------------------------------------------------------------

let motion = 0;

function stopMoving() {
  cancelAnimationFrame(motion);
  motion = 0;
}

// Move some settings to new values; at once for readers who asked for less motion.
function moveTo(goal, milliseconds) {
  stopMoving();
  if (calm.matches) {
    Object.assign(state, goal);
    redraw();
    return;
  }
  const start = Object.fromEntries(Object.keys(goal).map((key) => [key, state[key]]));
  const began = performance.now();
  const frame = (now) => {
    const share = Math.min(Math.max((now - began) / milliseconds, 0), 1);
    const eased = share * share * (3 - 2 * share);
    for (const key of Object.keys(goal))
      state[key] = share < 1 ? start[key] + eased * (goal[key] - start[key]) : goal[key];
    redraw(share < 1 && "zoom" in goal);
    motion = share < 1 ? requestAnimationFrame(frame) : 0;
  };
  motion = requestAnimationFrame(frame);
}

// ---- Listening -------------------------------------------------------------------------------------------

function listen() {
  const switchOf = find("toys");
  for (const toy of TOYS) {
    const label = document.createElement("label");
    label.innerHTML = '<input type="radio" name="toy"><span></span>';
    label.firstChild.value = toy.name;
    label.lastChild.textContent = toy.title;
    switchOf.append(label);
  }
  switchOf.addEventListener("change", ({ target }) => {
    state.toy = TOYS.find((toy) => toy.name === target.value);
    state.added = [];
    refit();
    drawLegend();
    goTo(state.step);
  });
  find("methods").addEventListener("change", ({ target }) => {
    state.method = target.value;
    redraw();
  });
  find("modes").addEventListener("change", ({ target }) => {
    state.mode = target.value;
    redraw();
  });
  for (const id of ["zoom", "temperature", "prior", "residual", "angle"])
    find(id).addEventListener("input", ({ target }) => {
      stopMoving();
      state[id] = Number(target.value);
      redraw(id === "zoom");
    });
  find("back").addEventListener("click", () => goTo(state.step - 1));
  find("next").addEventListener("click", () => goTo((state.step + 1) % STEPS.length));
  find("show").addEventListener("click", () => moveTo(STEPS[state.step].show(), 1600));
  find("tuned").addEventListener("click", () => moveTo(tunedPowers(), 600));
  find("add").addEventListener("click", () => addPoint(direction().map((value) => value * handleDelta())));
  find("clear").addEventListener("click", () => {
    state.added = [];
    refit();
    redraw();
    find("add").focus(); // the button itself cannot be used any more
  });

  canvas.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    event.preventDefault();
    const place = placeOf(event);
    if (state.mode === "add") return addPoint(place);
    canvas.setPointerCapture(event.pointerId);
    turnTo(place);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (canvas.hasPointerCapture(event.pointerId)) turnTo(placeOf(event));
  });

  new ResizeObserver(() => redraw()).observe(canvas);
  dark.addEventListener("change", () => {
    colours = colourTable();
    drawLegend();
    redraw();
  });
}

function placeOf(event) {
  const box = canvas.getBoundingClientRect();
  return toPlane([event.clientX - box.left, event.clientY - box.top], box.width);
}

function turnTo([x, y]) {
  state.angle = (Math.round((Math.atan2(y, x) * 180) / Math.PI) + 360) % 360;
  redraw();
}

function addPoint(place) {
  state.added.push(...place);
  refit();
  redraw();
}

listen();
refit();
drawLegend();
goTo(0);
