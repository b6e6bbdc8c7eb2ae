// Why an ad is, or is not, in an answer: the explanation as a tree whose deciding parts stand out.

import { element, table, understood } from "./dom.js";

const list = (value) => (Array.isArray(value) ? value : [value]).map((each) => shown(each)).join(", ");

function shown(value) {
  if (value === null || value === undefined) return "–";
  if (typeof value === "object") return Object.values(value).join(", ");
  return String(value);
}

function leafText(node, key) {
  const name = element("span", { class: "mono" }, node[key]);
  if ("in" in node) {
    const many = node.in.length > 12 ? ` … ${node.in.length} values` : "";
    return [name, element("span", { class: "word" }, "in"), element("span", {}, list(node.in.slice(0, 12)) + many)];
  }
  if ("between" in node) {
    const [low, high] = node.between;
    const [word, bounds] = low === null && high === null ? ["has", "any value"]
      : low === null ? ["at most", shown(high)] : high === null ? ["at least", shown(low)]
      : ["between", `${shown(low)} and ${shown(high)}`];
    return [name, element("span", { class: "word" }, word), element("span", {}, bounds)];
  }
  if ("within" in node) {
    const { lat, lon, radius_km: radius } = node.within;
    return [name, element("span", { class: "word" }, "within"), element("span", {}, `${radius} km of ${lat}, ${lon}`)];
  }
  return [name, element("span", { class: "word" }, "is"), element("span", {}, shown(node.is))];
}

function had(node, key) {
  const whose = key === "attr" ? "the request" : "the ad";
  if (node.value === null || node.value === undefined) return `${whose} has none`;
  const count = node.value_count ? ` … ${node.value_count} values` : "";
  return `${whose} has ${list(node.value)}${count}`;
}

const WORDS = { all: "all of", any: "any of", not: "not" };

// `wanted`: what this node should have been; a node that is not what was wanted is to blame.
function branch(node, key, wanted) {
  const blamed = wanted !== null && node.result !== wanted;
  const sign = element("span", { class: "sign", "aria-label": node.result ? "true" : "false" }, node.result ? "✓" : "✗");
  const kind = ["all", "any", "not"].find((word) => word in node);
  const classes = `node ${node.result ? "is-true" : "is-false"}`;
  if (!kind) {
    return element("li", {}, element("span", { class: blamed ? `${classes} to-blame` : classes }, sign,
      ...leafText(node, key), element("span", { class: "had" }, `— ${had(node, key)}`)));
  }
  const children = kind === "not" ? [node.not] : node[kind];
  const below = !blamed ? null : kind === "not" ? !wanted : wanted;
  const nothing = children.length ? "" : kind === "all" ? " nothing: matches every request" : " nothing: never true";
  return element("li", {}, element("span", { class: classes }, sign, element("span", { class: "word" }, WORDS[kind] + nothing)),
    element("ul", {}, ...children.map((child) => branch(child, key, below))));
}

const tree = (node, key) => element("ul", { class: "tree" }, branch(node, key, true));

function check(good, words) {
  return element("li", { class: `mark ${good ? "good" : "bad"}` }, `${good ? "✓" : "✗"} ${words}`);
}

function verdict(explained) {
  const ranked = explained.pathways.filter((pathway) => pathway.rank !== null);
  if (ranked.length) {
    return element("p", { class: "verdict" }, element("span", { class: "mark good" }, "in the answer"), " ",
      ranked.map((pathway) => `rank ${pathway.rank} of pathway ${pathway.name}`).join(", "));
  }
  const filtered = explained.filter && !explained.filter.result;
  const passing = explained.pathways.filter((pathway) => !pathway.filter || pathway.filter.result);
  const reason = !explained.eligibility.eligible ? "it may not be served now"
    : !explained.eligible ? "its targeting does not match the request"
    : explained.excluded ? "the request excludes it"
    : filtered ? "the request's filter is false of it"
    : !passing.length ? "no pathway's filter is true of it"
    : "better ads, or a cap, leave no room for it";
  return element("p", { class: "verdict" }, element("span", { class: "mark bad" }, "not in the answer"), ` ${reason}`);
}

const SERVED = { active: "active", started: "has started", not_ended: "has not ended", scheduled: "within its schedule" };

export function explanation(explained) {
  const { eligibility } = explained;
  const checks = Object.entries(SERVED).map(([name, words]) => check(eligibility[name], words));
  checks.push(check(!explained.excluded, "not excluded by the request"));
  const parts = [verdict(explained), element("ul", { class: "checks" }, ...checks),
    element("h3", {}, "Targeting, asked of the request"), tree(explained.targeting, "attr")];
  if (explained.filter) parts.push(element("h3", {}, "The request's filter, asked of the ad"), tree(explained.filter, "field"));
  for (const pathway of explained.pathways.filter((each) => each.filter)) {
    parts.push(element("h3", {}, `Filter of pathway ${pathway.name}, asked of the ad`), tree(pathway.filter, "field"));
  }
  parts.push(element("h3", {}, "Score"), table(["Pathway", "#Bid", "#Score", "#Value", "#Rank"], explained.pathways.map((pathway) =>
    [pathway.name, pathway.bid.toFixed(4), pathway.score.toFixed(4), pathway.value.toFixed(4),
      pathway.rank === null ? "not in it" : String(pathway.rank)])));
  for (const pathway of explained.pathways.filter((each) => each.experts)) {
    const rows = pathway.experts.map((expert, at) =>
      [String(at), expert.gate_logit.toFixed(4), expert.weight.toFixed(4), expert.dot.toFixed(4)]);
    const said = `y = ${pathway.temperature.toFixed(4)} × sum of weight × dot product + ${pathway.bias.toFixed(4)} = `
      + `${pathway.y.toFixed(4)}; the ${pathway.route} experts of largest gate logit take part`;
    parts.push(element("details", {}, element("summary", {}, `Experts of pathway ${pathway.name}`),
      element("p", { class: "quiet" }, said), table(["Expert", "#Gate logit", "#Weight", "#Dot product"], rows),
      pathway.understood ? understood("Told by the request", pathway.understood) : null));
  }
  parts.push(element("details", {}, element("summary", {}, "As JSON"), element("pre", {}, JSON.stringify(explained, null, 2))));
  return parts;
}
