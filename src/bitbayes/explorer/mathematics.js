// The mathematics of the page: a ReLU network, the Gaussian over its last layer, predictions, rays.
//
// All numbers are float64. A matrix is a flat Float64Array, row by row. n points in the plane are an array of
// 2n numbers. D is the number of features, K the number of classes.
//
// A network with one logit f is a network of two classes with the logits 0 and f. Then one formula is enough:
// with plain logits m, their temperature T and the variance of their differences,
//
//     p_i ∝ 1 / Σ_j exp(−z_ij),   z_ij = (m_i − m_j)/T / √(1 + π/8·Var(f_i − f_j)).
//
// Without a variance this is the softmax of m/T.

const KAPPA = Math.PI / 8;
// The deviation of a feature that is constant, relative to its value.
const CONSTANT = 1 / 64;
// Shares of the variance between classes below this are rounding, and so are those within classes.
const SMALLEST_SHARE = 1e-9;

// From the numbers in the page: typed arrays, weights as (inputs, outputs), and the logit 0 of a network with
// one logit.
function unpackToy(packed) {
  const transposed = (rows) => Float64Array.from(rows[0].flatMap((_, i) => rows.map((row) => row[i])));
  const hidden = packed.hidden.map(({ weight, bias }) => ({
    weight: transposed(weight),
    bias: Float64Array.from(bias),
  }));
  const oneLogit = packed.head.length === 1;
  const width = packed.head[0].length;
  const head = transposed(oneLogit ? [new Array(width).fill(0), ...packed.head] : packed.head);
  return { ...packed, points: Float64Array.from(packed.points.flat()), hidden, head, width, oneLogit };
}

// inputs (n, i) · weight (i, o) + bias → (n, o). Row by row of the weights: most features are 0 and are skipped.
function affine(inputs, weight, bias, outputs) {
  const width = (weight.length / outputs) | 0;
  const n = (inputs.length / width) | 0;
  const result = new Float64Array(n * outputs);
  for (let point = 0; point < n; point++) {
    const to = point * outputs;
    if (bias) result.set(bias, to);
    for (let i = 0; i < width; i++) {
      const value = inputs[point * width + i];
      if (value === 0) continue;
      const row = i * outputs;
      for (let unit = 0; unit < outputs; unit++) result[to + unit] += weight[row + unit] * value;
    }
  }
  return result;
}

// A matrix (n, d) as (d, n).
function transpose(matrix, d) {
  const n = matrix.length / d;
  return matrix.map((_, i) => matrix[(i % n) * d + Math.floor(i / n)]);
}

// Σ xxᵀ (d, d) over the rows x of a matrix (n, d).
const products = (rows, d) => affine(transpose(rows, d), rows, null, d);

// The inputs of all layers at some points: (n, 2), then those of the hidden layers, and last the features (n, D).
function layerInputs(toy, points) {
  const inputs = [points];
  for (const { weight, bias } of toy.hidden) {
    const next = affine(inputs.at(-1), weight, bias, bias.length);
    for (let i = 0; i < next.length; i++) if (next[i] < 0) next[i] = 0;
    inputs.push(next);
  }
  return inputs;
}

const logitsOf = (toy, phi) => affine(phi, toy.head, null, toy.classes);

// Eigenvalues, none below zero, and eigenvectors (columns) of a symmetric matrix (d, d), by Jacobi's rotations.
function eigen(matrix, d) {
  const a = Float64Array.from(matrix);
  const vectors = new Float64Array(d * d);
  for (let i = 0; i < d; i++) vectors[i * d + i] = 1;
  for (let sweep = 0; sweep < 60; sweep++) {
    let off = 0;
    let total = 0;
    for (let i = 0; i < d * d; i++) {
      total += a[i] * a[i];
      if (i % (d + 1)) off += a[i] * a[i];
    }
    if (off <= 1e-36 * total) break;
    for (let p = 0; p < d; p++) {
      for (let q = p + 1; q < d; q++) {
        const apq = a[p * d + q];
        if (apq === 0) continue;
        const theta = (a[q * d + q] - a[p * d + p]) / (2 * apq);
        const t = (theta < 0 ? -1 : 1) / (Math.abs(theta) + Math.hypot(theta, 1));
        const cosine = 1 / Math.hypot(t, 1);
        const sine = t * cosine;
        const rotate = (values, one, other) => {
          const kept = values[one];
          values[one] = cosine * kept - sine * values[other];
          values[other] = sine * kept + cosine * values[other];
        };
        for (let i = 0; i < d; i++) rotate(a, i * d + p, i * d + q);
        for (let i = 0; i < d; i++) rotate(a, p * d + i, q * d + i);
        for (let i = 0; i < d; i++) rotate(vectors, i * d + p, i * d + q);
      }
    }
  }
  return { values: Float64Array.from({ length: d }, (_, i) => Math.max(0, a[i * d + i])), vectors };
}

