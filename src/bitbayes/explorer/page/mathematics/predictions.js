// Probabilities, from plain logits m, their temperature T, and the variance of their differences:
//
//     p_i ∝ 1 / Σ_j exp(−z_ij),   z_ij = (m_i − m_j)/T / √(1 + π/8·Var(f_i − f_j)).
//
// Without a variance this is the softmax of m/T. A method is its settings: `temperature`, `priorVariance`, `residual`
// (a multiple of the tuned one), and the `levels` and the part of the `kernel` that count; without these all do.

const KAPPA = Math.PI / 8;
const PLAIN = { temperature: 1, priorVariance: 0, residual: 0 };

// Squares of the components of features (n, D) along the eigenvectors.
function squaredComponents(posterior, phi) {
  const d = posterior.inputValues.length;
  return affine(phi, posterior.vectors, null, d).map((component) => component * component);
}

// 1 / (outputValues[b]·inputValues[a] + 1/σ₀²), (outputs, D); all 0 for σ₀² = 0.
function variancesOfWeights({ inputValues, outputValues }, priorVariance) {
  const d = inputValues.length;
  return Float64Array.from({ length: outputValues.length * d }, (_, i) =>
    priorVariance > 0 ? 1 / (outputValues[Math.floor(i / d)] * inputValues[i % d] + 1 / priorVariance) : 0
  );
}

// What each level adds to the residual, near·d³ + beyond·max(0, (d/threshold)³ − 1): its two factors.
function residualFactors({ levels, tuned }, settings) {
  return levels.map(({ name, weight }) => {
    const used = settings.residual > 0 && (settings.levels?.includes(name) ?? true) ? settings.residual : 0;
    return {
      near: settings.kernel === "beyond" ? 0 : used * tuned.nearVariance * weight,
      beyond: settings.kernel === "near" ? 0 : used * tuned.beyondVariance,
    };
  });
}

// The variance that the residual adds to every logit, (n,), from the cubes of the distances, (n,) for each level.
function residualVariances(net, settings, cubes) {
  const result = new Float64Array(cubes[0].length);
  residualFactors(net, settings).forEach(({ near, beyond }, level) => {
    const edge = net.levels[level].threshold ** 3;
    if (near || beyond)
      cubes[level].forEach((cube, point) => (result[point] += near * cube + beyond * Math.max(0, cube / edge - 1)));
  });
  return result;
}

// The residual is independent for each logit: a difference of two has it twice.
const logitsWithResidual = ({ oneLogit }) => (oneLogit ? 1 : 2);

// Probabilities of all classes, (n, K), at prepared points.
function predict(net, posterior, settings, { logits, squares, cubes }) {
  const { temperature, priorVariance } = settings;
  const { classes: k, width: d } = net;
  const variances = variancesOfWeights(posterior, priorVariance);
  const residuals = residualVariances(net, settings, cubes);
  const columns = posterior.outputValues.length;
  const n = residuals.length;
  const result = new Float64Array(n * k).fill(1);
  const w = new Float64Array(columns);
  for (let point = 0; point < n; point++) {
    if (priorVariance > 0)
      for (let b = 0, v = 0; b < columns; b++) {
        let sum = 0;
        for (let a = 0, s = point * d; a < d; a++, s++, v++) sum += squares[s] * variances[v];
        w[b] = sum;
      }
    const at = point * k;
    for (const { i, j, gaps } of posterior.pairs) {
      let variance = residuals[point] * logitsWithResidual(net);
      for (let b = 0; b < columns; b++) variance += gaps[b] * w[b];
      addPair(result, at, i, j, (logits[at + i] - logits[at + j]) / temperature / Math.sqrt(1 + KAPPA * variance));
    }
    normalise(result, at, k);
  }
  return result;
}

function addPair(totals, at, i, j, z) {
  totals[at + i] += Math.exp(-z);
  totals[at + j] += Math.exp(z);
}

// From Σ_j exp(−z_ij) to probabilities, in place.
function normalise(totals, at, k) {
  let sum = 0;
  for (let i = at; i < at + k; i++) sum += totals[i] = 1 / totals[i];
  for (let i = at; i < at + k; i++) totals[i] /= sum;
}
