// Along a ray δ·x a ReLU network is affine from some δ on, and its prediction has a limit.

// The last linear region: beyond alpha no unit switches. `inputs` are those of all layers, slope·δ + intercept.
function finalRegion(toy, x) {
  let slope = Float64Array.from(x);
  let intercept = new Float64Array(2);
  let alpha = 0;
  const inputs = [{ slope, intercept }];
  for (const { weight, bias } of toy.hidden) {
    slope = affine(slope, weight, null, bias.length);
    intercept = affine(intercept, weight, bias, bias.length);
    for (let i = 0; i < bias.length; i++) {
      if (slope[i] !== 0) alpha = Math.max(alpha, -intercept[i] / slope[i]);
      if (slope[i] < 0 || (slope[i] === 0 && intercept[i] <= 0)) slope[i] = intercept[i] = 0;
    }
    inputs.push({ slope, intercept });
  }
  return { alpha, inputs };
}

// What the probabilities at δ·x tend to as δ → ∞, (K,): computed, not taken at some large δ.
function limit(toy, posterior, settings, { inputs }) {
  const { classes: k, width: d } = toy;
  const { slope, intercept } = inputs.at(-1);
  const residual = residualLimit(toy, posterior, settings, inputs);
  if (residual === Infinity) return new Float64Array(k).fill(1 / k);
  const grows = slope.some((value) => value !== 0);
  const direction = grows ? slope : intercept;
  const logits = logitsOf(toy, direction);
  const squares = squaredComponents(posterior, direction);
  const variances = variancesOfWeights(posterior, settings.priorVariance);
  const result = new Float64Array(k).fill(1);
  for (const { i, j, gaps } of posterior.pairs) {
    let variance = grows ? 0 : residual * logitsWithResidual(toy);
    for (let v = 0; v < variances.length; v++) variance += gaps[Math.floor(v / d)] * variances[v] * squares[v % d];
    const gap = (logits[i] - logits[j]) / settings.temperature;
    addPair(result, 0, i, j, gap === 0 ? 0 : gap / Math.sqrt((grows ? 0 : 1) + KAPPA * variance));
  }
  normalise(result, 0, k);
  return result;
}

// What the residual's variance tends to: infinity if the features of a level that counts move along the ray.
function residualLimit(toy, posterior, settings, inputs) {
  const moves = residualFactors(toy, settings).some(({ near, beyond }, level) => {
    const { matrix, centres } = posterior.distances[level];
    const { slope } = inputs[toy.levels[level].layer];
    return (near || beyond) && affine(slope, matrix, null, centres[0].place.length).some((value) => value !== 0);
  });
  if (moves) return Infinity;
  const rest = toy.levels.map(({ layer }, level) => cubes(posterior.distances[level], inputs[layer].intercept, 1));
  return residualVariances(toy, settings, rest)[0];
}
