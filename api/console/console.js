// The console: live figures, what an operator may ask for beside them, a form to try a request, and a form that asks why
// an ad is not in its answer.

import { ask, byId, element, problemText, setToken, table, token } from "./dom.js";
import { explanation } from "./explain.js";
import { lookAtSnapshots, watch } from "./figures.js";

const EXAMPLES = {
  "a user": { attributes: { "geo.country": "US", age: 34, audience: ["a1", "a2"] }, timezone: "America/New_York", k: 10 },
  "at most two per advertiser": { attributes: { "geo.country": "US", age: 34 }, k: 10, max_per: { advertiser_id: 2 } },
  "two pathways": {
    attributes: { "geo.country": "US", age: 34 },
    pathways: [
      { name: "main", k: 8 },
      { name: "fresh", k: 4, filter: { field: "age_s", between: [null, 3600] } },
    ],
  },
  "a user for the model": {
    attributes: { "geo.country": "US", age: 34 }, k: 10,
    user: { features: { cohort: { age: 34, gender: "female" }, history: [{ ad_id: "120210000000000000" }] } },
    context: { placement: "feed", device: "mobile" },
  },
  "a filter": {
    attributes: { "geo.country": "US" }, k: 10,
    filter: { all: [{ field: "bid", between: [0.5, null] }, { not: { field: "format", in: ["audio"] } }] },
  },
  "an OpenRTB BidRequest": {
    id: "1", imp: [{ id: "banner", banner: { format: [{ w: 300, h: 250 }, { w: 320, h: 50 }] }, bidfloor: 0.1 }],
    site: { domain: "example.com" }, device: { geo: { country: "USA" }, os: "Android" }, ext: { mirach: { k: 10 } },
  },
};

function showExample() {
  const name = byId("example").value;
  byId("body").value = JSON.stringify(EXAMPLES[name], null, 2);
  byId("route").value = name.includes("OpenRTB") ? "/v1/retrieve/openrtb" : "/v1/retrieve";
  setInvalid(false);
}

function setInvalid(invalid) {
  byId("body").setAttribute("aria-invalid", String(invalid));
}

function adButton(adId) {
  return element("button", { type: "button", class: "ad", title: "why?", onclick: () => { byId("ad-id").value = adId; explain(); } }, adId);
}

function answerParts(answer) {
  const rows = answer.results.map((result, at) => [String(at + 1), adButton(result.ad_id), result.advertiser_id ?? "–",
    result.campaign_id ?? "–", result.score.toFixed(4), result.value.toFixed(4), result.pathway]);
  const steps = Object.entries(answer.timings_ms).map(([step, spent]) => `${step} ${spent.toFixed(2)}`).join(" · ");
  return [
    element("p", {}, element("strong", {}, `${answer.results.length.toLocaleString("en")} of ${answer.eligible.toLocaleString("en")} eligible ads`),
      `, ${answer.indexed.toLocaleString("en")} in the index${answer.model ? `; model ${answer.model.name}` : ""}`),
    rows.length ? table(["#", "Ad", "Advertiser", "Campaign", "#Score", "#Value", "Pathway"], rows)
      : element("p", { class: "quiet" }, "No ad matches. Which part of an ad's targeting is false, the form below says."),
    element("p", { class: "quiet" }, `Milliseconds: ${steps}`),
    element("details", {}, element("summary", {}, "As JSON"), element("pre", {}, JSON.stringify(answer, null, 2))),
  ];
}

async function send() {
  const state = byId("request-state");
  state.textContent = "sent…";
  const began = performance.now();
  try {
    const response = await ask(byId("route").value, { body: byId("body").value });
    const answer = await response.json();
    const took = `${(performance.now() - began).toFixed(0)} ms from here, `;
    state.textContent = `${took}request id ${response.headers.get("x-request-id")}`;
    setInvalid(!response.ok && response.status < 500);
    byId("answer").replaceChildren(...(response.ok ? answerParts(answer) : [problemText(answer)]));
  } catch (error) {
    state.textContent = "";
    byId("answer").replaceChildren(problemText({ title: "the service cannot be reached", detail: String(error) }));
  }
}

async function explain() {
  const state = byId("why-state");
  const out = byId("why");
  if (byId("route").value !== "/v1/retrieve") {
    out.replaceChildren(problemText({ title: "only a request of /v1/retrieve can be explained", detail: "choose another example" }));
    return;
  }
  try {
    JSON.parse(byId("body").value);
  } catch (error) {
    out.replaceChildren(problemText({ title: "the request above is not JSON", detail: error.message }));
    return;
  }
  state.textContent = "asked…";
  try {
    const body = `{"ad_id":${JSON.stringify(byId("ad-id").value.trim())},"request":${byId("body").value}}`;
    const response = await ask("/v1/admin/explain", { body, admin: true });
    const explained = await response.json();
    out.replaceChildren(...(response.ok ? explanation(explained) : [problemText(explained)]));
    out.scrollIntoView({ block: "nearest" });
  } catch (error) {
    out.replaceChildren(problemText({ title: "the service cannot be reached", detail: String(error) }));
  }
  state.textContent = "";
}

// What an operator asks for: a request of an admin route, and under the form what came of it.
async function act(event, address, body, done) {
  event.preventDefault();
  const [button, state] = [event.target.querySelector("button"), byId(event.target.id.replace("-form", "-state"))];
  button.disabled = true;
  state.replaceChildren(element("p", { class: "quiet" }, "asked…"));
  try {
    const response = await ask(address, { body: JSON.stringify(body), admin: true });
    const answer = await response.json();
    state.replaceChildren(response.ok ? element("p", { class: "quiet" }, done(answer)) : problemText(answer));
  } catch (error) {
    state.replaceChildren(problemText({ title: "the service cannot be reached", detail: String(error) }));
  }
  button.disabled = false;
  lookAtSnapshots();
}

function onUnauthorized(refused) {
  const notice = byId("notice");
  notice.hidden = !refused;
  byId("token-form").hidden = !refused && !token();
  if (refused) notice.textContent = token() ? "The admin token is not the right one." : "Figures and explanations need the admin token.";
}

byId("example").append(...Object.keys(EXAMPLES).map((name) => element("option", { value: name }, name)));
byId("example").addEventListener("change", showExample);
byId("request-form").addEventListener("submit", (event) => { event.preventDefault(); send(); });
byId("why-form").addEventListener("submit", (event) => { event.preventDefault(); explain(); });
byId("switch-form").addEventListener("submit", (event) =>
  act(event, "/v1/admin/model", { path: byId("model-path").value.trim() }, () => "The switch has begun; how far it is stands above."));
byId("snapshot-form").addEventListener("submit", (event) =>
  act(event, "/v1/admin/snapshots", {}, (snapshot) => `Number ${snapshot.sequence} is written.`));
byId("body").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); send(); }
});
byId("token-form").addEventListener("submit", (event) => { event.preventDefault(); setToken(byId("token").value.trim()); });
byId("token").value = token();
byId("token-form").hidden = true;
showExample();
watch(onUnauthorized);
