// What of the plane the map shows, and the ray in it.

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
  const { centre, half } = theToy().view;
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
