"use strict";
/* Sets the theme before anything is drawn: that of the system, until the button of the page chooses another. */
{
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const follow = () => { document.documentElement.dataset.theme = dark.matches ? "dark" : "light"; };
  dark.addEventListener("change", follow);
  follow();
}
