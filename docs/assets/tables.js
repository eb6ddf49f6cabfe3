// A table wider than its page scrolls by itself; this lets the arrow keys scroll it, too, for those who use no mouse.
const fits = new ResizeObserver((seen) => {
  for (const { target } of seen) {
    if (target.scrollWidth > target.clientWidth) {
      target.tabIndex = 0;
      target.setAttribute("role", "group");
      target.setAttribute("aria-label", "Table, scrolls sideways");
    } else {
      for (const name of ["tabindex", "role", "aria-label"]) target.removeAttribute(name);
    }
  }
});
const watch = () => document.querySelectorAll(".md-typeset__scrollwrap").forEach((wrap) => fits.observe(wrap));
new MutationObserver(watch).observe(document.querySelector(".md-content"), { childList: true, subtree: true });
watch();
