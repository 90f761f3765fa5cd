// What page_checks.py asks a page. Every answer names elements as `where` does.

const where = (element) => {
  const text = (element.textContent || "").trim().replace(/\s+/g, " ").slice(0, 40);
  const names = [element.tagName.toLowerCase(), element.id && `#${element.id}`];
  if (typeof element.className === "string" && element.className) names.push(`.${element.className.split(" ")[0]}`);
  return names.filter(Boolean).join("") + (text && ` "${text}"`);
};

const isSeen = (element) =>
  element.checkVisibility({ opacityProperty: true, visibilityProperty: true }) &&
  !element.closest("[aria-hidden=true]");

function picturesWithoutText() {
  const named = (element) =>
    (element.getAttribute("aria-label") || "").trim() ||
    (element.getAttribute("aria-labelledby") || "")
      .split(/\s+/)
      .some((id) => (document.getElementById(id)?.textContent || "").trim()) ||
    [...element.children].some((child) => child.tagName === "title" && child.textContent.trim());
  const decorative = (element) =>
    element.closest("[aria-hidden=true], [role=presentation], [role=none]") || element.closest("[hidden]");
  const images = [...document.querySelectorAll("img, input[type=image]")].filter(
    (element) => !element.hasAttribute("alt")
  );
  const drawings = [...document.querySelectorAll("svg, canvas")].filter(
    (element) => !element.closest("[role=img]")?.ariaLabel && !named(element)
  );
  return [...images, ...drawings].filter((element) => !decorative(element)).map(where);
}

function beyondTheRightEdge() {
  const edge = document.documentElement.clientWidth;
  const scrolls = (element) => {
    for (let up = element.parentElement; up && up !== document.body; up = up.parentElement)
      if (getComputedStyle(up).overflowX !== "visible" && up.getBoundingClientRect().right <= edge + 1) return true;
    return false;
  };
  const found = [...document.body.querySelectorAll("*")].filter((element) => {
    const box = element.getBoundingClientRect();
    // What is one pixel wide is there for those who listen.
    return box.right > edge + 1 && box.width > 1 && box.height > 1 && element.checkVisibility() && !scrolls(element);
  });
  const wide = document.documentElement.scrollWidth > edge + 1 ? [`the page is ${document.documentElement.scrollWidth} wide`] : [];
  return [...wide, ...found.map(where)];
}

// Any colour that CSS can write, as red, green, blue from 0 to 255 and alpha from 0 to 1.
const brush = Object.assign(document.createElement("canvas"), { width: 1, height: 1 }).getContext("2d", {
  willReadFrequently: true,
});
function parseColour(text) {
  brush.clearRect(0, 0, 1, 1);
  brush.fillStyle = text;
  brush.fillRect(0, 0, 1, 1);
  const [red, green, blue, alpha] = brush.getImageData(0, 0, 1, 1).data;
  return [red, green, blue, alpha / 255];
}

const over = (top, bottom) =>
  [0, 1, 2].map((i) => top[i] * top[3] + bottom[i] * (1 - top[3])).concat(1);

function luminance(colour) {
  const [red, green, blue] = colour.map((value) => {
    const part = value / 255;
    return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}

function contrast(one, other) {
  const [low, high] = [luminance(one), luminance(other)].sort((a, b) => a - b);
  return (high + 0.05) / (low + 0.05);
}

// What the browser paints where a page paints nothing: white or, for a page that can be dark, near black.
function canvasColour() {
  const probe = document.body.appendChild(document.createElement("div"));
  probe.style.cssText = "position: absolute; background: Canvas; color-scheme: inherit";
  const colour = parseColour(getComputedStyle(probe).backgroundColor);
  probe.remove();
  return colour;
}

function background(element) {
  const layers = [];
  for (let up = element; up; up = up.parentElement) layers.push(parseColour(getComputedStyle(up).backgroundColor));
  return layers.reverse().reduce((below, layer) => over(layer, below), canvasColour());
}

const backgroundLuminance = () => luminance(background(document.body));

function textsBelowContrast(lowest) {
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const below = [];
  let seen = 0;
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.textContent.trim() || ["SCRIPT", "STYLE", "NOSCRIPT", "TITLE", "DESC"].includes(element.tagName.toUpperCase()))
      continue;
    const box = element.getBoundingClientRect();
    const off = element.closest(":disabled, [aria-disabled=true]"); // what cannot be used may be faint
    if (!isSeen(element) || off || box.width <= 1 || box.height <= 1) continue;
    seen += 1;
    const style = getComputedStyle(element);
    const colour = parseColour(element.closest("svg") ? style.fill : style.color);
    for (let up = element; up; up = up.parentElement) colour[3] *= Number(getComputedStyle(up).opacity);
    const behind = background(element);
    const ratio = contrast(over(colour, behind), behind);
    if (ratio < lowest - 0.005) below.push(`${where(element)}: ${ratio.toFixed(2)}`);
  }
  return { seen, below };
}
