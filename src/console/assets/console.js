"use strict";
/* Refreshes the content of a live page every 5 seconds, while somebody looks at it. */
(() => {
  const live = document.querySelector("#live[data-live]");
  const button = document.querySelector("#refresh");
  const stale = document.querySelector("#stale");
  if (!live || !button || !stale) return;
  let isOn = true;
  button.parentElement.hidden = false;
  button.addEventListener("click", () => {
    isOn = !isOn;
    button.setAttribute("aria-pressed", String(isOn));
  });
  const refresh = async () => {
    /* The place of the keyboard must not vanish under its user. */
    if (!isOn || document.hidden || live.contains(document.activeElement)) return;
    const answer = await fetch(location.href, { redirect: "error" });
    if (!answer.ok) throw new Error(`status ${answer.status}`);
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const content = page.querySelector("#live");
    if (!content) throw new Error("not a page of the console");
    live.replaceChildren(...content.childNodes);
    stale.hidden = true;
  };
  /* A node that is away is asked again 5 seconds later. Until then the page says so. */
  setInterval(() => refresh().catch(() => { stale.hidden = false; }), 5000);
})();
