// One scale of colours for all scores: a single hue whose lightness changes evenly (in OKLab), so
// that it reads the same to every kind of colour vision, and in grey. Scores below 0 have the same
// lightness in another hue; whoever shows them marks them in another way, too.

const SCALES = {
  light: { lightness: [0.982, 0.4], chroma: 0.15, hue: [235, 264] },
  dark: { lightness: [0.255, 0.87], chroma: 0.1, hue: [270, 238] },
  lightBelow: { lightness: [0.982, 0.52], chroma: 0.13, hue: [75, 50] },
  darkBelow: { lightness: [0.255, 0.87], chroma: 0.12, hue: [45, 75] },
};

/** The colours of each theme that drawings use; the page's own are in its style sheet. */
export const INKS = {
  light: { paper: "#ffffff", ink: "#1c1d20", muted: "#62636a", line: "#dddbd6", cut: "#bf3d00" },
  dark: { paper: "#17181b", ink: "#ececee", muted: "#a3a4ac", line: "#3a3c43", cut: "#ffa05c" },
};

function channel(linear) {
  const value = linear <= 0.0031308 ? 12.92 * linear : 1.055 * linear ** (1 / 2.4) - 0.055;
  return Math.round(255 * Math.min(1, Math.max(0, value)));
}

/** Return the sRGB channels of a colour of OKLCH, its hue in degrees. */
export function fromOklch(lightness, chroma, hue) {
  const a = chroma * Math.cos((hue * Math.PI) / 180);
  const b = chroma * Math.sin((hue * Math.PI) / 180);
  const l = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const m = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const s = (lightness - 0.0894841775 * a - 1.291485548 * b) ** 3;
  return [
    channel(4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s),
    channel(-1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s),
    channel(-0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s),
  ];
}

const STEPS = 255;

function table(theme, grey) {
  const { lightness, chroma, hue } = SCALES[theme];
  return Array.from({ length: STEPS + 1 }, (_, i) => {
    const t = i / STEPS;
    const light = lightness[0] + t * (lightness[1] - lightness[0]);
    const strength = grey ? 0 : chroma * Math.sin((Math.PI / 2) * Math.min(1, 0.05 + 1.2 * t));
    const rgb = fromOklch(light, strength, hue[0] + t * (hue[1] - hue[0]));
    return { hex: hex(rgb), ink: inkOn(rgb) };
  });
}

// Black or white, whichever stands out more: by the contrast of WCAG, that is never less than 4.5.
function inkOn(rgb) {
  const [r, g, b] = rgb.map((value) => {
    const share = value / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  });
  const luminance = 0.2126 * r + 0.7152 * g + 0.0722 * b;
  return 1.05 / (luminance + 0.05) > (luminance + 0.05) / 0.05 ? "#ffffff" : "#000000";
}

function hex(rgb) {
  return `#${rgb.map((value) => value.toString(16).padStart(2, "0")).join("")}`;
}

const TABLES = {
  light: table("light", false),
  dark: table("dark", false),
  lightBelow: table("lightBelow", false),
  darkBelow: table("darkBelow", false),
  lightGrey: table("light", true),
  darkGrey: table("dark", true),
};

/**
 * Return the colour of a share from -1 to 1: {hex, ink}, where ink is what can be read on it. Grey is
 * for what stands outside the scale.
 */
export function shade(theme, share, grey = false) {
  // Half the way in grey, so that what is left out of the scale never outshines it.
  const t = Math.min(1, Math.abs(share)) * (grey ? 0.35 : 1);
  const kind = grey ? "Grey" : share < 0 ? "Below" : "";
  return TABLES[`${theme}${kind}`][Math.round(t * STEPS)];
}
