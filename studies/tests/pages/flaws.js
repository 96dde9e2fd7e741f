// What is wrong with a page as it is shown: a list of texts. Every `details` is opened first.
(async () => {
  const found = [], page = document.documentElement, wide = page.clientWidth;
  for (const each of document.querySelectorAll("details")) each.open = true;
  await Promise.all([...document.images].map((each) => each.decode().catch(() => {})));
  const name = (e) => `${e.tagName.toLowerCase()} "${(e.alt || e.textContent).trim().replace(/\s+/g, " ").slice(0, 40)}"`;

  if (page.scrollWidth > wide) found.push(`the page is ${page.scrollWidth} wide in a window of ${wide}`);

  // Nothing is cut: what reaches out of its place can be scrolled to within it, and shades at the edges say so.
  const scrolls = (e) => ["auto", "scroll"].includes(getComputedStyle(e).overflowX);
  for (const e of document.querySelectorAll("body *")) {
    const box = e.getBoundingClientRect();
    if (!box.width || !box.height) continue;
    let place = e.parentElement;
    while (place !== page && getComputedStyle(place).overflowX === "visible") place = place.parentElement;
    const around = place === page ? { left: 0, right: wide } : place.getBoundingClientRect();
    const out = box.right > around.right + 1 || box.left < around.left - 1;
    const meant = getComputedStyle(place).textOverflow === "ellipsis" || place.classList.contains("left");
    if (out && !scrolls(place) && !meant) found.push(`${name(e)} reaches out of its place`);
    if (scrolls(e) && e.scrollWidth > e.clientWidth + 1 && !getComputedStyle(e).backgroundImage.includes("gradient"))
      found.push(`nothing says that ${name(e)} scrolls`);
  }

  for (const image of document.images) {
    if (!image.complete || !image.naturalWidth) found.push(`${name(image)} is not there`);
    else if (image.clientWidth < 0.75 * image.naturalWidth / 1.5) found.push(`${name(image)} is too small to read`);
    if (image.clientWidth > image.parentElement.parentElement.clientWidth) found.push(`${name(image)} does not fit`);
  }

  // Contrast of text, by the formula of WCAG 2.
  const parts = (colour) => { const [r, g, b, a = 1] = colour.match(/[\d.]+/g).map(Number); return [r, g, b, a]; };
  const over = (top, below) => [0, 1, 2].map((i) => top[3] * top[i] + (1 - top[3]) * below[i]).concat(1);
  const light = (c) => { const [r, g, b] = c.map((v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const ground = (e) => e === null ? [255, 255, 255, 1] : over(parts(getComputedStyle(e).backgroundColor), ground(e.parentElement));
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const e = texts.currentNode.parentElement;
    if (!texts.currentNode.data.trim() || !e.getClientRects().length) continue;
    const back = ground(e), ink = over(parts(getComputedStyle(e).color), back);
    const [low, high] = [light(back), light(ink)].sort((a, b) => a - b), ratio = (high + 0.05) / (low + 0.05);
    if (ratio < 4.5) found.push(`${name(e)} has a contrast of ${ratio.toFixed(2)}`);
  }
  return found;
})()
