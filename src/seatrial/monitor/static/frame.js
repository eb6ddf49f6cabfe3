// A page of the server's in a frame as tall as it is: the page scrolls, the frame does not.
import { make } from "./parts.js";

export function tall(address, title) {
  // It runs no script. Its origin is ours, so that it can be measured; its links lead the whole page on.
  const made = make("iframe", { title, src: address, sandbox: "allow-same-origin allow-top-navigation-by-user-activation", scrolling: "no", height: "600" });
  made.addEventListener("load", () => {
    const inside = made.contentDocument?.body;
    if (!inside) return;
    const fit = () => { made.height = String(Math.ceil(inside.getBoundingClientRect().height) + 1); };
    new ResizeObserver(fit).observe(inside);
    fit();
  });
  return made;
}
