// Small helpers: elements, numbers, requests to the service.

export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value !== undefined && value !== false) made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

export const byId = (id) => document.getElementById(id);

export function table(headings, rows) {
  const cell = (name, content, number) => element(name, { class: number ? "number" : undefined }, content);
  const numbers = headings.map((heading) => heading.startsWith("#"));
  const head = headings.map((heading, at) => cell("th", heading.replace(/^#/, ""), numbers[at]));
  const body = rows.map((row) => element("tr", {}, ...row.map((content, at) => cell("td", content, numbers[at]))));
  const made = element("table", {}, element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...body));
  return element("div", { class: "scroll" }, made);
}

// How many values of each part of what requests tell the model knew.
export function understood(title, parts) {
  const rows = Object.entries(parts).map(([part, { known, unknown }]) => [part, whole(known), whole(unknown)]);
  return table([title, "#Known to the model", "#Unknown"], rows);
}

export const whole = (value) => Math.round(value).toLocaleString("en");

export function short(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  for (const [limit, sign] of [[1e9, " G"], [1e6, " M"], [1e4, " k"]]) {
    if (Math.abs(value) >= limit) return (value / (limit === 1e4 ? 1e3 : limit)).toFixed(1) + sign;
  }
  return value < 10 && value % 1 ? value.toFixed(1) : whole(value);
}

export function bytes(value) {
  for (const [limit, unit] of [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]]) {
    if (value >= limit) return `${(value / limit).toFixed(1)} ${unit}`;
  }
  return `${value} B`;
}

export function milliseconds(value) {
  if (value === null || value === undefined) return "–";
  return value >= 1000 ? `${(value / 1000).toFixed(1)} s` : `${value < 10 ? value.toFixed(1) : whole(value)} ms`;
}

const TOKEN = "mirach.admin-token";
export const token = () => sessionStorage.getItem(TOKEN) || "";
export const setToken = (value) => (value ? sessionStorage.setItem(TOKEN, value) : sessionStorage.removeItem(TOKEN));

// The response, whatever its status; throws only where there is none.
export function ask(address, { body, admin = false } = {}) {
  const headers = admin && token() ? { authorization: `Bearer ${token()}` } : {};
  if (body === undefined) return fetch(address, { headers, cache: "no-store" });
  return fetch(address, { method: "POST", body, headers: { ...headers, "content-type": "application/json" } });
}

export function problemText(problem) {
  const place = problem.path ? [" at ", element("code", {}, problem.path)] : [];
  return element("p", { class: "problem", role: "alert" }, problem.title || problem.type || "error", ...place,
    `: ${problem.detail || ""}`);
}
