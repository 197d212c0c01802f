"use strict";
/* Marks the sides at which an element that scrolls sideways has more to show. */
for (const element of document.querySelectorAll("nav, .scroll")) {
  const mark = () => {
    const rest = element.scrollWidth - element.clientWidth - element.scrollLeft;
    element.dataset.more = `${element.scrollLeft > 1 ? "left" : ""} ${rest > 1 ? "right" : ""}`.trim();
  };
  element.addEventListener("scroll", mark, { passive: true });
  new ResizeObserver(mark).observe(element);
  new MutationObserver(mark).observe(element, { childList: true, subtree: true });
  mark();
}
