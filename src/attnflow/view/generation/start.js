// The script of the page of a generation.

import { showData } from "../page/document.js";
import { mountGeneration } from "./generation.js";

export { mountGeneration };

showData((element, data) => mountGeneration(element, data, { address: true }), "main");
