// Distances from the training data, and from the nearest class, as the library measures them.

// The deviation of a feature that is constant, relative to its value.
const CONSTANT = 1 / 64;
// Shares of the variance between classes below this are rounding, and so are those within classes.
const SMALLEST_SHARE = 1e-9;

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

// The cubes (n,) of distances.
const cubes = (distance, rows, n) => squaredDistances(distance, rows, n).map((square) => square * Math.sqrt(square));

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
