// Everything around the plots, and the keys.
const byId = (id) => document.getElementById(id);
byId("title").textContent = data.title;
document.title = `${data.title}: poolgrad memory report`;
byId("subtitle").textContent = data.subtitle;

for (const [name, value] of data.tiles) {
  const tile = element("div");
  tile.append(element("b", value), element("span", name));
  byId("tiles").append(tile);
}

if (data.notes.length) {
  byId("notes").hidden = false;
  byId("notes").querySelector("ul").append(...data.notes.map((note) => element("li", note)));
}

const colourChoice = byId("colour");
for (const name of Object.keys(colourings)) colourChoice.append(new Option(name, name));
colourChoice.value = data.sampled.length > 1 ? "category" : data.locations.length > 2 ? "call site"
  : data.scopes.length > 2 ? "scope" : "size";
colourChoice.addEventListener("change", () => recolour(colourChoice.value));

const paintLegends = () => {
  fillLegend("memory-legend", data.sampled.map((name) => [rgb(categoryColour(name)), name])
    .concat(data.has_pages ? [[css("--cached-area"), "reserved beyond requested", true], [css("--reserved"), "reserved", false, true]] : [])
    .concat(marks.some((m) => m.kind === "stage") ? [[css("--stage"), "▾ reclaim stage"]] : [])
    .concat(marks.some((m) => m.kind === "oom") ? [[css("--oom"), "out of memory"]] : [])
    .concat(steps.length ? [[css("--step"), "step begins", false, true]] : []));
  fillLegend("fragmentation-legend", fragmentations.map(([name, colour]) => [rgb(shown(parse(colour))), name, false, true]));
  recolour(colourChoice.value);
};

const setTheme = (theme) => {
  document.documentElement.dataset.theme = theme;
  byId("theme").textContent = theme === "dark" ? "light" : "dark";
  paintLegends();
};
const preference = matchMedia("(prefers-color-scheme: dark)");
const hash = location.hash.slice(1).split(",");
let chosen = hash.find((word) => word === "dark" || word === "light");
const toggleTheme = () => setTheme((chosen = dark() ? "light" : "dark"));
byId("theme").addEventListener("click", toggleTheme);
preference.addEventListener("change", () => chosen || setTheme(preference.matches ? "dark" : "light"));

const setAxis = (axis) => {
  // The same part of the trace stays in view.
  const from = horizontal(), low = Math.max(0, upTo(from, view.low)), high = Math.max(0, upTo(from, view.high));
  view.axis = axis;
  for (const button of document.querySelectorAll("[data-axis]")) button.setAttribute("aria-pressed", button.dataset.axis === axis);
  show(horizontal()[low] ?? 0, horizontal()[high] ?? 1);
};
for (const button of document.querySelectorAll("[data-axis]")) button.addEventListener("click", () => setAxis(button.dataset.axis));
byId("reset").addEventListener("click", showAll);

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.altKey || event.metaKey || event.target.tagName === "SELECT") return;
  const width = view.high - view.low, height = view.top - view.bottom, middle = pointer?.value ?? (view.low + view.high) / 2;
  const keys = {
    ArrowLeft: () => show(view.low - width / 8, view.high - width / 8),
    ArrowRight: () => show(view.low + width / 8, view.high + width / 8),
    "+": () => zoom(0.7, middle), "=": () => zoom(0.7, middle), "-": () => zoom(1 / 0.7, middle),
    0: showAll, Home: showAll, t: toggleTheme, e: () => setAxis(view.axis === "time" ? "events" : "time"),
  };
  if (event.shiftKey) {
    keys.ArrowUp = () => showAddresses(view.bottom + height / 8, view.top + height / 8);
    keys.ArrowDown = () => showAddresses(view.bottom - height / 8, view.top - height / 8);
  }
  const act = keys[event.key];
  if (!act) return;
  event.preventDefault();
  act();
});
addEventListener("resize", redraw);

setTheme(chosen ?? (preference.matches ? "dark" : "light"));
view.high = lastMoment();
setAxis(hash.includes("events") ? "events" : hash.includes("time") ? "time" : view.axis);
