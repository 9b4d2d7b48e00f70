// Runs before the first paint, so that a chosen theme does not flash. Not a module for that reason.
"use strict";
{
  const chosen = localStorage.getItem("coa-theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
}
