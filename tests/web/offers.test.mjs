// The page offers what a deployment can give: text, sound, or both, and its voices.

import assert from "node:assert/strict";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { after, before, test } from "node:test";

import { opened, paged } from "./browser.mjs";
import { launched } from "./deployment.mjs";

const STAGE = (name, final) => `
[[stage]]
name = "${name}"
engine = "synthetic"
final_output = "${final}"
[stage.options]
echo = true
`;

let browser;
let folder;

before(async () => {
  browser = await opened();
  folder = await mkdtemp(`${tmpdir()}/oz-`);
});
after(async () => {
  await browser?.close();
  await rm(folder, { recursive: true });
});

/** Of a deployment that `use` has a page of; its configuration is `toml`, or one that is shipped. */
async function on(toml, sets, use) {
  const path = `${folder}/one.toml`;
  await writeFile(path, toml);
  const deployment = await launched(toml.includes("\n") ? path : toml, ...sets);
  try {
    const page = await paged(browser, deployment.url);
    await page.waitForSelector("#send:enabled");
    await use(page, deployment);
    assert.deepEqual(page.wrongs, []);
    await page.close();
  } finally {
    await deployment.stop();
  }
}

/** The body that the page sends for these words. */
async function ask(page, words) {
  const sent = page.waitForRequest((request) => request.method() === "POST");
  await page.locator("#text").fill(words);
  await page.locator("#send").click();
  return (await sent).postDataJSON();
}

const answered = (page) =>
  page.waitForFunction(() => document.getElementById("status").textContent.startsWith("Answered"));

test("text alone", async () => {
  await on(`name = "reader"\n${STAGE("thinker", "text")}`, [], async (page) => {
    assert.equal(await page.locator("#speak").isDisabled(), true);
    assert.equal(await page.locator("#speak").isChecked(), false);
    assert.deepEqual((await ask(page, "one two")).modalities, ["text"]);
    await answered(page);
    assert.equal(await page.locator(".turn.assistant span:last-child").textContent(), "one two");
    assert.equal(await page.locator("#heard").isVisible(), false);
  });
});

test("sound alone", async () => {
  await on(`name = "singer"\n${STAGE("singer", "audio")}`, [], async (page) => {
    assert.equal(await page.locator("#speak").isDisabled(), true);
    assert.equal(await page.locator("#speak").isChecked(), true);
    assert.deepEqual((await ask(page, "one two")).modalities, ["audio"]);
    await page.waitForFunction(() => window.peak() > 0.02);
    await answered(page);
    assert.equal(await page.locator(".turn.assistant span:last-child").textContent(), "♪");
  });
});

test("voices, the first unless another is chosen", async () => {
  await on("synthetic", ['plugins.http.voices=["Ann", "Bob"]'], async (page) => {
    assert.deepEqual(await page.locator("#voice option").allTextContents(), ["Ann", "Bob"]);
    assert.equal((await ask(page, "one")).audio.voice, "Ann");
    await page.waitForSelector("#problem:visible"); // these stages know no voices
    await page.locator("#voice").selectOption("Bob");
    assert.equal((await ask(page, "one")).audio.voice, "Bob");
    await page.waitForSelector("#problem:visible");
    await page.reload();
    await page.waitForSelector("#send:enabled");
    assert.equal(await page.locator("#voice").inputValue(), "Bob");
  });
});

test("a sound that the browser holds back until it is asked for", async () => {
  const deployment = await launched("synthetic");
  const strict = await opened("--autoplay-policy=document-user-activation-required");
  const page = await strict.newPage();
  try {
    await page.addInitScript(() => {
      // Sent, and looked at, by nobody's hand: what Playwright evaluates counts as a hand's.
      const sending = setInterval(() => {
        if (document.getElementById("send")?.disabled !== false) return;
        clearInterval(sending);
        document.getElementById("text").value = "one two three";
        document.getElementById("ask").requestSubmit();
        setInterval(() => document.getElementById("hear").hidden || console.log("held back"), 20);
      }, 20);
    });
    const held = page.waitForEvent("console", (message) => message.text() === "held back");
    await page.goto(deployment.url);
    await held;
    assert.match(await page.locator("#seconds").textContent(), /^0\.0 of 0\.\d s heard$/);
    await page.locator("#hear").click();
    await page.locator("#hear").waitFor({ state: "hidden" });
    await page.waitForFunction(() => document.getElementById("stop").disabled); // heard to its end
    assert.match(await page.locator("#seconds").textContent(), /^0\.3 of 0\.3 s heard$/);
  } finally {
    await strict.close();
    await deployment.stop();
  }
});
