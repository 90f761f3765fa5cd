// A ReLU network of points in the plane, and the Gaussian over its last layer.
//
// n points in the plane are an array of 2n numbers. D is the number of features, K the number of classes. A network
// with one logit f is a network of two classes with the logits 0 and f.

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

// The pairs i < j of K classes: gaps[b] is (Q_ib − Q_jb)², with the vectors Q (K, outputs) of their Gaussian, so that
// Var(f_i − f_j) = Σ_b gaps[b]·w_b.
function pairsOf(vectors, k) {
  const outputs = vectors.length / k;
  const pairs = [];
  for (let i = 0; i < k; i++)
    for (let j = i + 1; j < k; j++) {
      const gap = (_, b) => (vectors[i * outputs + b] - vectors[j * outputs + b]) ** 2;
      pairs.push({ i, j, gaps: Float64Array.from({ length: outputs }, gap) });
    }
  return pairs;
}

// What the points say about the last layer, with no prior in it, and distances from them at the residual's levels.
//
// The precisions of the weights are outputValues[b]·inputValues[a] + 1/σ₀² in the basis of both eigenvectors.
// One logit: the exact Hessian Σ p(1 − p)φφᵀ. K logits: Σ Λ ⊗ Σ φφᵀ / N, with Λ = diag(p) − ppᵀ.
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
  return {
    inputValues: own.values,
    vectors: own.vectors,
    outputValues: oneLogit ? between.values : between.values.map((value) => value / n),
    pairs: pairsOf(between.vectors, k),
    distances: toy.levels.map(({ name, layer }) => {
      const values = atLayers[layer];
      if (name === "classes") return classDistance(values, values.length / n, labels);
      return dataDistance(values, values.length / n, name === "input" ? CONSTANT : 1);
    }),
  };
}

// All that predictions at some points need and that no setting changes: computed once for a view. `cubes` are those
// of the distances at each level.
function prepare(toy, posterior, points) {
  const inputs = layerInputs(toy, points);
  const phi = inputs.at(-1);
  return {
    logits: logitsOf(toy, phi),
    squares: squaredComponents(posterior, phi),
    cubes: toy.levels.map(({ layer }, level) => cubes(posterior.distances[level], inputs[layer], points.length / 2)),
  };
}
