// A deployment with its bridge, in processes of its own, for the tests in this folder.

import { spawn, execFile } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, mkdir, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { createInterface } from "node:readline";
import { promisify } from "node:util";

const run = promisify(execFile);

/** `omnizmq launch`, ready; its directories are its own. `sets`: as `--set` takes them. */
export async function launched(config, ...sets) {
  const home = await mkdtemp(`${tmpdir()}/oz-`);
  await mkdir(`${home}/run`, { mode: 0o700 });
  const env = { ...process.env, XDG_RUNTIME_DIR: `${home}/run`, XDG_STATE_HOME: `${home}/state` };
  const options = ["plugins.http.port=0", ...sets].flatMap((set) => ["--set", set]);
  const child = spawn("omnizmq", ["launch", "--config", config, "--json", ...options], {
    env,
    stdio: ["ignore", "pipe", "pipe"],
  });
  let said = "";
  child.stderr.on("data", (text) => (said += text));
  const ready = new Promise((is, isNot) => {
    createInterface(child.stdout).once("line", (line) => {
      const told = JSON.parse(line);
      if (told.plugins) is(told);
      else isNot(new Error(`the deployment did not start: ${line}`));
    });
    child.once("close", () => isNot(new Error(`the deployment did not start: ${said}`)));
  });
  try {
    return new Deployment(child, await ready, env, home);
  } catch (error) {
    child.kill();
    await rm(home, { recursive: true, force: true });
    throw error;
  }
}

class Deployment {
  constructor(child, ready, env, home) {
    this.child = child;
    this.env = env;
    this.home = home;
    this.name = ready.name;
    this.url = ready.plugins.http;
  }

  async omnizmq(...args) {
    const done = await run("omnizmq", args, { env: this.env, maxBuffer: 64 << 20 });
    return done.stdout;
  }

  async status() {
    return JSON.parse(await this.omnizmq("status", "--json", "--connect", this.name));
  }

  /** What `omnizmq trace` says of the request, once it has ended. */
  async trace(id) {
    return until(async () => {
      const said = await this.omnizmq("trace", id, "--json", "--connect", this.name).catch(() => "{}");
      const trace = JSON.parse(said);
      return trace.state === "ended" && trace;
    });
  }

  /** No request is left anywhere. */
  async idle() {
    return until(async () => {
      const status = await this.status();
      return ["live_requests", "bindings", "queued", "leftovers"].every((key) => status[key] === 0);
    });
  }

  /** Ends it, if it has not ended. */
  async stop() {
    if (this.child.exitCode === null && this.child.signalCode === null) {
      const exited = once(this.child, "exit");
      this.child.kill();
      await exited;
    }
    await rm(this.home, { recursive: true, force: true });
  }
}

/** What `look` gives once it is truthy; throws after `withinMs`. */
export async function until(look, withinMs = 60_000) {
  for (const end = Date.now() + withinMs; ; ) {
    const found = await look();
    if (found) return found;
    if (Date.now() > end) throw new Error(`waited in vain: ${look}`);
    await new Promise((wake) => setTimeout(wake, 50));
  }
}
