// Matrices as flat arrays, row by row, in float64.

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

function softmax(logits) {
  const largest = Math.max(...logits);
  const weights = Array.from(logits, (value) => Math.exp(value - largest));
  const total = weights.reduce((a, b) => a + b);
  return weights.map((value) => value / total);
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
