// The first scene: points in the plane, plain beside bitbayes.

const RAY_STEPS = 150; // of the chart

function settingsOf(method) {
  if (method === "plain") return PLAIN;
  if (method === "temperature") return { ...PLAIN, temperature: 10 ** state.scaling };
  return {
    temperature: 10 ** state.temperature,
    priorVariance: 10 ** state.prior,
    residual: hasResidual() ? 10 ** state.residual : 0,
    levels: state.levels,
    kernel: state.kernel,
  };
}

const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;

// The accuracy on held-out points, and the confidences, of both sides.
function measureBoth(left, right, region) {
  const toy = theToy();
  const [data, held] = [toy.points, Float64Array.from(toy.validation.flat())].map((each) => prepare(toy, posterior, each));
  const measure = (method, { border }) => {
    const found = predict(toy, posterior, settingsOf(method), held);
    const isRight = (label, i) => label === bestOf(found.subarray(i * toy.classes, (i + 1) * toy.classes));
    return {
      accuracy: mean(toy.validationLabels.map((label, i) => Number(isRight(label, i)))),
      data: mean(largest(predict(toy, posterior, settingsOf(method), data), toy.classes)),
      border,
      limit: Math.max(...limit(toy, posterior, settingsOf(method), region)),
    };
  };
  return { left: measure(state.left, left), right: measure("bitbayes", right), blind: 1 / toy.classes, alpha: region.alpha };
}

const bestOf = (values) => values.indexOf(Math.max(...values));

// Draw all that can be seen, and return what writes the text.
function drawPlane() {
  const region = finalRegion(theToy(), direction());
  const [left, right] = [mapOf("left", settingsOf(state.left)), mapOf("right", settingsOf("bitbayes"))];
  drawMap(left, right);
  const at = measureBoth(left, right, region);
  drawRayChart(at);
  showNumbers(at);
  showSettings();
  showPoints();
  showDivider();
  showStep();
  return () => {
    find("step-text").textContent = STEPS[state.step].text(at);
    find("state").textContent = describe(at);
  };
}

function drawRayChart({ alpha, right }) {
  const [from, to] = [-1, 4]; // δ from 0.1 to 10,000
  const powers = Array.from({ length: RAY_STEPS + 1 }, (_, i) => from + ((to - from) * i) / RAY_STEPS);
  const [x, y] = direction();
  const points = Float64Array.from(powers.flatMap((power) => [x * 10 ** power, y * 10 ** power]));
  const made = prepare(theToy(), posterior, points);
  const confidence = (method) => largest(predict(theToy(), posterior, settingsOf(method), made), theToy().classes);
  const narrow = find("ray-chart").clientWidth < 420;
  drawChart(find("ray-chart"), {
    lines: Object.fromEntries(Object.keys(METHODS).map((method) => [method, confidence(method)])),
    lowest: 1 / theToy().classes,
    from,
    to,
    ticks: [-1, 0, 1, 2, 3, 4].filter((power) => power !== 3 || !narrow).map((power) => [power, (10 ** power).toLocaleString("en")]),
    title: narrow ? "distance δ (shaded: on the map)" : "distance δ along the ray (shaded: on the map)",
    seen: [from, Math.log10(rayEnd())],
    marks: Math.log10(alpha) > from && Math.log10(alpha) < to ? [{ place: Math.log10(alpha), text: "last switch α" }] : [],
    thick: [state.left, "bitbayes"],
  });
}

function showNumbers(at) {
  const row = (method, { accuracy, data, border, limit }) =>
    make("tr", {}, make("th", { scope: "row" }, markOf(method), METHODS[method]), ...[accuracy, data, border, limit].map((share) => make("td", {}, percent(share))));
  find("numbers").replaceChildren(row(state.left, at.left), row("bitbayes", at.right));
}

