// The data of a document, which Python put into an element of its own.

/**
 * Show the data of a document in the element that selector selects. show is given both, and returns
 * a promise. In a document without data nothing is done.
 */
export function showData(show, selector) {
  const data = document.getElementById("attnflow-data");
  if (!data) return;
  const element = document.querySelector(selector);
  show(element, JSON.parse(data.textContent)).catch((error) => {
    element.append(`This page cannot be shown: ${error.message}`);
  });
}
