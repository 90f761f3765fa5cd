// The map: the left side's confidence on the left of the divider, and that of bitbayes on its right.

const SIDE_MOVING = 100; // points along a side of the map while something moves, and when it rests
const SIDE_AT_REST = 224;
const INK = "#16181b"; // on the map, in light and in dark

const canvas = find("map");
const brush = canvas.getContext("2d", { willReadFrequently: true });

// ---- Colours: the hue is the class, the saturation the confidence, and white a blind guess

const CLASS_COLOURS = [1, 2, 3, 4].map((c) => {
  const text = getComputedStyle(document.documentElement).getPropertyValue(`--class-${c}`).trim();
  return [1, 3, 5].map((i) => parseInt(text.slice(i, i + 2), 16));
});

const mapColour = (label, share) => CLASS_COLOURS[label].map((value) => 255 - share * (255 - value));

function drawLegend() {
  const { classes } = theToy();
  find("colours").replaceChildren(
    ...Array.from({ length: classes }, (_, c) => {
      const bar = make("div", {});
      bar.style.background = `linear-gradient(to right, #fff, rgb(${CLASS_COLOURS[c]}))`;
      return bar;
    })
  );
  const tick = (share) => make("span", {}, `${trim(100 / classes + (100 - 100 / classes) * share, 1)}%`);
  find("ticks").replaceChildren(...[0, 0.25, 0.5, 0.75, 1].map(tick));
}

// ---- The two sides

let posterior; // of the toy's points and those that were added
let fits = 0; // how many there have been
let prepared; // what the map's points need, for one view: see `prepare`
const known = { left: {}, right: {} };

function refit() {
  posterior = fitPosterior(theToy(), Float64Array.from([...theToy().points, ...state.added]));
  fits += 1;
}

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

// What one side of the map would show on all of it. It is kept until something changes.
function mapOf(place, settings) {
  const side = moving ? SIDE_MOVING : SIDE_AT_REST;
  const shown = `${state.toy} ${fits} ${state.zoom} ${side}`;
  if (prepared?.shown !== shown) prepared = { shown, ...prepare(theToy(), posterior, gridPoints(side)) };
  const key = shown + JSON.stringify(settings);
  if (known[place].key !== key) {
    const probabilities = predict(theToy(), posterior, settings, prepared);
    known[place] = { key, side, probabilities, ...paint(probabilities, side) };
  }
  return known[place];
}

// The image of the probabilities, and their mean confidence on the map's border.
function paint(probabilities, side) {
  const { classes: k } = theToy();
  const image = document.createElement("canvas");
  image.width = image.height = side;
  const pixels = new ImageData(side, side);
  const confidence = largest(probabilities, k);
  confidence.forEach((value, i) => {
    const label = probabilities.indexOf(value, i * k) - i * k;
    const share = Math.max((value - 1 / k) / (1 - 1 / k), 0); // rounding can leave it just below
    pixels.data.set([...mapColour(label, share), 255], 4 * i);
  });
  image.getContext("2d").putImageData(pixels, 0, 0);
  let sum = 0;
  for (let i = 0; i < side; i++)
    sum += confidence[i] + confidence[side * (side - 1) + i] + confidence[side * i] + confidence[side * i + side - 1];
  return { image, border: sum / (4 * side) };
}

function drawMap(left, right) {
  const size = canvas.clientWidth;
  const ratio = window.devicePixelRatio || 1;
  if (canvas.width !== Math.round(size * ratio)) canvas.width = canvas.height = Math.round(size * ratio);
  brush.setTransform(ratio, 0, 0, ratio, 0, 0);
  brush.imageSmoothingQuality = "high";
  const middle = (state.split / 100) * size;
  for (const [{ image, probabilities, side }, from, to] of [[left, 0, middle], [right, middle, size]]) {
    brush.save();
    brush.beginPath();
    brush.rect(from, 0, to - from, size);
    brush.clip();
    brush.drawImage(image, 0, 0, size, size);
    strokeTwice(boundary(probabilities, side, size), 1.5);
    brush.restore();
  }
  drawData(size);
  drawRay(size);
  drawScale(size);
}

// ---- Lines and marks

// A dark line on a light one: seen on every colour of the map.
function strokeTwice(path, width) {
  brush.lineJoin = brush.lineCap = "round";
  for (const [style, extra] of [["rgba(255, 255, 255, 0.8)", 2.5], [INK, 0]]) {
    brush.strokeStyle = style;
    brush.lineWidth = width + extra;
    brush.stroke(path);
  }
}

// The lines on which the two largest probabilities are equal, by marching squares over log p_i − log max p_j.
function boundary(probabilities, side, size) {
  const { classes: k } = theToy();
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
  return path;
}

// Every class has a colour and a shape.
function drawMark(x, y, label, radius) {
  brush.beginPath();
  if (label === 0) brush.arc(x, y, radius, 0, 2 * Math.PI);
  else {
    const corners = [0, 3, 4, 4][label];
    const turn = [0, -Math.PI / 2, Math.PI / 4, 0][label];
    for (let i = 0; i < corners; i++) {
      const angle = turn + (2 * Math.PI * i) / corners;
      brush.lineTo(x + 1.25 * radius * Math.cos(angle), y + 1.25 * radius * Math.sin(angle));
    }
    brush.closePath();
  }
  brush.fillStyle = `rgb(${CLASS_COLOURS[label]})`;
  brush.strokeStyle = "#ffffff";
  brush.lineWidth = 1.4;
  brush.fill();
  brush.stroke();
}

function drawData(size) {
  const { points, labels, view: first } = theToy();
  const width = (first.size / (2 * view().reach)) * size; // of all data, in pixels
  const radius = Math.min(4.6, Math.max(1.8, width / 55));
  if (width > 14)
    labels.forEach((label, i) => drawMark(...toScreen([points[2 * i], points[2 * i + 1]], size), label, radius));
  if (width <= 60) {
    const [x, y] = toScreen(first.centre, size);
    const ring = new Path2D();
    const around = Math.max(9, 0.62 * width);
    ring.arc(x, y, around, 0, 2 * Math.PI);
    strokeTwice(ring, 1.5);
    writeOnMap("all data", x + around + 36, y + around + 4);
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
  strokeTwice(path, 3);
  const origin = new Path2D();
  origin.arc(...at(0), 2, 0, 2 * Math.PI);
  strokeTwice(origin, 3);
  const { alpha } = finalRegion(theToy(), direction());
  if (alpha < handleDelta() && alpha > 0.12 * rayEnd()) {
    const [left, top] = at(alpha);
    const tick = new Path2D(); // across the ray
    tick.moveTo(left - 7 * y, top - 7 * x);
    tick.lineTo(left + 7 * y, top + 7 * x);
    strokeTwice(tick, 3);
    writeOnMap("α", left + 20 * y, top + 20 * x);
  }
  const [left, top] = at(handleDelta());
  brush.beginPath();
  brush.arc(left, top, 9, 0, 2 * Math.PI);
  brush.fillStyle = "#ffffff";
  brush.strokeStyle = INK;
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
