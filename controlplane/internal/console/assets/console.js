// What pages do beyond links and forms: fresh figures.
"use strict";

// A part with data-live is fetched anew while the page is looked at.
for (const part of document.querySelectorAll("[data-live]")) {
  setInterval(async () => {
    if (document.hidden || part.contains(document.activeElement) && document.activeElement.matches("a")) return;
    try {
      const got = await fetch(location.href, {headers: {Accept: "text/html"}});
      if (got.redirected) return location.reload();
      if (!got.ok) return;
      const fresh = new DOMParser().parseFromString(await got.text(), "text/html").querySelector("[data-live]");
      if (fresh && fresh.innerHTML !== part.innerHTML) part.replaceChildren(...fresh.childNodes);
    } catch { /* the server is away: the next time */ }
  }, Number(part.dataset.live));
}
