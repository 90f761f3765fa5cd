// The five steps. Each says what it sets when it begins, what "Show me" moves, the row of the control that does it, and
// its text, which follows the state: `at` has the measured numbers of both sides, as in `measureBoth`.

const ZOOMED_OUT = 2;
const leftName = () => (state.left === "plain" ? "The plain network" : "Temperature scaling");
const bayesAt = () => ({ ...tunedPowers(theToy()), kernel: "both", levels: LEVELS, left: "plain" });
const hasResidual = () => state.residual > NO_RESIDUAL;

const STEPS = [
  {
    title: "Zoom out",
    begin: () => ({ ...bayesAt(), split: 50, zoom: 0 }),
    show: () => ({ zoom: ZOOMED_OUT }),
    row: "zoom-row",
    text: ({ left, right, blind }) =>
      state.zoom < 1
        ? `At the data both sides of the divider are about as sure: ${percent(left.data)} and ${percent(right.data)} on average. Zoom out.`
        : `${leftName()} is ${percent(left.border)} sure on the map’s border, although it has seen nothing there. bitbayes is ${percent(right.border)} sure. A blind guess is ${percent(blind)}.`,
  },
  {
    title: "Temperature does not help",
    begin: () => ({ ...bayesAt(), left: "temperature", scaling: 0, split: 70, zoom: ZOOMED_OUT }),
    show: () => ({ scaling: 1, zoom: 3 }),
    row: "scaling-row",
    text: ({ left, right }) =>
      state.left === "plain"
        ? "Choose Temperature on the left: it divides all logits by one number."
        : state.scaling < 0.3
          ? "The left side’s temperature divides all logits by one number. Raise it, and watch the data and the border."
          : `At temperature ${plainNumber(10 ** state.scaling)} the left side is ${percent(left.data)} sure at the data, and still ${percent(left.border)} on the map’s border. bitbayes: ${percent(right.data)} and ${percent(right.border)}.`,
  },
  {
    title: "Widen the prior",
    begin: () => ({ ...bayesAt(), temperature: 0, prior: 0, residual: NO_RESIDUAL, split: 30, zoom: ZOOMED_OUT }),
    show: () => ({ prior: 4 }),
    row: "prior-row",
    text: ({ left, right }) =>
      "bitbayes averages over a Gaussian over the weights of the last layer. " +
      (state.prior < 1 && !hasResidual() ? "The wider its prior, the lower the limit on every ray. " : "") +
      `With prior variance ${plainNumber(10 ** state.prior)} its confidence on the ray tends to ${percent(right.limit)}, and the left side’s to ${percent(left.limit)}.`,
  },
  {
    title: "Add the residual",
    begin: () => ({ ...bayesAt(), temperature: 0, prior: 1, residual: NO_RESIDUAL, split: 30, zoom: 1 }),
    show: () => ({ residual: 0, kernel: "both", levels: LEVELS }),
    row: "residual-row",
    text: ({ right, blind }) =>
      hasResidual()
        ? `The residual is a variance that grows with the distance from the training data. On the ray the confidence now tends to ${percent(right.limit)}, and a blind guess is ${percent(blind)}. At the data it is ${percent(right.data)}.`
        : `Without the residual, bitbayes is still ${percent(right.limit)} sure at the end of the ray. Add it: a variance that grows with the distance from the training data.`,
  },
  {
    title: "Add your own points",
    begin: () => ({ ...bayesAt(), split: 30, zoom: 1, mode: "add" }),
    show: () => (addCloud(), {}),
    row: "mode-switch",
    text: ({ right }) =>
      state.added.length
        ? `The posterior and the distances were updated at once, without training. In the direction of the new points the network may be sure again. Drag them, or move them by the arrow keys. On the map’s border bitbayes is ${percent(right.border)} sure.`
        : "Touch the map to add points, best where bitbayes is unsure. The posterior is updated at once, without training.",
  },
];

function showStep() {
  const { title, row } = STEPS[state.step];
  find("step-count").textContent = `Step ${state.step + 1} of ${STEPS.length}`;
  find("step-title").textContent = title;
  find("back").disabled = state.step === 0;
  find("next").textContent = state.step === STEPS.length - 1 ? "Start again" : "Next";
  document.querySelectorAll(".hint").forEach((each) => each.classList.remove("hint"));
  find(row).classList.add("hint");
}

function goTo(step) {
  const { zoom, ...others } = STEPS[step].begin();
  Object.assign(state, { mode: "ray", ...others, step });
  moveTo({ zoom }, 500);
}