// What the points say about the last layer, with no prior in it, and distances from them at the residual's levels.
//
// The precisions of the weights are outputValues[b]·inputValues[a] + 1/σ₀² in the basis of both eigenvectors.
// One logit: the exact Hessian Σ p(1 − p)φφᵀ. K logits: Σ Λ ⊗ Σ φφᵀ / N, with Λ = diag(p) − ppᵀ.
// gaps[pair][b] is (Q_ib − Q_jb)², so that Var(f_i − f_j) = Σ_b gaps[pair][b]·w_b.
//
// The toy's points come first. Those that people have added have no label: they count for the class that the
// network chooses.
function fitPosterior(toy, points) {
  const { width: d, classes: k, oneLogit } = toy;
  const n = points.length / 2;
  const atLayers = layerInputs(toy, points);
  const phi = atLayers.at(-1);
  const logits = logitsOf(toy, phi);
  const inputs = new Float64Array(d * d);
  const outputs = new Float64Array(k * k);
  const labels = [...toy.labels];
  for (let point = 0; point < n; point++) {
    const p = softmax(logits.subarray(point * k, point * k + k));
    labels[point] ??= p.indexOf(Math.max(...p));
    const weight = oneLogit ? p[0] * p[1] : 1;
    for (let i = 0; i < d; i++)
      for (let j = 0; j < d; j++) inputs[i * d + j] += weight * phi[point * d + i] * phi[point * d + j];
    for (let i = 0; i < k; i++)
      for (let j = 0; j < k; j++) outputs[i * k + j] += (i === j ? p[i] : 0) - p[i] * p[j];
  }
  const own = eigen(inputs, d);
  const between = oneLogit
    ? { values: Float64Array.of(1), vectors: Float64Array.of(0, 1) }
    : eigen(outputs, k);
  const columns = between.values.length;
  const pairs = [];
  for (let i = 0; i < k; i++)
    for (let j = i + 1; j < k; j++) {
      const gaps = Float64Array.from(
        { length: columns },
        (_, b) => (between.vectors[i * columns + b] - between.vectors[j * columns + b]) ** 2
      );
      pairs.push({ i, j, gaps });
    }
  return {
    inputValues: own.values,
    vectors: own.vectors,
    outputValues: oneLogit ? between.values : between.values.map((value) => value / n),
    pairs,
    distances: toy.levels.map(({ name, layer }) => {
      const values = atLayers[layer];
      if (name === "classes") return classDistance(values, values.length / n, labels);
      return dataDistance(values, values.length / n, name === "input" ? CONSTANT : 1);
    }),
  };
}

function softmax(logits) {
  const largest = Math.max(...logits);
  const weights = Array.from(logits, (value) => Math.exp(value - largest));
  const total = weights.reduce((a, b) => a + b);
  return weights.map((value) => value / total);
}

// A distance of features h is a matrix (d, r) and centres with places (r,) and offsets: the root of the least
// |h·matrix − place|² − offset, or 0 where that is negative. `rows` are n features; its squares, (n,).
function squaredDistances({ matrix, centres }, rows, n) {
  const r = centres[0].place.length;
  const coordinates = affine(rows, matrix, null, r);
  return Float64Array.from({ length: n }, (_, point) => {
    let least = Infinity;
    for (const { place, offset } of centres) {
      let square = -offset;
      for (let j = 0; j < r; j++) square += (coordinates[point * r + j] - place[j]) ** 2;
      if (square < least) least = square;
    }
    return Math.max(0, least);
  });
}

