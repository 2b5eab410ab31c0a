// All pages, at the widths of a desk and of a phone, in light and dark: readable by everybody, nothing out of sight.
// SHOTS=FOLDER keeps the pictures.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import axe from "axe-core";

import { opened, paged } from "./browser.mjs";
import { launched } from "./deployment.mjs";

const SIZES = { desk: { width: 1280, height: 800 }, phone: { width: 390, height: 844 } };

let browser;
let deployment;

before(async () => {
  [browser, deployment] = await Promise.all([opened(), launched("embedded")]);
  const messages = [{ role: "user", content: "What is the capital of France?" }];
  const answer = await fetch(`${deployment.url}/v1/chat/completions`, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({ model: "embedded", messages, modalities: ["text", "audio"], audio: {} }),
  });
  assert.equal(answer.status, 200); // so that there is a latency to show
});
after(async () => {
  await browser?.close();
  await deployment?.stop();
});

async function looked(page, name) {
  const folder = process.env.SHOTS;
  if (folder) await page.screenshot({ path: `${folder}/${name}.png`, fullPage: true });
  const [inner, outer] = await page.evaluate(() => [document.documentElement.scrollWidth, window.innerWidth]);
  assert.ok(inner <= outer, `${name}: ${inner} pixels on ${outer}`);
  await page.evaluate(axe.source);
  const { violations, passes } = await page.evaluate(() => window.axe.run());
  assert.deepEqual(
    violations.map((found) => `${name}: ${found.id}: ${found.nodes.map((node) => node.html).join(" ")}`),
    [],
  );
  assert.ok(passes.some((rule) => rule.id === "color-contrast"));
}

for (const [size, viewport] of Object.entries(SIZES)) {
  for (const colorScheme of ["light", "dark"]) {
    test(`at the width of a ${size}, in ${colorScheme}`, async () => {
      const page = await paged(browser, deployment.url, { viewport, colorScheme });
      const name = (what) => `${what}-${size}-${colorScheme}`;
      await page.waitForSelector("#send:enabled");
      await looked(page, name("empty"));
      await page.locator("#text").fill("Tell me a long story.");
      await page.locator("#send").click();
      await page.waitForFunction(() => document.querySelectorAll("#stages .makes").length === 3);
      await page.waitForFunction(() => window.peak() > 0.02);
      await looked(page, name("answering"));
      await page.locator("#stop").click();
      await page.waitForFunction(() => /abort/i.test(document.getElementById("verdict").textContent));
      await deployment.idle();
      await page.route("**/v1/chat/completions", (route) => route.abort());
      await page.locator("#text").fill("And then?");
      await page.locator("#send").click();
      await page.waitForSelector("#problem:visible");
      await looked(page, name("failed"));
      await page.unroute("**/v1/chat/completions");
      await page.locator("#send").click();
      const board = await paged(browser, `${deployment.url}/deployment`, { viewport, colorScheme });
      await board.waitForSelector("#rings tr");
      await looked(board, name("deployment"));
      await board.route("**/v1/deployment", (route) =>
        route.fulfill({ status: 401, json: { error: { message: "no valid API key", code: "invalid_api_key" } } }),
      );
      await board.waitForSelector("#locked:visible");
      await looked(board, name("locked"));
      await board.close();
      const locked = await browser.newContext({ viewport, colorScheme });
      await locked.route("**/v1/models", (route) =>
        route.fulfill({ status: 401, json: { error: { message: "no valid API key", code: "invalid_api_key" } } }),
      );
      const talk = await paged(locked, deployment.url);
      await talk.waitForSelector("#locked:visible");
      await looked(talk, name("locked-talk"));
      await locked.close();
      const docs = await paged(browser, `${deployment.url}/docs`, { viewport, colorScheme });
      await docs.waitForSelector("#ChatBody");
      await looked(docs, name("docs"));
      const { paths } = await fetch(`${deployment.url}/openapi.json`).then((answer) => answer.json());
      const shown = await docs.locator("#operations h2").allTextContents();
      assert.deepEqual(new Set(shown.map((text) => text.split(" ")[1])), new Set(Object.keys(paths)));
      const options = docs.locator("#StreamOptions tr", { hasText: "include_obfuscation" });
      assert.equal(await options.locator("td").first().textContent(), "false"); // the one value that it may have
      assert.deepEqual(docs.wrongs, []);
      await docs.close();
      await page.close();
      await deployment.idle();
    });
  }
}

test("the keyboard alone is enough", async () => {
  const page = await paged(browser, deployment.url);
  await page.waitForSelector("#send:enabled");
  const reached = [];
  for (let n = 0; n < 12; n += 1) {
    reached.push(await page.evaluate(() => document.activeElement.id || document.activeElement.textContent));
    await page.keyboard.press("Tab");
  }
  for (const id of ["text", "speak", "voice", "fresh", "send", "Talk", "Deployment", "turns"]) {
    assert.ok(reached.includes(id), `${id} is not among ${reached}`);
  }
  await page.close();
});

test("nothing moves for a reader who wants that", async () => {
  const page = await paged(browser, deployment.url, { reducedMotion: "reduce" });
  await page.waitForSelector("#send:enabled");
  await page.locator("#text").fill("Tell me a long story.");
  await page.locator("#send").click();
  await page.waitForSelector(".turn.assistant[aria-busy=true]");
  const name = await page.evaluate(
    () => getComputedStyle(document.querySelector(".turn.assistant"), "::after").animationName,
  );
  assert.equal(name, "none");
  await page.close();
  await deployment.idle();
});
