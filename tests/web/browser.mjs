// Headless Chromium, and what a page played in it.

import { chromium } from "playwright-core";

/** The browser; where tests run as root, its sandbox cannot. */
export function opened(...more) {
  const args = process.getuid() === 0 ? ["--no-sandbox", ...more] : more;
  return chromium.launch({ executablePath: process.env.CHROMIUM, args });
}

/** A page whose errors are gathered in `page.wrongs`: exceptions, and what its Content-Security-Policy stopped. */
export async function paged(browser, url, options = {}) {
  const page = await browser.newPage({ viewport: { width: 1280, height: 800 }, ...options });
  page.setDefaultTimeout(60_000);
  page.wrongs = [];
  page.on("pageerror", (error) => page.wrongs.push(String(error)));
  page.on("console", (message) => {
    const answered = message.text().startsWith("Failed to load resource"); // a status that the page has dealt with
    if (message.type() === "error" && !answered) page.wrongs.push(message.text());
  });
  await page.addInitScript(listen);
  await page.goto(url);
  return page;
}

/**
 * Runs in the page, before its own scripts: `window.played` has every piece of sound as it was scheduled, and
 * `window.peak()` the loudest sample of those that go to the loudspeaker just now.
 */
function listen() {
  const analysers = new WeakMap();
  const { connect } = AudioNode.prototype;
  const { start } = AudioBufferSourceNode.prototype;
  window.played = [];
  window.peak = () => 0;
  AudioNode.prototype.connect = function (to, ...more) {
    if (!(to instanceof AudioDestinationNode)) return connect.call(this, to, ...more);
    if (!analysers.has(this.context)) {
      const analyser = new AnalyserNode(this.context, { fftSize: 4096 });
      analysers.set(this.context, analyser);
      connect.call(analyser, to);
      const samples = new Float32Array(analyser.fftSize);
      window.peak = () => {
        if (this.context.state !== "running") return 0;
        analyser.getFloatTimeDomainData(samples);
        return Math.max(...samples.map(Math.abs));
      };
    }
    return connect.call(this, analysers.get(this.context), ...more);
  };
  AudioBufferSourceNode.prototype.start = function (when) {
    const { buffer, context } = this;
    window.played.push({
      when,
      now: context.currentTime,
      rate: buffer.sampleRate,
      contextRate: context.sampleRate,
      samples: Array.from(buffer.getChannelData(0), (sample) => Math.round(sample * 32768)),
    });
    return start.call(this, when);
  };
}
