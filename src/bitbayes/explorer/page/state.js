// What the page shows, as one flat object of settings. The address holds all of it, so that a link restores it.

const TOYS = NUMBERS.toys.map(unpackToy);
const DIGITS = unpackDigits(NUMBERS.digits);
const LEVELS = TOYS[0].levels.map(({ name }) => name);
const METHODS = { plain: "Plain", temperature: "Temperature", bitbayes: "bitbayes" };
const NO_RESIDUAL = -3; // the left end of its slider; 0, its middle, is as tuned
const MOST_POINTS = 100; // that can be added

const tunedPowers = ({ tuned }) => ({
  scaling: Math.log10(tuned.scaling),
  temperature: Math.log10(tuned.temperature),
  prior: Math.log10(tuned.priorVariance),
  residual: 0,
});

// A slider's ends, made wider where a tuned value lies outside.
function around(key, low, high) {
  const tuned = TOYS.map((toy) => tunedPowers(toy)[key]);
  return [Math.min(low, Math.floor(Math.min(...tuned))), Math.max(high, Math.ceil(Math.max(...tuned)))];
}

// The lowest and the highest value, and the step of the slider. The first six and `bright` are powers of ten.
const RANGES = {
  zoom: [0, 3, 0.01],
  scaling: [...around("scaling", -1, 2), 0.01],
  temperature: [...around("temperature", -1, 2), 0.01],
  prior: [...around("prior", -2, 10), 0.05],
  residual: [NO_RESIDUAL, 3, 0.05],
  bright: [-1, 3, 0.02],
  split: [0, 100, 2],
  angle: [0, 359, 1],
  step: [0, 4, 1],
  image: [0, DIGITS.images.length - 1, 1],
  rotation: [-180, 180, 1],
  blur: [0, 4, 0.05],
};
const CHOICES = {
  scene: ["plane", "digits"],
  toy: TOYS.map(({ name }) => name),
  left: ["plain", "temperature"],
  kernel: ["both", "near", "beyond"],
  mode: ["ray", "add"],
  along: ["rotation", "blur", "bright"],
};
const START = {
  scene: "plane",
  toy: TOYS[0].name,
  step: 0,
  left: "plain",
  split: 50, // how much of the map is the left side's, in percent
  zoom: 0,
  scaling: 0, // of the left side: that of temperature scaling
  temperature: 0, // of bitbayes, like the next four
  prior: 0,
  residual: 0,
  kernel: "both",
  levels: LEVELS,
  angle: 35,
  mode: "ray",
  added: [], // numbers x, y, x, y, …
  image: 3,
  rotation: 0,
  blur: 0,
  bright: 0,
  along: "rotation", // the slider of the digits' chart
};
const state = { ...START };
const theToy = () => TOYS.find(({ name }) => name === state.toy);

const asAddress = () => `#${Object.keys(START).map((key) => `${key}=${state[key]}`).join("&")}`;

// The state in an address. What is missing there, or makes no sense, is as at the start.
function fromAddress(text) {
  const given = new URLSearchParams(text.slice(1));
  const found = { ...START };
  for (const key of Object.keys(START)) {
    const value = given.get(key);
    if (value === null) continue;
    if (CHOICES[key]?.includes(value)) found[key] = value;
    if (RANGES[key] && value.trim() && Number.isFinite(Number(value))) {
      const [low, high, step] = RANGES[key];
      const number = Math.min(Math.max(Number(value), low), high);
      found[key] = step === 1 ? Math.round(number) : number;
    }
  }
  if (given.has("levels")) found.levels = LEVELS.filter((name) => given.get("levels").split(",").includes(name));
  const numbers = (given.get("added") || "").split(",").map(Number);
  if (given.get("added") && numbers.length % 2 === 0 && numbers.every(Number.isFinite))
    found.added = numbers.slice(0, 2 * MOST_POINTS);
  return found;
}
