// A drawing as a list of shapes, which go onto a canvas, into the page as SVG, or into a file.
//
// A shape is {rect: [x, y, width, height]}, {curve: [x1, y1, x2, y2]}, {circle: [x, y, radius]} or
// {text, x, y}, with fill, stroke, width, opacity, dash; size, weight, italic, anchor and turn, in
// degrees, for text; and key, by which the page finds it again.

// Not as one text: a page has no address in it, and a bundler would join what is added up.
const SVG = ["http", "//www.w3.org/2000/svg"].join(":");
// No line on a page has more characters than this.
const MOST_SHOWN = 200;
export const FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif';

function fontOf(shape) {
  return `${shape.italic ? "italic " : ""}${shape.weight ?? 400} ${shape.size ?? 12}px ${FONT}`;
}

/** Draw shapes on a canvas. */
export function paint(context, shapes) {
  for (const shape of shapes) {
    context.globalAlpha = shape.opacity ?? 1;
    context.setLineDash(shape.dash ?? []);
    context.lineWidth = shape.width ?? 1;
    context.lineCap = shape.dash ? "butt" : "round";
    if (shape.text !== undefined) {
      context.font = fontOf(shape);
      context.textAlign = { start: "left", middle: "center", end: "right" }[
        shape.anchor ?? "start"
      ];
      context.textBaseline = "alphabetic";
      context.fillStyle = shape.fill;
      if (shape.turn) {
        context.save();
        context.translate(shape.x, shape.y);
        context.rotate((shape.turn * Math.PI) / 180);
        context.fillText(shape.text, 0, 0);
        context.restore();
      } else context.fillText(shape.text, shape.x, shape.y);
      continue;
    }
    if (shape.rect && shape.fill && !shape.stroke) {
      // Heat maps have thousands of these.
      context.fillStyle = shape.fill;
      context.fillRect(...shape.rect);
      continue;
    }
    context.beginPath();
    if (shape.rect) context.rect(...shape.rect);
    else if (shape.circle) context.arc(...shape.circle, 0, 2 * Math.PI);
    else {
      const [x1, y1, x2, y2] = shape.curve;
      const middle = (x1 + x2) / 2;
      context.moveTo(x1, y1);
      context.bezierCurveTo(middle, y1, middle, y2, x2, y2);
    }
    if (shape.fill) {
      context.fillStyle = shape.fill;
      context.fill();
    }
    if (shape.stroke) {
      context.strokeStyle = shape.stroke;
      context.stroke();
    }
  }
  context.globalAlpha = 1;
  context.setLineDash([]);
}

function put(element, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== null) element.setAttribute(name, String(value));
  }
  return element;
}

const round = (value) => Math.round(value * 100) / 100;

/** Return a shape as an element of SVG. */
export function toElement(document, shape) {
  const style = {
    fill: shape.fill ?? "none",
    stroke: shape.stroke,
    "stroke-width": shape.stroke ? round(shape.width ?? 1) : undefined,
    "stroke-dasharray": shape.dash?.join(" "),
    opacity: shape.opacity === undefined ? undefined : round(shape.opacity),
    "data-key": shape.key,
  };
  const make = (name) => document.createElementNS(SVG, name);
  if (shape.text !== undefined) {
    const element = put(make("text"), {
      x: round(shape.x),
      y: round(shape.y),
      fill: shape.fill,
      "font-family": FONT,
      "font-size": shape.size ?? 12,
      "font-weight": shape.weight,
      "font-style": shape.italic ? "italic" : undefined,
      "text-anchor": shape.anchor,
      transform: shape.turn
        ? `rotate(${shape.turn} ${round(shape.x)} ${round(shape.y)})`
        : undefined,
      "data-key": shape.key,
    });
    element.textContent = shape.text;
    return element;
  }
  if (shape.rect) {
    const [x, y, width, height] = shape.rect.map(round);
    return put(make("rect"), { x, y, width, height, ...style });
  }
  if (shape.circle) {
    const [cx, cy, r] = shape.circle.map(round);
    return put(make("circle"), { cx, cy, r, ...style });
  }
  const [x1, y1, x2, y2] = shape.curve.map(round);
  const middle = round((x1 + x2) / 2);
  const d = `M${x1} ${y1}C${middle} ${y1} ${middle} ${y2} ${x2} ${y2}`;
  return put(make("path"), { d, "stroke-linecap": shape.dash ? "butt" : "round", ...style });
}

/** Return a drawing as an element of SVG. */
export function toSvg(document, { width, height, shapes }) {
  const svg = put(document.createElementNS(SVG, "svg"), {
    xmlns: SVG,
    viewBox: `0 0 ${Math.ceil(width)} ${Math.ceil(height)}`,
    width: Math.ceil(width),
    height: Math.ceil(height),
  });
  svg.append(...shapes.map((shape) => toElement(document, shape)));
  return svg;
}

/** Return a drawing on a canvas of its own. */
export function toCanvas(document, { width, height, shapes }, scale) {
  const canvas = document.createElement("canvas");
  canvas.width = Math.ceil(width * scale);
  canvas.height = Math.ceil(height * scale);
  const context = canvas.getContext("2d");
  context.scale(scale, scale);
  paint(context, shapes);
  return canvas;
}

/**
 * Return a function that shortens a text to a width in pixels. Its function widest gives the width
 * of the widest of some texts.
 */
export function fitter(document) {
  const context = document.createElement("canvas").getContext("2d");
  const known = new Map();
  const fit = (text, width, size = 12, weight = 400) => {
    const name = `${width} ${size} ${weight} ${text.length > 200 ? text.slice(0, 200) : text}`;
    const found = known.get(name);
    if (found !== undefined) return found;
    context.font = fontOf({ size, weight });
    // Whole characters as readers see them, so that an emoji with joiners is not cut in two.
    const parts = characters(text.slice(0, 400));
    let shown =
      parts.length > MOST_SHOWN ? `${parts.slice(0, MOST_SHOWN).join("")}…` : parts.join("");
    if (context.measureText(shown).width > width) {
      let low = 0;
      let high = Math.min(MOST_SHOWN, parts.length);
      while (low < high) {
        const middle = Math.ceil((low + high) / 2);
        if (context.measureText(`${parts.slice(0, middle).join("")}…`).width <= width) low = middle;
        else high = middle - 1;
      }
      shown = `${parts.slice(0, low).join("")}…`;
    }
    if (known.size > 5000) known.clear();
    known.set(name, shown);
    return shown;
  };
  fit.widest = (texts, size, weight) => {
    context.font = fontOf({ size, weight });
    return texts.reduce(
      (most, text) => Math.max(most, context.measureText(text.slice(0, 60)).width),
      0,
    );
  };
  return fit;
}

/** Return the characters of a text as readers see them. */
export function characters(text) {
  if (typeof Intl !== "undefined" && Intl.Segmenter) {
    return Array.from(new Intl.Segmenter().segment(text), (part) => part.segment);
  }
  return Array.from(text);
}
