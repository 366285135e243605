// The script of the page of an explanation.

import { showData } from "./document.js";
import { mount } from "./page.js";

export { mount };

showData((element, data) => mount(element, data, { address: true }), "main");
