// Sliders, switches and motion, for both scenes. They change `state`; `redraw` shows it.

const find = (id) => document.getElementById(id);
const calm = matchMedia("(prefers-reduced-motion: reduce)");

function make(name, attributes, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

// In a row that holds the slider's name: the label, the slider, the mark of its tuned value, and its value as text.
function makeSlider(id, changed) {
  const row = find(`${id}-row`);
  const [min, max, step] = RANGES[id];
  const input = make("input", { type: "range", id, min, max, step });
  const mark = make("i", { id: `${id}-mark`, hidden: "" });
  const label = make("label", { for: id }, ...row.childNodes);
  row.replaceChildren(label, make("span", { class: "track" }, input, mark), make("output", { for: id, id: `${id}-value` }));
  input.addEventListener("input", () => {
    state[id] = Number(input.value);
    changed?.(id);
    redraw(id === "zoom");
  });
}

function showSlider(id, text, used = true, tuned = null) {
  const [low, high] = RANGES[id];
  const input = find(id);
  const mark = find(`${id}-mark`);
  input.value = state[id];
  input.disabled = !used;
  input.setAttribute("aria-valuetext", text);
  input.closest(".slider").classList.toggle("off", !used);
  find(`${id}-value`).textContent = used ? text : "not used";
  mark.hidden = tuned === null || !used;
  mark.style.setProperty("--at", (tuned - low) / (high - low));
}

const markOf = (method) => make("i", { class: `method ${method}` });

// Radio buttons for a choice, or check boxes for several: pairs of a value and its text.
function makeSwitch(key, texts, changed, marks = false) {
  const several = Array.isArray(state[key]);
  for (const [value, text] of texts) {
    const input = make("input", { type: several ? "checkbox" : "radio", name: key, value });
    find(`${key}-switch`).append(make("label", {}, input, make("span", {}, ...(marks ? [markOf(value)] : []), text)));
    input.addEventListener("change", () => {
      if (several) state[key] = LEVELS.filter((name) => (name === value ? input.checked : state[key].includes(name)));
      else state[key] = typeof START[key] === "number" ? Number(value) : value;
      changed ? changed() : redraw();
    });
  }
}

function showSwitch(key) {
  for (const input of document.querySelectorAll(`input[name=${key}]`))
    input.checked = [state[key]].flat().map(String).includes(input.value);
}

// ---- Motion

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
  const start = { ...state };
  const numbers = Object.keys(goal).filter((key) => key in RANGES && goal[key] !== start[key]);
  for (const key of Object.keys(goal)) if (!numbers.includes(key)) state[key] = goal[key];
  const began = performance.now();
  const frame = (now) => {
    const share = Math.min(Math.max((now - began) / milliseconds, 0), 1);
    const eased = share * share * (3 - 2 * share);
    for (const key of numbers) state[key] = share < 1 ? start[key] + eased * (goal[key] - start[key]) : goal[key];
    redraw(share < 1 && numbers.includes("zoom"));
    motion = share < 1 ? requestAnimationFrame(frame) : 0;
  };
  motion = requestAnimationFrame(frame);
}

// Any touch of the page stops what moves by itself.
for (const kind of ["pointerdown", "keydown"]) addEventListener(kind, stopMoving, { capture: true });

// ---- Drawing

let waiting = false;
let moving = false;
let settling = 0;
let telling = 0;

// Draw soon. While something moves the map is coarse; it is fine again a moment later.
function redraw(coarse = false) {
  if (coarse === true) {
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
    const tell = state.scene === "plane" ? drawPlane() : drawDigits();
    // Text and address follow when things have come to rest, so that a screen reader is told once.
    clearTimeout(telling);
    telling = setTimeout(() => {
      telling = 0;
      tell();
      history.replaceState(null, "", asAddress());
    }, 400);
  });
}
