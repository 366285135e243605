// The script of the page of a data set.

import { showData } from "../page/document.js";
import { browse } from "./browse.js";

showData(browse, ".browse");