function showSettings() {
  const bayes = settingsOf("bitbayes");
  const tuned = tunedPowers(theToy());
  const residual = state.residual === 0 ? "as tuned" : `×${plainNumber(bayes.residual)}`;
  showSlider("zoom", `×${plainNumber(10 ** state.zoom)}`);
  showSlider("scaling", plainNumber(10 ** state.scaling), state.left === "temperature", tuned.scaling);
  showSlider("temperature", plainNumber(bayes.temperature), true, tuned.temperature);
  showSlider("prior", plainNumber(bayes.priorVariance), true, tuned.prior);
  showSlider("residual", bayes.residual ? residual : "off", true, tuned.residual);
  showSlider("angle", `${state.angle}°`);
  for (const key of ["toy", "left", "kernel", "levels", "mode"]) showSwitch(key);
  for (const input of document.querySelectorAll("input[name=kernel], input[name=levels]")) input.disabled = !hasResidual();
  canvas.classList.toggle("adding", state.mode === "add");
  find("clear").disabled = !state.added.length;
}

function describe({ left, right, alpha }) {
  const { temperature, priorVariance, residual } = settingsOf("bitbayes");
  const own = state.left === "plain" ? "" : ` at ${plainNumber(10 ** state.scaling)}`;
  const part = state.kernel === "both" ? "" : ` (${KERNELS[state.kernel].toLowerCase()})`;
  const levels = `${state.levels.map((name) => LEVEL_NAMES[name].toLowerCase()).join(", ") || "no level"}`;
  const some = state.levels.length < LEVELS.length ? ` at: ${levels}` : "";
  const multiple = residual === 1 ? "" : `${plainNumber(residual)} times `;
  const count = state.added.length / 2;
  const added = count ? ` ${count} added ${count === 1 ? "point" : "points"}${count === MOST_POINTS ? ", no more fit" : ""}.` : "";
  return (
    `${theToy().title}, zoom ×${plainNumber(10 ** state.zoom)}.${added} Left: ${leftName().toLowerCase()}${own}. ` +
    `Right: bitbayes with prior variance ${plainNumber(priorVariance)}, temperature ${plainNumber(temperature)} and ` +
    `${residual ? `${multiple}the tuned residual${part}${some}` : "no residual"}. ` +
    `Mean confidence at the data: ${percent(left.data)} and ${percent(right.data)}; on the map’s border: ` +
    `${percent(left.border)} and ${percent(right.border)}. On the ray at ${state.angle}° no unit switches beyond ` +
    `α\u00a0=\u00a0${plainNumber(alpha)}, and the confidences tend to ${percent(left.limit)} and ${percent(right.limit)}.`
  );
}

const KERNELS = { both: "Near and beyond", near: "Near only", beyond: "Beyond only" };
const LEVEL_NAMES = Object.fromEntries(
  TOYS[0].levels.map(({ name, layer }) => [name, { input: "Input", head: "Last layer", classes: "Classes" }[name] ?? `Layer ${layer + 1}`])
);

function changeToy() {
  state.added = [];
  refit();
  drawLegend();
  goTo(state.step);
}

function listenToPlane() {
  makeSwitch("toy", TOYS.map(({ name, title }) => [name, title]), changeToy);
  makeSwitch("left", Object.entries(METHODS).slice(0, 2), redraw, true);
  makeSwitch("kernel", Object.entries(KERNELS));
  makeSwitch("levels", LEVELS.map((name) => [name, LEVEL_NAMES[name]]));
  makeSwitch("mode", [["ray", "turn the ray"], ["add", "add points"]]);
  for (const id of ["zoom", "scaling", "temperature", "prior", "residual", "angle"]) makeSlider(id);
  find("back").addEventListener("click", () => goTo(state.step - 1));
  find("next").addEventListener("click", () => goTo((state.step + 1) % STEPS.length));
  find("show").addEventListener("click", () => moveTo(STEPS[state.step].show(), 1600));
  find("tuned").addEventListener("click", () => {
    const { left, ...tuned } = bayesAt();
    moveTo(tuned, 600);
  });
  find("add").addEventListener("click", () => addPoints([direction().map((value) => value * handleDelta())]));
  find("clear").addEventListener("click", () => {
    state.added = [];
    refit();
    redraw();
    find("add").focus(); // the button itself cannot be used any more
  });
  listenToMap();
  new ResizeObserver(() => redraw()).observe(canvas);
}
