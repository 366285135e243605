// The script of the served page.

import { serve } from "./served.js";

const main = document.querySelector("main.served");
serve(main).catch((error) => {
  const problem = document.createElement("p");
  problem.className = "problem";
  problem.setAttribute("role", "alert");
  problem.textContent = error.message;
  main.querySelector(".ask").append(problem);
});
