// Opens the pages of a console in Chromium as a person would: with the keyboard, on a phone, in the
// dark. tests/integration/console.rs starts the nodes and fills them.
//
// node pages.mjs '{"base": .., "pages": [..], "actions": [..], "twice": {..}, "login": {..},
//   "shots": [..]}'
// Exits with 1 and a line for each fault.

import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import puppeteer from "puppeteer-core";

const plan = JSON.parse(process.argv[2]);
const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const faults = [];
const fault = (place, text) => faults.push(`${place}: ${text}`);

const browser = await puppeteer.launch({
  executablePath: plan.browser,
  args: ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"],
});

// The longest wait for a page, a request or an element, in ms. A busy machine needs seconds.
const WAIT_MAX = 60000;
const DESK = { width: 1200, height: 900 };
const PHONE = { width: 360, height: 740, isMobile: true, hasTouch: true };

/** Opens a tab that notes every error, and every request that leaves the origin. */
async function tab(viewport, scheme, base = plan.base) {
  const context = await browser.createBrowserContext();
  const page = await context.newPage();
  page.setDefaultTimeout(WAIT_MAX);
  await page.setViewport(viewport);
  await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: scheme }]);
  page.on("console", (message) => {
    if (["error", "warn"].includes(message.type())) fault(page.url(), `console: ${message.text()}`);
  });
  page.on("pageerror", (error) => fault(page.url(), `script: ${error.message}`));
  page.on("requestfailed", (request) => {
    const text = request.failure()?.errorText;
    if (text !== "net::ERR_ABORTED") fault(page.url(), `${request.url()}: ${text}`);
  });
  page.on("request", (request) => {
    if (!request.url().startsWith(base)) fault(page.url(), `asks ${request.url()}`);
  });
  return page;
}

async function open(page, path, base = plan.base) {
  const answer = await page.goto(base + path, { waitUntil: "load" });
  if (answer.status() !== 200) fault(path, `status ${answer.status()}`);
  const policy = answer.headers()["content-security-policy"] ?? "";
  if (!policy.includes("default-src 'none'") || policy.includes("unsafe")) {
    fault(path, `policy ${policy}`);
  }
}

async function check(page, place) {
  await page.evaluate(axe);
  const found = await page.evaluate(() => globalThis.axe.run());
  for (const { id, nodes } of found.violations) {
    for (const node of nodes) fault(place, `axe: ${id}: ${node.html} ${node.failureSummary}`);
  }
  const [wide, room] = await page.evaluate(() => {
    const root = document.documentElement;
    return [root.scrollWidth, root.clientWidth];
  });
  if (wide > room) fault(place, `is ${wide} px wide in ${room} px`);
}

/** Presses Tab until the focus is on the element of this text, whose focus must be visible. */
async function tabTo(page, label) {
  for (let presses = 0; presses < 80; presses += 1) {
    await page.keyboard.press("Tab");
    const [text, outline] = await page.evaluate(() => {
      const element = document.activeElement;
      const text = element.getAttribute("aria-label") ?? element.labels?.[0]?.textContent;
      return [(text ?? element.textContent).trim(), getComputedStyle(element).outlineStyle];
    });
    if (text === label) {
      if (outline === "none") fault(page.url(), `the focus on ${label} is invisible`);
      return;
    }
  }
  throw new Error(`${page.url()}: the keyboard does not reach “${label}”`);
}

async function enter(page, label) {
  await tabTo(page, label);
  await Promise.all([page.waitForNavigation({ waitUntil: "load" }), page.keyboard.press("Enter")]);
}

/** Takes a step of an action: fills a field in, or presses a button or a link by its text. */
async function take(page, step) {
  if (typeof step === "string") {
    await enter(page, step);
  } else {
    await tabTo(page, step.field);
    await page.keyboard.type(step.value);
  }
}

async function expectText(page, text) {
  const shown = await page.evaluate(() => document.body.innerText);
  if (!shown.includes(text)) fault(page.url(), `“${text}” is not shown, but: ${shown}`);
}

/** Leaves the requests of the script without an answer: it gives up, and makes one at a time. */
async function stuck(page) {
  const waiting = [];
  await page.setRequestInterception(true);
  const hold = (request) => {
    if (request.resourceType() === "fetch") waiting.push(request);
    else request.continue();
  };
  page.on("request", hold);
  await page.waitForFunction(() => !document.querySelector("#stale").hidden);
  if (waiting.length !== 1) fault(page.url(), `${waiting.length} refreshes at a time`);
  page.off("request", hold);
  await page.setRequestInterception(false);
  await page.waitForFunction(() => document.querySelector("#stale").hidden);
}

/** Takes the session from a live page: its next refresh leads to the login. Logs in again. */
async function loseSession(page, base, token) {
  await open(page, "/console", base);
  await page.deleteCookie(...(await page.cookies()));
  await page.waitForSelector("#token");
  await page.focus("#token");
  await page.keyboard.type(token);
  await Promise.all([page.waitForNavigation(), page.keyboard.press("Enter")]);
  if (page.url() !== `${base}/console`) fault("login", `leads to ${page.url()}`);
}

