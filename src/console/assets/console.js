"use strict";
/* Refreshes the content of a live page every 5 seconds, while somebody looks at it. */
(() => {
  const live = document.querySelector("#live[data-live]");
  const button = document.querySelector("#refresh");
  if (!live || !button) return;
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
    if (!answer.ok) return;
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const content = page.querySelector("#live");
    if (content) live.replaceChildren(...content.childNodes);
  };
  /* A node that is away for a moment is asked again 5 seconds later. */
  setInterval(() => refresh().catch(() => {}), 5000);
})();
