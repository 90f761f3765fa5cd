// A small network of images, by numbers that the library has computed. An image is 28 × 28 pixels from 0 to 1.

const SIDE = 28;

// Numbers from the bytes of a base64 text, as float64.
function decode(text, Kind = Float32Array) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  return Float64Array.from(new Kind(bytes.buffer));
}

// Weights of a convolution stay (outputs, inputs, side, side), those of a linear layer become (inputs, outputs).
function unpackDigits(packed) {
  const layers = packed.network.map(({ shape, scale, weight, bias }) => {
    const values = decode(weight, Int8Array).map((value) => value * scale);
    return { shape, weight: shape.length === 4 ? values : transpose(values, shape[1]), bias };
  });
  const { posterior } = packed;
  const classes = layers.at(-1).shape[0];
  return {
    ...packed,
    layers,
    classes,
    width: layers.at(-1).shape[1],
    images: packed.images.map(({ name, pixels }) => ({ name, pixels: decode(pixels, Uint8Array).map((v) => v / 255) })),
    posterior: {
      inputValues: decode(posterior.inputValues),
      vectors: decode(posterior.vectors),
      outputValues: decode(posterior.outputValues),
      pairs: pairsOf(decode(posterior.outputVectors), classes),
    },
    levels: packed.levels.map((level) => {
      const [mean, matrix] = [decode(level.mean), decode(level.matrix)];
      const r = matrix.length / mean.length;
      const places = level.centres ? decode(level.centres) : new Float64Array(r);
      const offsets = level.offsets ? decode(level.offsets) : [0];
      const centres = Array.from(offsets, (offset, i) => ({ place: places.subarray(i * r, i * r + r), offset }));
      return { ...level, mean, matrix, centres };
    }),
  };
}

// All that predictions of some images (n, 784) need and that no setting changes.
function prepareDigits(net, images) {
  const n = images.length / SIDE ** 2;
  const { maps, phi } = digitFeatures(net, images);
  const rows = [images, maps, phi, phi]; // in the order of the levels
  return {
    logits: affine(phi, net.layers.at(-1).weight, null, net.classes),
    squares: squaredComponents(net.posterior, phi),
    cubes: net.levels.map((level, place) => {
      const { mean, matrix } = level;
      const gaps = rows[place].map((value, i) => value - mean[i % mean.length]);
      if (matrix.length > mean.length) return cubes(level, gaps, n);
      const result = new Float64Array(n); // without correlations: Σ |gap·matrix|³
      gaps.forEach((gap, i) => (result[Math.floor(i / mean.length)] += Math.abs(gap * matrix[i % mean.length]) ** 3));
      return result;
    }),
  };
}

// Two convolutions with ReLU and max pooling, and a linear layer with ReLU: the features `phi` (n, D), and the means
// of the second convolution's maps.
function digitFeatures(net, images) {
  const [first, second, linear] = net.layers;
  const n = images.length / SIDE ** 2;
  const [channels, width] = [second.shape[0], linear.bias.length];
  const maps = new Float64Array(n * channels);
  const phi = new Float64Array(n * width);
  for (let image = 0; image < n; image++) {
    const pixels = images.subarray(image * SIDE ** 2, (image + 1) * SIDE ** 2);
    const pooled = convolve(second, convolve(first, pixels, SIDE), SIDE / 2);
    const size = pooled.length / channels;
    pooled.forEach((value, i) => (maps[image * channels + Math.floor(i / size)] += value / size));
    const row = affine(pooled, linear.weight, linear.bias, width);
    row.forEach((value, i) => (phi[image * width + i] = Math.max(value, 0)));
  }
  return { maps, phi };
}

// A convolution with a border of zeros, ReLU, and the largest of each 2 × 2 values: (channels, side/2, side/2).
function convolve({ shape: [outputs, inputs, size], weight, bias }, image, side) {
  const border = (size - 1) / 2;
  const half = side / 2;
  const result = new Float64Array(outputs * half * half);
  const map = new Float64Array(side * side);
  for (let to = 0; to < outputs; to++) {
    map.fill(bias[to]);
    for (let from = 0; from < inputs; from++)
      for (let dy = -border; dy <= border; dy++)
        for (let dx = -border; dx <= border; dx++) {
          const factor = weight[((to * inputs + from) * size + dy + border) * size + dx + border];
          const [left, right] = [Math.max(0, -dx), Math.min(side, side - dx)];
          for (let y = Math.max(0, -dy); y < Math.min(side, side - dy); y++) {
            const row = from * side * side + (y + dy) * side + dx;
            for (let x = left; x < right; x++) map[y * side + x] += factor * image[row + x];
          }
        }
    for (let y = 0; y < half; y++)
      for (let x = 0; x < half; x++) {
        const at = 2 * y * side + 2 * x;
        const most = Math.max(map[at], map[at + 1], map[at + side], map[at + side + 1]);
        result[(to * half + y) * half + x] = Math.max(most, 0); // ReLU and the largest may change places
      }
  }
  return result;
}

// An image, rotated anticlockwise by degrees, blurred by a Gaussian of so many pixels, and times a brightness. Beyond
// its sides everything is black.
function changeImage(pixels, { rotation, blur, brightness }) {
  return blurImage(rotateImage(pixels, rotation), blur).map((value) => value * brightness);
}

function rotateImage(pixels, degrees) {
  if (degrees % 360 === 0) return pixels;
  const radians = (degrees * Math.PI) / 180;
  const [cosine, sine] = [Math.cos(radians), Math.sin(radians)];
  const middle = (SIDE - 1) / 2;
  const at = (x, y) => (x >= 0 && x < SIDE && y >= 0 && y < SIDE ? pixels[y * SIDE + x] : 0);
  return pixels.map((_, i) => {
    const [right, down] = [(i % SIDE) - middle, Math.floor(i / SIDE) - middle];
    const x = middle + cosine * right - sine * down;
    const y = middle + sine * right + cosine * down;
    const [left, top] = [Math.floor(x), Math.floor(y)];
    const [u, v] = [x - left, y - top];
    return (1 - v) * ((1 - u) * at(left, top) + u * at(left + 1, top)) + v * ((1 - u) * at(left, top + 1) + u * at(left + 1, top + 1));
  });
}

function blurImage(pixels, deviation) {
  if (!deviation) return pixels;
  const reach = Math.ceil(4 * deviation);
  const bell = Array.from({ length: 2 * reach + 1 }, (_, i) => Math.exp(-((i - reach) ** 2) / (2 * deviation ** 2)));
  const total = bell.reduce((a, b) => a + b);
  const along = (image, step, place) =>
    image.map((_, i) => {
      let sum = 0;
      for (let gap = -reach; gap <= reach; gap++) {
        const other = place(i) + gap;
        if (other >= 0 && other < SIDE) sum += (bell[gap + reach] / total) * image[i + gap * step];
      }
      return sum;
    });
  return along(along(pixels, 1, (i) => i % SIDE), SIDE, (i) => Math.floor(i / SIDE));
}
