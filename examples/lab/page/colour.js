// Colours: fixed for categories, by rank for names, a ramp for amounts.
const categoryColours = {
  parameter: "#3f74bd", gradient: "#e0862a", optimizer_state: "#8b62b8", activation: "#419c62", input: "#bda22b",
  workspace: "#71808f", unknown: "#9299a3", query: "#22a39c", key: "#167d90", value: "#63bf90", output: "#7c9630",
  scores: "#cf4357", weights: "#e5799a", temp: "#a6744b", comm: "#bf5bb1", mask: "#66712f", cache: "#4bb0e6",
};
const nameColours = ["#3f74bd", "#e0862a", "#419c62", "#cf4357", "#8b62b8", "#a6744b", "#e5799a", "#167d90", "#bda22b",
  "#4bb0e6", "#7c9630"];
const ramp = [[59, 76, 160], [46, 132, 165], [62, 170, 128], [164, 197, 74], [243, 190, 58], [222, 96, 54]];

const dark = () => document.documentElement.dataset.theme === "dark";
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const parse = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
const rgb = (c) => `rgb(${c.map(Math.round).join(",")})`;
// Dark pages take the same hues, a little lighter.
const shown = (c) => (dark() ? c.map((v) => v + (255 - v) * 0.16) : c);
const inkOn = (c) => (0.299 * c[0] + 0.587 * c[1] + 0.114 * c[2] > 150 ? "#101820" : "#ffffff");

const rampColour = (fraction) => {
  const at = Math.min(Math.max(fraction, 0), 1) * (ramp.length - 1), low = Math.min(Math.floor(at), ramp.length - 2);
  return ramp[low].map((v, i) => v + (ramp[low + 1][i] - v) * (at - low));
};

const lastPart = (scope) => scope || "(no scope)";
const lifetimeOf = (i) => moments.time[blocks.end[i]] - moments.time[blocks.begin[i]];

// Each coloring: the key of a block, and the name of the key or, for amounts, its format.
const colourings = {
  category: { key: (i) => blocks.category[i], name: (key) => data.categories[key] },
  scope: { key: (i) => blocks.scope[i], name: (key) => lastPart(data.scopes[key]) },
  "call site": { key: (i) => blocks.location[i], name: (key) => data.locations[key] || "(unknown)" },
  stream: { key: (i) => blocks.stream[i], name: (key) => `stream ${data.streams[key] ?? key}` },
  size: { amount: (i) => blocks.size[i], write: formatBytes },
  lifetime: { amount: lifetimeOf, write: formatTime },
};

// { colour: index into `palette` of each block, palette: [[r, g, b]], legend: [[colour, text]] }
const colourBlocks = (how) => {
  const count = blocks.begin.length, way = colourings[how], colour = new Uint8Array(count);
  if (way.amount) {
    let low = Infinity, high = 0;
    for (let i = 0; i < count; ++i) {
      const amount = Math.max(1, way.amount(i));
      low = Math.min(low, amount);
      high = Math.max(high, amount);
    }
    const levels = 24, span = Math.log(high / low) || 1;
    for (let i = 0; i < count; ++i)
      colour[i] = Math.round((Math.log(Math.max(1, way.amount(i)) / low) / span) * (levels - 1));
    const palette = Array.from({ length: levels }, (_, i) => rampColour(i / (levels - 1)));
    const legend = [0, 0.25, 0.5, 0.75, 1].map((f) => [rampColour(f), way.write(low * Math.exp(span * f))]);
    return { colour, palette, legend: count ? legend : [] };
  }
  const weight = new Map();
  for (let i = 0; i < count; ++i) {
    const key = way.key(i);
    weight.set(key, (weight.get(key) ?? 0) + blocks.size[i] * Math.max(1, blocks.end[i] - blocks.begin[i]));
  }
  const keys = [...weight.keys()].sort((a, b) => weight.get(b) - weight.get(a));
  const fixed = how === "category";
  const named = fixed ? keys : keys.slice(0, nameColours.length);
  const palette = named.map((key, rank) => parse(fixed ? categoryColours[way.name(key)] ?? "#9299a3" : nameColours[rank]));
  palette.push([142, 150, 160]);  // all others
  const index = new Map(named.map((key, rank) => [key, rank]));
  for (let i = 0; i < count; ++i) colour[i] = index.get(way.key(i)) ?? named.length;
  const legend = named.map((key, rank) => [palette[rank], way.name(key)]);
  if (keys.length > named.length) legend.push([palette[named.length], `${keys.length - named.length} others`]);
  return { colour, palette, legend };
};
