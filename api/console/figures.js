// The live figures: polled, turned into rates, drawn as tiles with a line of the last minutes. The panels below them are
// in panels.js.

import { ask, bytes, byId, element, milliseconds, short, whole } from "./dom.js";
import { drawIndex, drawIngest, drawModel, drawSnapshots } from "./panels.js";

const EVERY_MS = 2000;
const SNAPSHOTS_EVERY = 5; // rounds: the service looks at its disk for them
const KEPT = 150; // samples of a line: five minutes
const RETRIEVAL = /^\/v1\/retrieve/;

const histories = new Map();
let before = null;
let rounds = 0;

function spark(name, value) {
  const history = histories.get(name) || [];
  histories.set(name, history);
  if (Number.isFinite(value)) history.push(value);
  if (!history.length) history.push(0);
  if (history.length > KEPT) history.shift();
  const high = Math.max(...history, 1e-9);
  const step = 200 / Math.max(1, history.length - 1);
  const points = history.map((each, at) => `${(at * step).toFixed(1)},${(28 - (each / high) * 25).toFixed(1)}`);
  const space = "http://www.w3.org/2000/svg";
  const drawing = document.createElementNS(space, "svg");
  drawing.setAttribute("class", "spark");
  drawing.setAttribute("viewBox", "0 0 200 30");
  drawing.setAttribute("preserveAspectRatio", "none");
  drawing.setAttribute("aria-hidden", "true");
  for (const [kind, path] of [["under", `M0,30 L${points.join(" L")} L200,30 Z`], ["", `M${points.join(" L")}`]]) {
    const line = document.createElementNS(space, "path");
    line.setAttribute("d", path);
    if (kind) line.setAttribute("class", kind);
    drawing.append(line);
  }
  return drawing;
}

function tile(name, figure, beside, value) {
  return element("div", { class: "tile" }, element("div", { class: "name" }, name),
    element("div", { class: "figure" }, figure), element("div", { class: "beside" }, beside || ""),
    value === undefined ? null : spark(name, value));
}

// Prometheus text to [name, labels, value] lines of the names asked for.
function samples(text, prefix) {
  const found = [];
  for (const line of text.split("\n")) {
    if (!line.startsWith(prefix)) continue;
    const match = line.match(/^(\w+)(?:\{(.*)\})? (\S+)/);
    const labels = Object.fromEntries([...(match[2] || "").matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)].map((m) => [m[1], m[2]]));
    found.push([match[1], labels, Number(match[3])]);
  }
  return found;
}

function retrievalFigures(text) {
  let requests = 0, refused = 0;
  const within = new Map();
  for (const [name, labels, value] of samples(text, "mirach_http_request")) {
    if (!RETRIEVAL.test(labels.route || "")) continue;
    if (name === "mirach_http_requests_total") {
      requests += value;
      if (labels.status !== "200") refused += value;
    } else if (name === "mirach_http_request_seconds_bucket") {
      within.set(labels.le, (within.get(labels.le) || 0) + value);
    }
  }
  return { requests, refused, within };
}

// The quantile of what came between two scrapes, in ms: linear within its bucket.
function quantile(now, then, share) {
  const bounds = [...now.keys()].map((bound) => [bound === "+Inf" ? Infinity : Number(bound), bound]).sort((a, b) => a[0] - b[0]);
  const counts = bounds.map(([, bound]) => now.get(bound) - (then.get(bound) || 0));
  const total = counts[counts.length - 1];
  if (!total) return null;
  const at = counts.findIndex((count) => count >= share * total);
  const low = at ? bounds[at - 1][0] : 0;
  if (bounds[at][0] === Infinity) return low * 1000;
  const inside = (share * total - (at ? counts[at - 1] : 0)) / (counts[at] - (at ? counts[at - 1] : 0));
  return (low + (bounds[at][0] - low) * inside) * 1000;
}