/** Submits the form of the button of this text twice. Only the first time may reach the node. */
async function submitTwice(page, label) {
  const sent = await page.evaluate((label) => {
    const button = [...document.querySelectorAll("button")].find((one) => one.textContent === label);
    let sent = 0;
    document.addEventListener("submit", (event) => {
      sent += event.defaultPrevented ? 0 : 1;
      event.preventDefault();
    });
    button.form.requestSubmit();
    button.form.requestSubmit();
    return sent;
  }, label);
  if (sent !== 1) fault(page.url(), `two clicks on ${label} send ${sent} requests`);
}

async function run() {
  for (const [viewport, scheme] of [[DESK, "light"], [DESK, "dark"], [PHONE, "light"]]) {
    const page = await tab(viewport, scheme);
    for (const path of plan.pages) {
      await open(page, path);
      await check(page, `${path} (${scheme}, ${viewport.width} px)`);
    }
    const ground = await page.evaluate(() => getComputedStyle(document.body).backgroundColor);
    const isDark = Number(ground.match(/\d+/)[0]) < 128;
    if (isDark !== (scheme === "dark")) fault(scheme, `the ground is ${ground}`);
    await page.close();
  }

  const page = await tab(DESK, "light");
  await open(page, "/console");
  await page.keyboard.press("Tab");
  await expectText(page, "Skip to the content");
  await page.keyboard.press("Enter");
  if ((await page.evaluate(() => document.activeElement.id)) !== "main") {
    fault("/console", "the skip link does not lead to the content");
  }
  await page.evaluate(() => {
    document.querySelector("#live").firstElementChild.dataset.old = "1";
    document.querySelector("#live details").open = true;
  });
  const again = page.waitForResponse((answer) => answer.request().resourceType() === "fetch");
  if ((await again).status() !== 200) fault("/console", "the refresh fails");
  await page.waitForFunction(() => !document.querySelector("#live [data-old]"));
  if (!(await page.evaluate(() => document.querySelector("#live details").open))) {
    fault("/console", "the refresh closes a fold");
  }
  await page.setOfflineMode(true);
  await page.waitForFunction(() => !document.querySelector("#stale").hidden);
  await page.setOfflineMode(false);
  await page.waitForFunction(() => document.querySelector("#stale").hidden);
  faults.splice(0, faults.length, ...faults.filter((text) => !text.includes("ERR_INTERNET_DISCONNECTED")));
  await expectText(page, "Published");
  await page.focus("#live [tabindex]");
  await page.waitForFunction(() => !document.querySelector("#held").hidden);
  await page.evaluate(() => document.activeElement.blur());
  await page.waitForFunction(() => document.querySelector("#held").hidden);
  await stuck(page);

  for (const { file, path, phone, dark } of plan.shots) {
    const shot = await tab(phone ? PHONE : DESK, dark ? "dark" : "light");
    await open(shot, path);
    if (path === "/console") {
      await shot.waitForResponse((answer) => answer.request().resourceType() === "fetch");
    }
    await shot.screenshot({ path: file, fullPage: !phone });
    await shot.close();
  }

  for (const { path, steps, says } of plan.actions) {
    await open(page, path);
    for (const step of steps) await take(page, step);
    await expectText(page, says);
    await check(page, `after ${steps.map((step) => step.value ?? step).join(", ")}`);
  }

  await open(page, plan.twice.path);
  await submitTwice(page, plan.twice.label);

  const { base, token, path } = plan.login;
  const reader = await tab(DESK, "light", base);
  await reader.goto(`${base}${path}`);
  faults.splice(0, faults.length, ...faults.filter((text) => !text.includes("status of 401")));
  await check(reader, "the login");
  await reader.keyboard.type(token);
  await Promise.all([reader.waitForNavigation(), reader.keyboard.press("Enter")]);
  if (reader.url() !== base + path) fault("login", `leads to ${reader.url()}`);
  const [cookie] = await reader.cookies();
  if (!cookie?.httpOnly || cookie.sameSite !== "Strict") fault("login", JSON.stringify(cookie));
  if (await reader.evaluate(() => document.cookie)) fault("login", "a script reads the cookie");
  await loseSession(reader, base, token);
  faults.splice(0, faults.length, ...faults.filter((text) => !text.includes("status of 401")));
  await enter(reader, "Log out");
  await expectText(reader, "Token");
  if ((await reader.cookies()).length > 0) fault("logout", "the cookie is still there");
}

try {
  await run();
} catch (error) {
  fault("the test", error.stack);
} finally {
  await browser.close();
}
for (const text of faults) console.error(text);
process.exitCode = faults.length > 0 ? 1 : 0;
