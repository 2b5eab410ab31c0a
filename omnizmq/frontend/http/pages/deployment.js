// The page that shows the deployment: replicas, requests, rings.

import { get, keepKey, key } from "/pages/api.js";
import { at, complain, element, pause, row, time } from "/pages/dom.js";

const EVERY_MS = 1000;
const LATENCIES = { first_text_s: "to its first text", first_audio_s: "to its first sound", duration_s: "to its end" };

async function refresh() {
  if (document.hidden) return;
  try {
    show(await get("/v1/deployment"));
    complain(null);
    at("locked").hidden = true;
    at("board").classList.remove("stale");
  } catch (problem) {
    complain(problem);
    at("board").classList.add("stale");
    at("again").textContent = at("since").textContent && "no answer since";
    if (problem.status === 401) at("locked").hidden = false;
  }
}

function show(status) {
  at("name").textContent = status.name;
  at("now").replaceChildren(...figures(status));
  const { latency } = status.http;
  at("latency").replaceChildren(...Object.entries(LATENCIES).map(([key, name]) => spread(name, latency[key])));
  at("of").textContent = `Of the newest requests that were answered here to their end: ${latency.requests}.`;
  const replicas = Object.values(status.stages).flatMap((stage) => stage.replicas);
  at("replicas").replaceChildren(...replicas.map(replica));
  at("slowest").replaceChildren(...status.slowest.map(request));
  at("none").hidden = status.slowest.length > 0;
  at("rings").replaceChildren(...status.rings.map(ring));
  at("since").textContent = `As of ${new Date().toLocaleTimeString()}, `;
  at("again").textContent = "asked again every second";
}

function figures(status) {
  const { requests, finished, aborted, failed, refused } = status.counters;
  return Object.entries({
    State: status.ready ? "ready" : status.state === "running" ? "not ready" : status.state,
    Live: status.live_requests,
    Queued: status.queued,
    Paused: status.paused,
    Taken: requests,
    Finished: finished,
    Aborted: aborted,
    Failed: failed,
    Refused: refused,
  }).map(([name, value]) => {
    const group = element("div");
    group.append(element("dt", "", name), element("dd", "", String(value)));
    return group;
  });
}

function spread(name, times) {
  const told = (seconds) => (seconds === undefined ? "–" : time(1000 * seconds));
  return row(name, [number(told(times?.p50)), number(told(times?.p95))]);
}

function replica(one) {
  return row(one.id, [
    element("td", one.state === "ready" ? "good" : "wrong", one.drained ? `${one.state} (drained)` : one.state),
    number(`${one.active} of ${one.capacity}`),
    number(one.inflight),
    element("td", "", one.engine),
    number(one.restarts),
    number(one.silent ? "silent" : `${one.heartbeat_age_s.toFixed(1)} s ago`),
  ]);
}

function request(one) {
  return row(one.request_id, [element("td", "", one.phase), number(`${one.age_s.toFixed(1)} s`), number(one.attempt)]);
}

function ring(one) {
  const meter = element("meter");
  meter.max = one.capacity_bytes;
  meter.value = one.used_bytes;
  meter.setAttribute("aria-label", `${one.edge} of ${one.replica}`);
  const used = element("td");
  used.append(meter);
  const bytes = number(`${mib(one.used_bytes)} of ${mib(one.capacity_bytes)} MiB`);
  const beside = number(`${mib(one.spilled_bytes)} MiB`);
  return row(one.edge.replace("->", " → "), [element("td", "", one.replica), used, bytes, beside]);
}

function number(value) {
  return element("td", "number", String(value));
}

function mib(bytes) {
  return (bytes / (1 << 20)).toFixed(bytes && bytes < 10 << 20 ? 2 : 0);
}

at("locked").addEventListener("submit", (event) => {
  event.preventDefault();
  keepKey(at("key").value.trim());
  refresh();
});
at("key").value = key();
document.addEventListener("visibilitychange", refresh);
for (;;) {
  await refresh();
  await pause(EVERY_MS);
}
