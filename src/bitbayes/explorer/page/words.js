// Numbers as text.

// At most so many digits behind the point, and none that are zero.
const trim = (value, digits) => value.toLocaleString("en", { maximumFractionDigits: digits });

const percent = (share) => `${(100 * share).toFixed(1)}%`;

// Three digits; from 100,000 on and below 0.001 as a power of ten.
function plainNumber(value) {
  if (value === 0 || (value >= 1e-3 && value < 1e5)) return value.toLocaleString("en", { maximumSignificantDigits: 3 });
  const [digits, power] = value.toExponential(1).split("e");
  const raised = [...power.replace("+", "")].map((digit) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[digit] ?? "⁻").join("");
  return digits === "1.0" ? `10${raised}` : `${digits}·10${raised}`;
}