function drawTiles(index, ingest, http, seconds) {
  const rate = (now, then) => (then === undefined ? null : Math.max(0, (now - then) / seconds));
  const requests = rate(http.requests, before?.http.requests);
  const p50 = before && quantile(http.within, before.http.within, 0.5);
  const p99 = before && quantile(http.within, before.http.within, 0.99);
  const events = rate(ingest.events, before?.ingest.events);
  const fresh = ingest.freshness.produce_time;
  const memory = Object.values(index.memory_bytes).reduce((sum, part) => sum + part, 0);
  const letters = ingest.dead_letters;
  const passes = before && index.engine.passes - before.index.engine.passes;
  const together = passes ? (index.engine.requests - before.index.engine.requests) / passes : null;
  byId("tiles").replaceChildren(
    tile("Ads", whole(index.ads), `${whole(index.live_now)} live now, ${whole(index.paused)} paused`, index.ads),
    tile("Targetings", whole(index.targetings), `${whole(index.targetings_with_program)} with a program`, index.targetings),
    tile("Requests per second", short(requests), `${whole(http.refused)} not 200 since the start`, requests),
    tile("Latency, p99", milliseconds(p99), `p50 ${milliseconds(p50)}`, p99),
    tile("Requests in one pass", together === null ? "–" : together.toFixed(1), `${index.engine.queued} waiting`, together),
    tile("Events per second", short(events), `${short(ingest.events)} since the start`, events),
    tile("Event to searchable, p99", milliseconds(fresh.p99_ms), `p50 ${milliseconds(fresh.p50_ms)}, last minutes`, fresh.p99_ms),
    tile("Lag", whole(ingest.lag), "offsets not applied yet", ingest.lag),
    tile("Index memory", bytes(memory), index.ads ? `${whole(memory / index.ads)} bytes per ad` : "", memory),
    tile("Dead letters", whole(letters.sent), `${whole(letters.pending)} waiting to be sent`, letters.sent),
  );
}

function say(state, words, kind) {
  const badge = byId("state");
  if (badge.textContent !== words) badge.textContent = words;
  badge.className = `badge ${kind}`;
  return state;
}

async function drawState() {
  const response = await ask("/readyz");
  const body = await response.json();
  if (response.ok) return say(true, "ready", "good");
  return say(false, `not ready: ${body.detail}`, "warn");
}

const admin = (name) => ask(`/v1/admin/${name}`, { admin: true });
const json = (response) => (response?.ok ? response.json() : null);

async function round(onUnauthorized) {
  await drawState();
  const asked = [admin("index"), admin("ingest"), admin("model"), ask("/metrics")];
  if (rounds % SNAPSHOTS_EVERY === 0) asked.push(admin("snapshots"));
  rounds += 1;
  const responses = await Promise.all(asked);
  onUnauthorized(responses[0].status === 401);
  const text = await responses.splice(3, 1)[0].text();
  const build = samples(text, "mirach_build")[0]?.[1];
  if (build) byId("build").textContent = `${build.version} · ${build.backend} · ${build.precision}`;
  const [index, ingest, model, snapshots] = await Promise.all(responses.map(json));
  if (model) drawModel(model);
  if (snapshots) drawSnapshots(snapshots);
  if (!index || !ingest) return;
  const now = { at: performance.now(), index, ingest, http: retrievalFigures(text) };
  drawTiles(index, ingest, now.http, before ? (now.at - before.at) / 1000 : 1);
  drawIngest(ingest);
  drawIndex(index);
  before = now;
}

// The next round looks at the snapshots too.
export function lookAtSnapshots() {
  rounds = 0;
}

// Polls for as long as the page is open; not while nobody sees it.
export async function watch(onUnauthorized) {
  for (;;) {
    if (!document.hidden) {
      try {
        await round(onUnauthorized);
      } catch (error) {
        say(false, "the service cannot be reached", "bad");
        before = null;
      }
    }
    await new Promise((resolve) => setTimeout(resolve, EVERY_MS));
  }
}
