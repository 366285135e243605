// The script of the served page.

import { Served } from "./served.js";

const served = new Served(document.querySelector("main.served"));
served.start().catch((error) => served.complain(error.message));