// From the features (n, d) of the points at a level: the distance √((h − μ)ᵀ S⁻¹ (h − μ)/d). S are the second
// moments about the mean μ, in units of the deviations, shrunk.
function dataDistance(values, d, atZero) {
  const { columns, moments, share } = levelMoments(values, d, atZero);
  const root = inverseRoot(shrunk(moments, share, d), d);
  const matrix = root.map((value, i) => value / Math.sqrt(d) / columns[Math.floor(i / d)].deviation);
  const means = columns.map(({ mean }) => mean);
  return { matrix, centres: [{ place: affine(means, matrix, null, d), offset: 0 }] };
}

// From the features (n, d) of the points at the head, and their labels: the distance d² = max(0, min_c R_c)/r with
// R_c = (h − μ(c))ᵀ W⁻¹ (h − μ(c)) − (h − μ)ᵀ (W + B)⁻¹ (h − μ), the covariances B between classes and W within
// them, and the number r of directions in which the means μ(c) of classes differ.
//
// A plain difference would lose the digits of directions in which they do not differ. With the means m(c) of classes
// that have shares p(c) of the points, in coordinates t in which W + B = 1, and √p(c)·m(c) = Σ_j √β_j·u_j(c)·v_j,
// R_c = Σ_j (√β_j·t·v_j − u_j(c)/√p(c))²/(1 − β_j) − u_j(c)²/p(c).
function classDistance(values, d, labels) {
  const { columns, scaled, moments, share } = levelMoments(values, d, 1);
  const n = labels.length;
  const known = [...new Set(labels)];
  const c = known.length;
  const shares = known.map((label) => labels.filter((each) => each === label).length / n);
  const gaps = new Float64Array(c * d); // √p(c)·(μ(c) − μ), in units of the deviations
  labels.forEach((label, point) => {
    const own = known.indexOf(label);
    for (let i = 0; i < d; i++) gaps[own * d + i] += scaled[point * d + i] / (n * Math.sqrt(shares[own]));
  });
  const between = products(gaps, d);
  const within = shrunk(moments.map((value, i) => value - between[i]), share, d);
  const root = inverseRoot(within.map((value, i) => value + between[i]), d);
  const means = transpose(affine(gaps, root, null, d), d); // √p(c)·m(c), (d, c)
  const { values: ratios, vectors } = eigen(products(means, c), c); // β and u
  // The means of c classes span c − 1 directions.
  const order = known.map((_, j) => j).sort((a, b) => ratios[b] - ratios[a]);
  const kept = order.slice(0, c - 1).filter((j) => ratios[j] > SMALLEST_SHARE);
  const r = kept.length;
  const sizes = kept.map((j) => 1 / Math.sqrt(Math.max(1 - ratios[j], SMALLEST_SHARE) * r));
  const directions = known.flatMap((_, own) => kept.map((j, to) => vectors[own * c + j] * sizes[to])); // (c, r)
  const matrix = affine(affine(root, means, null, c), directions, null, r).map(
    (value, i) => value / columns[Math.floor(i / r)].deviation
  );
  const middle = affine(columns.map(({ mean }) => mean), matrix, null, r);
  const centres = known.map((_, own) => ({
    place: middle.map((value, to) => value + directions[own * r + to] / Math.sqrt(shares[own])),
    offset: kept.reduce((sum, j) => sum + vectors[own * c + j] ** 2 / shares[own] / r, 0),
  }));
  return { matrix, centres };
}

// V·Λ^−½ (d, d) of a matrix VΛVᵀ: in the coordinates of its columns, the matrix is the identity.
function inverseRoot(matrix, d) {
  const { values, vectors } = eigen(matrix, d);
  return vectors.map((value, i) => value / Math.sqrt(values[i % d]));
}

// The columns of features (n, d), the features about their means in units of the deviations, their second moments
// (d, d), and the share by which to shrink these (Chen et al., 2010). Where a deviation is larger than the standard
// deviation, the difference of their squares counts as variance of that column alone: the diagonal is 1.
function levelMoments(values, d, atZero) {
  const n = values.length / d;
  const columns = columnMoments(values, d, atZero);
  const scaled = Float64Array.from(values, (value, i) => {
    const { mean, deviation, varies } = columns[i % d];
    return varies ? (value - mean) / deviation : 0; // what does not vary has rounding errors
  });
  const moments = products(scaled, d).map((value, i) => (i % (d + 1) ? value / n : 1));
  const squared = moments.reduce((sum, value) => sum + value ** 2, 0);
  const spread = (n + 1 - 2 / d) * (squared - d);
  // The smallest share of the library, 1e-4, would take ten thousand points.
  const share = spread > 0 ? Math.min(1, ((1 - 2 / d) * squared + d ** 2) / spread) : 1;
  return { columns, scaled, moments, share };
}

