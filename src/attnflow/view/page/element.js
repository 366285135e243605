// Elements of HTML, as all parts of a page make them.

/**
 * Return an element with attributes and children. An attribute that begins with "on" is a listener,
 * which signal removes. Attributes that are null, undefined or false, and children that are null or
 * undefined, are left out.
 */
export function makeElement(document, name, attributes, children, signal) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value, { signal });
    else element.setAttribute(key, value === true ? "" : String(value));
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}
