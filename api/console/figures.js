// The live figures: polled, turned into rates, drawn as tiles with a line of the last minutes.

import { ask, bytes, byId, element, milliseconds, short, table, whole } from "./dom.js";

const EVERY_MS = 2000;
const KEPT = 150; // samples of a line: five minutes
const RETRIEVAL = /^\/v1\/retrieve/;

const histories = new Map();
let before = null;

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

function drawIngest(ingest) {
  const marks = [...Object.entries(ingest.problems).map(([what, detail]) => `${what}: ${detail}`),
    ...ingest.gaps.map((gap) => `gap: ${gap.detail}`)];
  const problems = marks.map((text) => element("p", { class: "notice" }, text));
  const partitions = Object.entries(ingest.partitions).map(([number, state]) =>
    [number, whole(state.position), whole(Math.max(state.end, state.position)), whole(state.lag), state.held ? "held" : ""]);
  const outcomes = Object.entries(ingest.outcomes).filter(([, count]) => count).map(([name, count]) =>
    [name.replaceAll("_", " "), whole(count)]);
  const faults = Object.entries(ingest.faults).map(([code, count]) => [element("code", {}, code), whole(count)]);
  byId("ingest").replaceChildren(...problems,
    element("p", { class: "quiet" }, "Topic ", element("code", {}, ingest.topic)),
    table(["Partition", "#Position", "#End", "#Lag", ""], partitions),
    element("h3", {}, "What became of the events"), table(["Outcome", "#Events"], outcomes),
    ...(faults.length ? [element("h3", {}, "Bad events by code"), table(["Code", "#Events"], faults)] : []));
}

function bars(parts, shown) {
  const high = Math.max(...parts.map(([, , share]) => share), 1e-9);
  const made = element("div", { class: "bars" });
  for (const [name, value, share] of parts) {
    const fill = element("span");
    fill.style.width = `${Math.max(0, Math.min(100, (share / (shown || high)) * 100))}%`;
    made.append(element("span", {}, name), element("span", { class: "bar" }, fill), element("span", { class: "number" }, value));
  }
  return made;
}

function drawIndex(index) {
  const memory = Object.entries(index.memory_bytes).filter(([, size]) => size).sort((a, b) => b[1] - a[1])
    .map(([part, size]) => [part.replaceAll("_", " "), bytes(size), size]);
  const used = [["ads", index.ads], ["targetings", index.targetings], ["terms", index.terms],
    ["expired_versions", index.expired_versions]].map(([name, count]) =>
    [name.replaceAll("_", " "), `${short(count)} of ${short(index.capacity[name])}`, count / index.capacity[name]]);
  byId("index").replaceChildren(
    element("p", { class: "quiet" }, `${index.precision}, D = ${index.dim}, G = ${index.gate_dim}, on ${index.device}; `
      + `${whole(index.terms)} attribute values, ${whole(index.rows)} with a row of bits, ${whole(index.lists)} with a list; `
      + `${whole(index.zero_embeddings)} ads without a vector`),
    element("h3", {}, "Memory by part"), bars(memory),
    element("h3", {}, "Capacity used"), bars(used, 1));
}

function drawModel(model) {
  const { active, switching, last_failure: failure, user_towers: users, ad_tower: ads } = model;
  const parts = [element("p", {}, active
    ? `${active.name}, fingerprint ${active.fingerprint}: D = ${active.dim}, G = ${active.gate_dim}, E = ${active.experts}`
    : "None: ads and requests bring their own vectors.")];
  if (active && active.path !== model.at_next_start) {
    parts.push(element("p", { class: "notice" }, `The setting model says ${model.at_next_start ?? "none"}: the next start takes that one.`));
  }
  if (switching) {
    const to = switching.model ? switching.model.name : switching.path;
    parts.push(element("p", {}, `Switching to ${to}: ${switching.step}, ${whole(switching.embedded)} ads embedded of ${whole(switching.ads)}, `
      + `${whole(switching.passes)} passes, ${switching.seconds.toFixed(0)} s`),
    bars([["ads", `${whole(switching.embedded)} of ${whole(switching.ads)}`, switching.embedded / Math.max(1, switching.ads)]], 1));
  }
  if (failure) parts.push(element("p", { class: "notice" }, `The last switch, to ${failure.path}, failed at ${failure.at}: ${failure.reason}`));
  if (active) {
    const each = (seconds, count) => (count ? milliseconds((seconds / count) * 1000) : "–");
    parts.push(table(["Towers", "#Asked for", "#Batches", "#Per batch", "#Time of a batch"], [
      ["users", whole(users.users), whole(users.batches), users.batches ? (users.users / users.batches).toFixed(1) : "–", each(users.seconds, users.batches)],
      ["ads", whole(ads.ads), whole(ads.batches), ads.batches ? (ads.ads / ads.batches).toFixed(1) : "–", each(ads.seconds, ads.batches)],
    ]));
  }
  byId("model").replaceChildren(...parts);
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

async function round(onUnauthorized) {
  await drawState();
  const [index, ingest, model, metrics] = await Promise.all([
    ask("/v1/admin/index", { admin: true }), ask("/v1/admin/ingest", { admin: true }), ask("/v1/admin/model", { admin: true }),
    ask("/metrics")]);
  onUnauthorized(index.status === 401);
  const text = await metrics.text();
  const build = samples(text, "mirach_build")[0]?.[1];
  if (build) byId("build").textContent = `${build.version} · ${build.backend} · ${build.precision}`;
  if (!index.ok || !ingest.ok) return;
  const now = { at: performance.now(), index: await index.json(), ingest: await ingest.json(), http: retrievalFigures(text) };
  drawTiles(now.index, now.ingest, now.http, before ? (now.at - before.at) / 1000 : 1);
  drawIngest(now.ingest);
  drawIndex(now.index);
  if (model.ok) drawModel(await model.json());
  before = now;
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
