// What is touched on the map: the ray, added points, and the divider.

let dragged = -1; // the number of the added point that is dragged, if one is

function placeOf(event) {
  const box = canvas.getBoundingClientRect();
  return toPlane([event.clientX - box.left, event.clientY - box.top], box.width);
}

function turnTo([x, y]) {
  state.angle = (Math.round((Math.atan2(y, x) * 180) / Math.PI) + 360) % 360;
  redraw();
}

// Four digits are enough, and keep links short.
const short = (place) => place.map((value) => Number(value.toPrecision(4)));

function addPoints(places) {
  state.added = [...state.added, ...places.flatMap(short)].slice(0, 2 * MOST_POINTS);
  refit();
  redraw();
}

function movePoint(index, place, coarse) {
  state.added = state.added.with(2 * index, short(place)[0]).with(2 * index + 1, short(place)[1]);
  refit();
  redraw(coarse);
}

function removePoint(index) {
  state.added = state.added.filter((_, i) => i >> 1 !== index);
  refit();
  redraw();
}

const pointAt = (index) => state.added.slice(2 * index, 2 * index + 2);

// A button on each added point: it is dragged, or moved by the arrow keys.
function showPoints() {
  const stage = find("points");
  const count = state.added.length / 2;
  while (stage.children.length > count) stage.lastChild.remove();
  while (stage.children.length < count) stage.append(makeHandle(stage.children.length));
  [...stage.children].forEach((handle, index) => {
    const place = pointAt(index);
    const [x, y] = toScreen(place, 100);
    handle.hidden = Math.min(x, y) < 0 || Math.max(x, y) > 100;
    handle.style.left = `${x}%`;
    handle.style.top = `${y}%`;
    const at = place.map(plainSigned).join(", ");
    handle.setAttribute("aria-label", `Added point ${index + 1} of ${count}, at ${at}. Arrow keys move it, Delete removes it.`);
  });
}

const plainSigned = (value) => (value < 0 ? "−" : "") + plainNumber(Math.abs(value));

function makeHandle(index) {
  const handle = make("button", { type: "button", class: "point" });
  handle.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    dragged = index;
    canvas.setPointerCapture(event.pointerId);
  });
  handle.addEventListener("keydown", (event) => {
    const step = (view().reach * 2) / (event.shiftKey ? 200 : 50);
    const [x, y] = pointAt(index);
    const goal = { ArrowLeft: [x - step, y], ArrowRight: [x + step, y], ArrowUp: [x, y + step], ArrowDown: [x, y - step] };
    if (goal[event.key]) movePoint(index, goal[event.key], true);
    else if (event.key === "Delete" || event.key === "Backspace") {
      const next = find("points").children[index + 1] ? handle : handle.previousElementSibling;
      (next ?? find("add")).focus();
      removePoint(index);
    } else return;
    event.preventDefault();
  });
  return handle;
}

// Points around the ray, as somebody might add them.
function addCloud() {
  const { reach } = view();
  const [x, y] = direction().map((value) => 0.6 * handleDelta() * value);
  const places = Array.from({ length: 12 }, (_, i) => {
    const angle = 2.4 * i; // the golden angle spreads them evenly
    const radius = 0.055 * reach * Math.sqrt(i);
    return [x + radius * Math.cos(angle), y + radius * Math.sin(angle)];
  });
  addPoints(places);
}

function showDivider() {
  const divider = find("divider");
  const share = Math.round(state.split);
  divider.style.left = `${state.split}%`;
  divider.setAttribute("aria-valuenow", share);
  divider.setAttribute("aria-valuetext", `${share}% ${METHODS[state.left]}, ${100 - share}% bitbayes`);
  find("left-name").replaceChildren(markOf(state.left), METHODS[state.left]);
}

function splitAt(share) {
  state.split = Math.min(Math.max(share, 0), 100);
  redraw();
}

function listenToMap() {
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    event.preventDefault();
    canvas.setPointerCapture(event.pointerId);
    if (state.mode === "ray") return turnTo(placeOf(event));
    if (state.added.length < 2 * MOST_POINTS) dragged = state.added.length / 2;
    addPoints([placeOf(event)]);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!canvas.hasPointerCapture(event.pointerId)) return;
    if (dragged >= 0) movePoint(dragged, placeOf(event), true);
    else if (state.mode === "ray") turnTo(placeOf(event));
  });
  canvas.addEventListener("lostpointercapture", () => (dragged = -1));

  const divider = find("divider");
  divider.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    divider.setPointerCapture(event.pointerId);
  });
  divider.addEventListener("pointermove", (event) => {
    if (!divider.hasPointerCapture(event.pointerId)) return;
    const box = canvas.getBoundingClientRect();
    splitAt((100 * (event.clientX - box.left)) / box.width);
  });
  divider.addEventListener("keydown", (event) => {
    const [, , step] = RANGES.split;
    const { split } = state;
    const less = split - step;
    const more = split + step;
    const goal = { ArrowLeft: less, ArrowDown: less, ArrowRight: more, ArrowUp: more, PageDown: split - 10, PageUp: split + 10, Home: 0, End: 100 };
    if (!(event.key in goal)) return;
    event.preventDefault();
    splitAt(goal[event.key]);
  });
}
