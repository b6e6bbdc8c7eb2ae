// The panels below the tiles: ingest, index, model, snapshots, each drawn whole from an answer of its admin route.

import { bytes, byId, element, milliseconds, short, table, understood, whole } from "./dom.js";

const NO_LIMIT = 2 ** 62;
const CACHES = ["cached_targetings", "rows"]; // to be full is their normal state
const SHOWN_LIMITS = 5;

const notice = (text) => element("p", { class: "notice" }, text);
const words = (name) => name.replaceAll("_", " ");

// [name, content] pairs, as a list of terms; those without content are left out.
function facts(pairs) {
  const made = element("dl", { class: "facts" });
  for (const [name, content] of pairs) if (content) made.append(element("dt", {}, name), element("dd", {}, content));
  return made;
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

function duration(seconds) {
  for (const [limit, unit] of [[86400, "d"], [3600, "h"], [60, "min"]]) {
    if (seconds >= 2 * limit) return `${whole(seconds / limit)} ${unit}`;
  }
  return `${whole(seconds)} s`;
}

const moment = (iso) => iso.slice(0, 19).replace("T", " ");

export function drawIngest(ingest) {
  const marks = [...Object.entries(ingest.problems).map(([what, detail]) => `${words(what)}: ${detail}`),
    ...ingest.gaps.map((gap) => `gap: ${gap.detail}`)];
  const partitions = Object.entries(ingest.partitions).map(([number, state]) =>
    [number, whole(state.position), whole(Math.max(state.end, state.position)), whole(state.lag), state.held ? "held" : ""]);
  const outcomes = Object.entries(ingest.outcomes).filter(([, count]) => count).map(([name, count]) => [words(name), whole(count)]);
  const faults = Object.entries(ingest.faults).map(([code, count]) => [element("code", {}, code), whole(count)]);
  byId("ingest").replaceChildren(...marks.map(notice),
    element("p", { class: "quiet" }, "Topic ", element("code", {}, ingest.topic)),
    table(["Partition", "#Position", "#End", "#Lag", ""], partitions),
    element("h3", {}, "What became of the events"), table(["Outcome", "#Events"], outcomes),
    ...(faults.length ? [element("h3", {}, "Bad events by code"), table(["Code", "#Events"], faults)] : []));
}

const bySize = (parts) => Object.entries(parts).filter(([, size]) => size).sort((a, b) => b[1] - a[1])
  .map(([part, size]) => [words(part), bytes(size), size]);

function limitsOf(limits) {
  const shown = Object.entries(limits).filter(([, { limit }]) => limit < NO_LIMIT).map(([name, { in_use: used, limit }]) =>
    ({ name, share: used / limit, row: [words(name), `${short(used)} of ${short(limit)}`, used / limit] }));
  shown.sort((a, b) => CACHES.includes(a.name) - CACHES.includes(b.name) || b.share - a.share);
  return shown.map(({ row }) => row);
}

export function drawIndex(index) {
  const open = byId("index").querySelector("details")?.open;
  const limits = limitsOf(index.limits);
  const device = bySize(index.device_memory_bytes);
  byId("index").replaceChildren(
    facts([
      ["Backend", index.backend.toUpperCase() === index.device ? index.device : `${index.backend}, ${index.device}`],
      ["Vectors", `${index.precision}, D = ${index.dim}, G = ${index.gate_dim}; ${whole(index.zero_embeddings)} ads have none`],
      ["Attribute values", `${whole(index.terms)}: ${whole(index.rows)} as a row of bits, ${whole(index.lists)} as a list`],
    ]),
    element("h3", {}, "Memory by part"), bars(bySize(index.memory_bytes)),
    ...(device.length ? [element("h3", {}, "Memory of the GPU by part"), bars(device)] : []),
    element("h3", {}, "Limits, the nearest first"), bars(limits.slice(0, SHOWN_LIMITS), 1),
    element("details", { open }, element("summary", {}, `The other ${limits.length - SHOWN_LIMITS}`), bars(limits.slice(SHOWN_LIMITS), 1)));
}

function switchOf(switching) {
  const to = switching.model ? `${switching.model.name} in ${switching.path}` : switching.path;
  const again = Math.max(0, switching.embedded - switching.ads);
  const embedded = `${whole(Math.min(switching.embedded, switching.ads))} of ${whole(switching.ads)}`;
  return [
    element("h3", {}, "A switch is going on"),
    facts([
      ["To", to],
      ["Step", `${switching.step}, for ${duration(switching.seconds)}; the model above answers until the end`],
      ["Memory", switching.bytes ? `${bytes(switching.bytes)} for the new model and its vectors` : null],
      ["Done again", again ? `${whole(again)} ads that events have touched meanwhile, in ${whole(switching.passes)} passes` : null],
    ]),
    switching.ads ? bars([["Ads embedded", embedded, switching.embedded / switching.ads]], 1) : "",
  ];
}

export function drawModel(model) {
  const { active, last_failure: failure, user_towers: users, ad_tower: ads } = model;
  const parts = [];
  if ((active ? active.path : null) !== model.at_next_start) {
    parts.push(notice(`The next start takes ${model.at_next_start ?? "no model"}: set MIRACH_MODEL to the folder of the model in use to keep it.`));
  }
  if (failure) parts.push(notice(`The switch to ${failure.path} failed at ${moment(failure.at)} and changed nothing: ${failure.reason}`));
  if (ads.failed) parts.push(notice(`The model failed on ${whole(ads.failed)} ads: bad events, code internal; the log says why.`));
  const tried = model.switched + model.failed + model.refused;
  parts.push(!active ? element("p", {}, "None: ads and requests bring their own vectors.") : facts([
    ["In use", element("strong", {}, active.name)],
    ["Fingerprint", element("code", {}, active.fingerprint)],
    ["Folder", element("code", {}, active.path)],
    ["Shape", `D = ${active.dim}, G = ${active.gate_dim}, E = ${active.experts}`],
    ["Switches", tried ? `${whole(model.switched)} done, ${whole(model.failed)} failed, ${whole(model.refused)} refused at once` : "none since the start"],
  ]));
  if (model.switching) parts.push(...switchOf(model.switching));
  if (active) {
    const row = (name, asked, tower) => [name, whole(asked), whole(tower.batches), tower.batches ? (asked / tower.batches).toFixed(1) : "–",
      tower.batches ? milliseconds((tower.seconds / tower.batches) * 1000) : "–"];
    parts.push(table(["Towers", "#Asked for", "#Batches", "#Per batch", "#Time of a batch"],
      [row("users", users.users, users), row("ads", ads.ads, ads)]));
    parts.push(understood("Told by requests", users.understood));
  }
  byId("model").replaceChildren(...parts);
}

function lastOf(snapshots) {
  const last = snapshots.last;
  if (!last) return snapshots.age_s === null ? "none yet of this index" : null;
  return `number ${last.sequence}: ${bytes(last.bytes)}, of them new ${bytes(last.bytes_written)}; written in `
    + `${milliseconds(last.seconds * 1000)}, the engine waited ${milliseconds(last.pause_ms)}`;
}

export function drawSnapshots(snapshots) {
  const marks = snapshots.problem ? [notice(`Trouble at the newest try: ${snapshots.problem}`)] : [];
  marks.push(...snapshots.passed_over.map((each) => notice(`Number ${each.sequence} was passed over at the start: ${each.reason}`)));
  const every = snapshots.interval_s ? `every ${duration(snapshots.interval_s)} where something is new` : "only on request and at an orderly stop";
  const listed = snapshots.snapshots ?? [];
  marks.push(...listed.filter((each) => each.damaged).map((each) => notice(`Number ${each.sequence} is damaged: ${each.damaged}`)));
  const rows = listed.filter((each) => !each.damaged).map((each) => [String(each.sequence), moment(each.created), whole(each.ads),
    bytes(each.bytes), element("code", {}, each.identity.model_fingerprint?.slice(0, 8) ?? "–")]);
  byId("snapshots").replaceChildren(...marks,
    facts([
      ["Now", snapshots.restoring ?? (snapshots.writing ? "one is being written" : null)],
      ["Age of the newest", snapshots.age_s === null ? null : duration(snapshots.age_s)],
      ["Last", lastOf(snapshots)],
      ["Written", `${every}; ${whole(snapshots.kept)} are kept`],
      ["At the start", snapshots.restored === null ? "none was restored" : `number ${snapshots.restored} was restored in ${milliseconds(snapshots.restore_s * 1000)}`],
      ["Since then", `${whole(snapshots.written)} written, ${bytes(snapshots.bytes_written)}; ${whole(snapshots.failed)} failed, ${whole(snapshots.skipped)} put off`],
      ["Folder", element("code", {}, snapshots.data_dir)],
    ]),
    ...(rows.length ? [table(["#No.", "#Made (UTC)", "#Ads", "#Size", "Model"], rows)] : []));
}
