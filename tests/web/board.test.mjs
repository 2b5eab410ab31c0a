// The page that shows the deployment.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import { opened, paged } from "./browser.mjs";
import { launched } from "./deployment.mjs";

let browser;
let deployment;

before(async () => {
  [browser, deployment] = await Promise.all([
    opened(),
    launched("synthetic", "stage.talker.replicas=2", "stage.thinker.options.interval_ms=200"),
  ]);
});
after(async () => {
  await browser?.close();
  await deployment?.stop();
});

function asked(words, more = {}) {
  return fetch(`${deployment.url}/v1/chat/completions`, {
    method: "POST",
    headers: { "content-type": "application/json", "x-request-id": "mine" },
    body: JSON.stringify({ model: "synthetic", messages: [{ role: "user", content: words }], stream: true }),
    ...more,
  });
}

test("replicas, requests in flight, latency and rings, as they change", async () => {
  const page = await paged(browser, `${deployment.url}/deployment`);
  const shown = (name, value) =>
    page.waitForFunction(
      ([name, value]) =>
        [...document.querySelectorAll("#now div")].some(
          (figure) => figure.children[0].textContent === name && figure.children[1].textContent === value,
        ),
      [name, value],
    );
  await shown("State", "ready");
  await shown("Live", "0");
  assert.deepEqual(await page.locator("#replicas th").allTextContents(), [
    "thinker/0",
    "talker/0",
    "talker/1",
    "code2wav/0",
  ]);
  assert.match(await page.locator("#rings tr").first().textContent(), /thinker → talker.*of 16 MiB/);

  const controller = new AbortController();
  const answer = await asked("word ".repeat(200), { signal: controller.signal });
  assert.equal(answer.status, 200);
  await shown("Live", "1");
  assert.match(await page.locator("#slowest tr").textContent(), /^mine-.*running/);
  controller.abort();
  await shown("Aborted", "1");
  await shown("Live", "0");

  assert.match(await page.locator("#latency").textContent(), /first text––/);
  await (await asked("one two")).text();
  const measured = /first text\d+ ms\d+ ms.*first sound––/;
  await page.waitForFunction((is) => is.test(document.getElementById("latency").textContent), measured);
  assert.match(await page.locator("#of").textContent(), /: 1\.$/);
  assert.deepEqual(page.wrongs, []);
  await page.close();
});
