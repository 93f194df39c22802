"use strict";
/* Refreshes the content of a live page every 5 seconds, while somebody looks at it. */
(() => {
  const PERIOD = 5000;
  const PATIENCE = 8000;
  const live = document.querySelector("#live[data-live]");
  const button = document.querySelector("#refresh");
  const stale = document.querySelector("#stale");
  const held = document.querySelector("#held");
  if (!live || !button || !stale || !held) return;
  let isOn = true;
  let isUnderWay = false;
  button.parentElement.hidden = false;
  button.addEventListener("click", () => {
    isOn = !isOn;
    button.setAttribute("aria-pressed", String(isOn));
  });
  /* The place of the keyboard, or marked text, must not vanish under its user. */
  const isInUse = () => {
    const marked = document.getSelection();
    return live.contains(document.activeElement) ||
      (!marked.isCollapsed && marked.getRangeAt(0).intersectsNode(live));
  };
  /* A wide table and a fold are the same after a refresh when their names are. */
  const parts = () => [...live.querySelectorAll(".wide, details")];
  const nameOf = (part) => part.getAttribute("aria-label") ?? part.firstElementChild.textContent;
  /* Shows the new figures. Tables stay scrolled, and folds stay open. */
  const show = (content) => {
    const kept = new Map(parts().map((part) => [nameOf(part), [part.scrollLeft, part.open]]));
    live.replaceChildren(...content.childNodes);
    for (const part of parts()) {
      const [left, isOpen] = kept.get(nameOf(part)) ?? [0, part.open];
      part.scrollLeft = left;
      if (part.matches("details")) part.open = isOpen;
    }
  };
  const refresh = async () => {
    held.hidden = !isOn || !isInUse();
    if (!isOn || !held.hidden || document.hidden) return;
    /* A node that is stuck, or a network that drops everything, would never answer. */
    const signal = AbortSignal.timeout(PATIENCE);
    const answer = await fetch(location.href, { redirect: "error", signal });
    /* The session has ended, and the page itself leads to the login. */
    if (answer.status === 401) {
      location.reload();
      return;
    }
    if (!answer.ok) throw new Error(`status ${answer.status}`);
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const content = page.querySelector("#live");
    if (!content) throw new Error("not a page of the console");
    stale.hidden = true;
    /* The reader may have come, or switched off, while the node answered. */
    if (isOn && !isInUse()) show(content);
  };
  /* One at a time, so that no slow answer replaces a newer one. A node that is away is asked again.
     Until then the page says that its figures are old. */
  setInterval(async () => {
    if (isUnderWay) return;
    isUnderWay = true;
    await refresh().catch(() => { stale.hidden = false; });
    isUnderWay = false;
  }, PERIOD);
})();
/* A second click on a button must not do its action twice. The first answer leads away from here;
   a browser that goes back may show the page as it was. Some seconds later a click works again,
   because the request may have failed, or the reader has stopped it. An action that is not
   idempotent waits for longer than a node takes to answer. */
(() => {
  const PAUSE_MS = 5000, LONG_PAUSE_MS = 60000;
  const NOT_IDEMPOTENT = ["trigger", "redrive-many", "drop-many"];
  let sent = new WeakSet();
  document.addEventListener("submit", (event) => {
    const form = event.target;
    if (form.method !== "post") return;
    if (sent.has(form)) {
      event.preventDefault();
      return;
    }
    sent.add(form);
    const isIdempotent = !NOT_IDEMPOTENT.includes(form.elements.namedItem("action")?.value);
    setTimeout(() => { sent.delete(form); }, isIdempotent ? PAUSE_MS : LONG_PAUSE_MS);
  });
  window.addEventListener("pageshow", () => { sent = new WeakSet(); });
})();