// The mean of each column, whether it varies, and the number that gaps from the mean are divided by: the standard
// deviation, or that of a column of the same size in one of 30 points, or more where fewer than ten points determine
// it. A column that is constant has 1/64 of its value, and one that is 0 `atZero` times the median of those that vary.
function columnMoments(values, d, atZero) {
  const n = values.length / d;
  const columns = Array.from({ length: d }, (_, axis) => {
    let [mean, squares, fourths] = [0, 0, 0];
    for (let i = axis; i < values.length; i += d) mean += values[i] / n;
    for (let i = axis; i < values.length; i += d) {
      const square = (values[i] - mean) ** 2;
      squares += square;
      fourths += square * square;
    }
    // A constant column has squares by rounding errors only.
    return { mean, squares, fourths, varies: squares > n * (64 * Number.EPSILON * mean) ** 2 };
  });
  const varying = columns.filter(({ varies }) => varies);
  const floor = columns.reduce((sum, { squares }) => sum + squares, 0) / (d * n);
  for (const column of varying) {
    const { squares, fourths } = column;
    const own = Math.max(squares / n, fourths / squares / 30);
    column.deviation = Math.sqrt(squares ** 2 >= 10 * fourths ? own : Math.max(own, floor));
  }
  const deviations = varying.map(({ deviation }) => deviation).sort((a, b) => a - b);
  const typical = deviations[(deviations.length - 1) >> 1] ?? 1;
  for (const column of columns) column.deviation ??= CONSTANT * Math.abs(column.mean) || atZero * typical;
  return columns;
}

// Second moments (d, d) shrunk towards their mean size. Classes may have none within them.
function shrunk(moments, share, d) {
  let mean = 0;
  for (let i = 0; i < d; i++) mean += moments[i * d + i] / d;
  mean = Math.max(mean, 1e-6);
  return moments.map((value, i) => (1 - share) * value + (i % (d + 1) ? 0 : share * mean));
}

// The variance that the tuned residual adds to every logit, (n,), from the inputs of all layers at n points:
// nearVariance·Σ weight·d³ + beyondVariance·Σ max(0, (d/threshold)³ − 1), with the distance d at each level.
function residualVariances({ levels, tuned }, { distances }, inputs) {
  const result = new Float64Array(inputs[0].length / 2);
  levels.forEach(({ layer, weight, threshold }, level) => {
    squaredDistances(distances[level], inputs[layer], result.length).forEach((square, point) => {
      const cube = square * Math.sqrt(square);
      const beyond = Math.max(0, cube / threshold ** 3 - 1);
      result[point] += tuned.nearVariance * weight * cube + tuned.beyondVariance * beyond;
    });
  });
  return result;
}

// All that predictions at some points need and that no setting changes: computed once for a view.
function prepare(toy, posterior, points) {
  const inputs = layerInputs(toy, points);
  const phi = inputs.at(-1);
  return {
    logits: logitsOf(toy, phi),
    squares: squaredComponents(posterior, phi),
    residuals: residualVariances(toy, posterior, inputs),
  };
}

function squaredComponents(posterior, phi) {
  const d = posterior.inputValues.length;
  const components = affine(phi, posterior.vectors, null, d);
  for (let i = 0; i < components.length; i++) components[i] *= components[i];
  return components;
}

// The settings that a method uses: a plain network is a Gaussian without a variance, at temperature 1. `residual`
// is a multiple of the tuned residual.
function effective({ method, priorVariance, temperature, residual }) {
  const bayes = method === "bitbayes";
  return {
    temperature: method === "plain" ? 1 : temperature,
    priorVariance: bayes ? priorVariance : 0,
    residual: bayes ? residual : 0,
  };
}

