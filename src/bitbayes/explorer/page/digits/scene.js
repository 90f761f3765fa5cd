// The second scene: a digit that is rotated, blurred and brightened, and three confidences.

const DIGIT_METHODS = {
  plain: PLAIN,
  temperature: { ...PLAIN, temperature: DIGITS.tuned.scaling },
  bitbayes: { temperature: DIGITS.tuned.temperature, priorVariance: DIGITS.tuned.priorVariance, residual: 1 },
};
const CHART_STEPS = 120;
const BLIND = 1 / DIGITS.classes;
const ALONG = { rotation: "Rotation", blur: "Blur", bright: "Brightness" };

// The image with some of its three settings, and what the methods say of it: their probabilities.
function changed(settings) {
  const { image, rotation, blur, bright } = { ...state, ...settings };
  return changeImage(DIGITS.images[image].pixels, { rotation, blur, brightness: 10 ** bright });
}

function predictDigits(images) {
  const made = prepareDigits(DIGITS, images);
  const predicted = (settings) => predict(DIGITS, DIGITS.posterior, settings, made);
  return Object.fromEntries(Object.entries(DIGIT_METHODS).map(([method, settings]) => [method, predicted(settings)]));
}

function drawImage(onto, pixels) {
  const image = new ImageData(SIDE, SIDE);
  pixels.forEach((value, i) => image.data.set([255 * value, 255 * value, 255 * value, 255], 4 * i));
  onto.getContext("2d").putImageData(image, 0, 0);
}

function drawDigits() {
  const pixels = changed({});
  const probabilities = predictDigits(pixels);
  drawImage(find("digit"), pixels);
  for (const [method, values] of Object.entries(probabilities)) {
    const label = bestOf(values);
    find(`bar-${method}`).style.width = `${100 * values[label]}%`;
    find(`says-${method}`).textContent = label;
    find(`sure-${method}`).textContent = percent(values[label]);
  }
  showSlider("rotation", `${Math.round(state.rotation)}°`);
  showSlider("blur", state.blur ? `${trim(state.blur, 2)} pixels` : "none");
  showSlider("bright", `×${plainNumber(10 ** state.bright)}`);
  showSwitch("image");
  showSwitch("along");
  drawDigitChart();
  return () => (find("digit-state").textContent = describeDigit(probabilities));
}

// Confidences along one slider; they are kept until something else changes.
let chartKey = "";
let chartLines;
function drawDigitChart() {
  const { along } = state;
  const [from, to] = RANGES[along];
  const key = JSON.stringify([along, state.image, ...Object.keys(ALONG).filter((each) => each !== along).map((each) => state[each])]);
  if (key !== chartKey) {
    const images = Array.from({ length: CHART_STEPS + 1 }, (_, i) => changed({ [along]: from + ((to - from) * i) / CHART_STEPS }));
    const found = predictDigits(Float64Array.from(images.flatMap((each) => [...each])));
    chartLines = Object.fromEntries(Object.entries(found).map(([method, values]) => [method, largest(values, DIGITS.classes)]));
    chartKey = key;
  }
  drawChart(find("digit-chart"), {
    lines: chartLines,
    lowest: 0,
    from,
    to,
    ticks: DIGIT_TICKS[along],
    title: { rotation: "rotation", blur: "blur, in pixels", bright: "brightness" }[along],
    marks: [{ place: state[along], text: "now" }],
  });
}

const DIGIT_TICKS = {
  rotation: [-180, -90, 0, 90, 180].map((value) => [value, `${value < 0 ? "−" : ""}${Math.abs(value)}°`]),
  blur: [0, 1, 2, 3, 4].map((value) => [value, String(value)]),
  bright: [-1, 0, 1, 2, 3].map((value) => [value, `×${(10 ** value).toLocaleString("en")}`]),
};

function describeDigit(probabilities) {
  const { name } = DIGITS.images[state.image];
  const done = [
    state.rotation && `rotated by ${Math.round(state.rotation)}°`,
    state.blur && `blurred by ${trim(state.blur, 2)} pixels`,
    state.bright && `${plainNumber(10 ** state.bright)} times as bright`,
  ].filter(Boolean);
  const says = Object.entries(probabilities).map(([method, values]) => {
    const label = bestOf(values);
    const isRight = name.startsWith("digit") ? (name === `digit ${label}` ? ", right" : ", wrong") : "";
    return `${METHODS[method]} says ${label}, ${percent(values[label])}${isRight}.`;
  });
  return `Image: ${name}, ${done.join(", ") || "as it is"}. ${says.join(" ")} A blind guess is ${percent(BLIND)}.`;
}

function listenToDigits() {
  makeSwitch("image", DIGITS.images.map(({ name }, i) => [String(i), name]));
  find("image-switch").querySelectorAll("span").forEach((span, i) => {
    const picture = make("canvas", { width: SIDE, height: SIDE, "aria-hidden": "true" });
    drawImage(picture, DIGITS.images[i].pixels);
    span.replaceChildren(picture, make("b", { class: "unseen" }, DIGITS.images[i].name));
  });
  makeSwitch("along", Object.entries(ALONG));
  for (const id of Object.keys(ALONG)) makeSlider(id, () => (state.along = id));
  const row = (method) =>
    make(
      "tr",
      {},
      make("th", { scope: "row" }, markOf(method), METHODS[method]),
      make("td", { id: `says-${method}` }),
      make("td", { class: "bar", "aria-hidden": "true" }, make("div", { id: `bar-${method}`, class: method })),
      make("td", { id: `sure-${method}` })
    );
  find("bars").replaceChildren(...Object.keys(DIGIT_METHODS).map(row));
  find("digit-reset").addEventListener("click", () => {
    Object.assign(state, { rotation: 0, blur: 0, bright: 0 });
    redraw();
  });
  const cells = ({ accuracy, ...sure }) => [accuracy, ...Object.keys(DIGIT_METHODS).map((method) => sure[method])];
  const rates = DIGITS.test.map((each) =>
    make("tr", {}, make("th", { scope: "row" }, each.name), ...cells(each).map((share) => make("td", {}, share === null ? "–" : percent(share))))
  );
  find("digit-test").replaceChildren(...rates);
}