// 1 / (outputValues[b]·inputValues[a] + 1/σ₀²), (outputs, D); all 0 for σ₀² = 0.
function variancesOfWeights(posterior, priorVariance) {
  const { inputValues, outputValues } = posterior;
  const d = inputValues.length;
  return Float64Array.from({ length: outputValues.length * d }, (_, i) =>
    priorVariance > 0 ? 1 / (outputValues[Math.floor(i / d)] * inputValues[i % d] + 1 / priorVariance) : 0
  );
}

// Probabilities of all classes, (n, K), at prepared points.
function predict(toy, posterior, settings, { logits, squares, residuals }) {
  const { temperature, priorVariance, residual } = effective(settings);
  const { classes: k, width: d, oneLogit } = toy;
  const { pairs } = posterior;
  const variances = variancesOfWeights(posterior, priorVariance);
  const columns = posterior.outputValues.length;
  const n = residuals.length;
  const result = new Float64Array(n * k);
  const w = new Float64Array(columns);
  // The residual is independent for each logit: a difference of two has it twice.
  const logitsWithResidual = oneLogit ? 1 : 2;
  for (let point = 0; point < n; point++) {
    if (priorVariance > 0)
      for (let b = 0, v = 0; b < columns; b++) {
        let sum = 0;
        for (let a = 0, s = point * d; a < d; a++, s++, v++) sum += squares[s] * variances[v];
        w[b] = sum;
      }
    const at = point * k;
    for (let i = 0; i < k; i++) result[at + i] = 1;
    for (const { i, j, gaps } of pairs) {
      let variance = residual * residuals[point] * logitsWithResidual;
      for (let b = 0; b < columns; b++) variance += gaps[b] * w[b];
      const z = (logits[at + i] - logits[at + j]) / temperature / Math.sqrt(1 + KAPPA * variance);
      result[at + i] += Math.exp(-z);
      result[at + j] += Math.exp(z);
    }
    normalise(result, at, k);
  }
  return result;
}

// From Σ_j exp(−z_ij) to probabilities, in place.
function normalise(totals, at, k) {
  let sum = 0;
  for (let i = at; i < at + k; i++) sum += totals[i] = 1 / totals[i];
  for (let i = at; i < at + k; i++) totals[i] /= sum;
}

// The last linear region on the ray δ·x: beyond alpha no unit switches, and features are slope·δ + intercept.
function finalRegion(toy, x) {
  let slope = Float64Array.from(x);
  let intercept = new Float64Array(2);
  let alpha = 0;
  for (const { weight, bias } of toy.hidden) {
    slope = affine(slope, weight, null, bias.length);
    intercept = affine(intercept, weight, bias, bias.length);
    for (let i = 0; i < bias.length; i++) {
      if (slope[i] !== 0) alpha = Math.max(alpha, -intercept[i] / slope[i]);
      if (slope[i] < 0 || (slope[i] === 0 && intercept[i] <= 0)) slope[i] = intercept[i] = 0;
    }
  }
  return { alpha, slope, intercept };
}

// What the probabilities at δ·x tend to as δ → ∞, (K,): computed, not taken at some large δ.
function limit(toy, posterior, settings, { slope, intercept }) {
  const { temperature, priorVariance, residual } = effective(settings);
  const { classes: k, width: d } = toy;
  if (residual > 0) return new Float64Array(k).fill(1 / k);
  const grows = slope.some((value) => value !== 0);
  const direction = grows ? slope : intercept;
  const logits = logitsOf(toy, direction);
  const squares = squaredComponents(posterior, direction);
  const variances = variancesOfWeights(posterior, priorVariance);
  const result = new Float64Array(k).fill(1);
  for (const { i, j, gaps } of posterior.pairs) {
    let variance = 0;
    for (let v = 0; v < variances.length; v++) variance += gaps[Math.floor(v / d)] * variances[v] * squares[v % d];
    const gap = (logits[i] - logits[j]) / temperature;
    const z = gap === 0 ? 0 : gap / Math.sqrt((grows ? 0 : 1) + KAPPA * variance);
    result[i] += Math.exp(-z);
    result[j] += Math.exp(z);
  }
  normalise(result, 0, k);
  return result;
}

// The largest of each K numbers, (n,).
function largest(values, k) {
  const result = new Float64Array(values.length / k);
  for (let i = 0; i < values.length; i++) {
    const row = Math.floor(i / k);
    if (values[i] > result[row]) result[row] = values[i];
  }
  return result;
}
