// The three plots.
const when = (moment) => {
  const event = moments.event[moment], n = data.events;
  if (event === 0) return "before the trace";
  if (event > n) return "beyond the trace";
  return `event ${formatCount(event)}, ${formatTime(moments.time[moment])}`;
};
const stepOf = (moment) => upTo(steps, moment);

// Calls f(x, index) for the samples in view, and the last one before them; of several on one pixel for the fullest.
const eachSample = (plot, f) => {
  const h = horizontal(), value = (moment) => h[moment], count = samples.moment.length;
  const first = Math.max(0, upTo(samples.moment, view.low, value));
  const last = Math.min(count - 1, upTo(samples.moment, view.high, value) + 1);
  for (let i = first; i <= last; ++i) {
    const x = plot.x(h[samples.moment[i]]), pixel = Math.floor(x);
    let fullest = i;
    while (i < last && Math.floor(plot.x(h[samples.moment[i + 1]])) === pixel)
      if (requestedAt(++i) > requestedAt(fullest)) fullest = i;
    f(fullest === i ? x : pixel, fullest);
    if (fullest !== i) f(pixel + 0.9, i);
  }
  if (last === count - 1 && last >= 0) f(plot.x(lastMoment()), last);
};
const traceSteps = (plot, c, values) => {
  let before;
  eachSample(plot, (x, i) => {
    const y = plot.y(values(i));
    if (before === undefined) c.moveTo(x, y);
    else {
      c.lineTo(x, before);
      c.lineTo(x, y);
    }
    before = y;
  });
};
const fillSteps = (plot, c, values, colour) => {
  c.beginPath();
  traceSteps(plot, c, values);
  const floor = plot.y(plot.scale.low);
  c.lineTo(margin.left + plot.width + 2, floor);
  c.lineTo(plot.x(Math.max(0, Math.min(view.low, lastMoment()))) - plot.width * 10, floor);
  c.closePath();
  c.fillStyle = colour;
  c.fill();
};
const lineSteps = (plot, c, values, colour, width, dash = []) => {
  c.beginPath();
  traceSteps(plot, c, values);
  c.strokeStyle = colour;
  c.lineWidth = width;
  c.setLineDash(dash);
  c.stroke();
  c.setLineDash([]);
  c.lineWidth = 1;
};

// Requested bytes stacked: totals[k][i] is the sum of the first k + 1 categories.
const totals = [];
samples.requested.forEach((column, k) => totals.push(k ? column.map((v, i) => v + totals[k - 1][i]) : column));
const requestedAt = (i) => (totals.length ? totals.at(-1)[i] : 0);
const categoryColour = (name) => shown(parse(categoryColours[name] ?? "#9299a3"));
const highest = data.has_pages ? Math.max(1, ...[0].concat(peakOf(samples.reserved), peakOf(totals.at(-1) ?? [])))
                               : Math.max(1, peakOf(totals.at(-1) ?? []));
function peakOf(values) { return values.reduce((a, b) => Math.max(a, b), 0); }

const memory = new Plot("memory", (plot, c) => {
  if (data.has_pages) fillSteps(plot, c, (i) => samples.reserved[i], css("--cached-area"));
  for (let k = totals.length - 1; k >= 0; --k) fillSteps(plot, c, (i) => totals[k][i], rgb(categoryColour(data.sampled[k])));
  if (data.has_pages) lineSteps(plot, c, (i) => samples.reserved[i], css("--reserved"), 1.6);
}, () => ({ low: 0, high: highest * 1.12, write: formatBytes, binary: true, numbered: true }));
const sampleAt = (plot, x) => {
  const h = horizontal();
  return Math.max(0, upTo(samples.moment, plot.at(x), (moment) => h[moment]));
};
memory.describe = (x) => {
  const i = sampleAt(memory, x), moment = samples.moment[i], rows = [];
  if (moment === undefined) return null;
  if (data.has_pages) rows.push(["reserved", formatBytes(samples.reserved[i])]);
  rows.push(["requested", formatBytes(requestedAt(i))], ["rounding", formatBytes(Math.max(0, samples.live[i] - requestedAt(i)))]);
  if (samples.pending[i]) rows.push(["pending", formatBytes(samples.pending[i])]);
  samples.requested.forEach((column, k) => column[i] && rows.push([`· ${data.sampled[k]}`, formatBytes(column[i])]));
  if (steps.length && stepOf(moment) >= 0) rows.push(["step", stepOf(moment)]);
  return { title: when(moment), rows };
};

let coloured = null;
const map = new Plot("map", (plot, c) => {
  const h = horizontal();
  c.fillStyle = css(data.has_pages ? "--uncommitted" : "--cached");
  c.fillRect(margin.left, margin.top, plot.width, plot.height);
  c.fillStyle = css("--cached");
  for (let i = 0; i < pages.begin.length; ++i) {
    const x0 = plot.x(h[pages.begin[i]]), x1 = plot.x(h[pages.end[i]]);
    const y1 = plot.y(pages.address[i]), y0 = plot.y(pages.address[i] + pages.size[i]);
    c.fillRect(x0, y0, x1 - x0 + 0.3, y1 - y0 + 0.3);
  }
  const palette = coloured.palette.map(shown), fill = palette.map(rgb), ink = palette.map(inkOn);
  const left = margin.left, right = margin.left + plot.width, top = margin.top, bottom = margin.top + plot.height;
  let before = -1, labels = 0;
  const columns = Math.ceil(plot.width) + 2, specks = new Uint8Array(columns * (Math.ceil(plot.height) + 2));
  for (const i of drawingOrder) {
    const x0 = plot.x(h[blocks.begin[i]]), x1 = plot.x(h[blocks.end[i]]);
    if (x1 < left || x0 > right) continue;
    const y1 = plot.y(blocks.address[i]), y0 = plot.y(blocks.address[i] + blocks.size[i]);
    if (y1 < top || y0 > bottom) continue;
    const colour = coloured.colour[i], high = Math.max(y1 - y0 - (y1 - y0 > 4 ? 1 : 0), 0.8);
    const xg = plot.x(h[blocks.given_back[i]]), width = Math.max(xg - x0 - (xg - x0 > 4 ? 0.7 : 0), 0.8);
    if (x1 - x0 < 1 && y1 - y0 < 1) {  // a pixel needs one of these
      const speck = Math.floor(y0 - top + 1) * columns + Math.floor(x0 - left + 1);
      if (specks[speck]) continue;
      specks[speck] = 1;
    }
    if (colour !== before) c.fillStyle = fill[colour];
    before = colour;
    c.fillRect(x0, y0, width, high);
    if (x1 - xg > 0.5) {
      c.globalAlpha = 0.4;
      c.fillRect(xg, y0, x1 - xg, high);
      c.globalAlpha = 1;
    }
    const from = Math.max(x0, left);
    if (high > 15 && Math.min(xg, right) - from > 64 && labels < 400) {
      ++labels;
      c.fillStyle = ink[colour];
      c.textAlign = "left";
      c.textBaseline = "middle";
      c.fillText(formatBytes(blocks.requested[i]), from + 5, (Math.max(y0, top) + Math.min(y0 + high, bottom)) / 2);
      before = -1;
    }
  }
  c.strokeStyle = css("--ink");
  c.setLineDash([6, 4]);
  c.globalAlpha = 0.45;
  for (const offset of ranges.offset.slice(1)) {
    const y = Math.round(plot.y(offset)) + 0.5;
    if (ranges.offset.length > 60) break;
    c.beginPath();
    c.moveTo(margin.left, y);
    c.lineTo(margin.left + plot.width, y);
    c.stroke();
  }
  c.setLineDash([]);
  c.globalAlpha = 1;
}, () => ({ low: view.bottom, high: view.top, write: formatBytes, binary: true }));

let hovered = -1;
map.highlight = (c) => {
  if (hovered < 0 || pointer.plot !== map) return;
  const h = horizontal(), i = hovered, x0 = map.x(h[blocks.begin[i]]), x1 = map.x(h[blocks.end[i]]);
  const y1 = map.y(blocks.address[i]), y0 = map.y(blocks.address[i] + blocks.size[i]);
  c.strokeStyle = css("--ink");
  c.lineWidth = 2;
  c.strokeRect(x0, y0, Math.max(x1 - x0, 1), Math.max(y1 - y0, 1));
  c.lineWidth = 1;
};
let drawingOrder = [];
const recolour = (how) => {
  coloured = colourBlocks(how);
  drawingOrder = Array.from(blocks.begin, (_, i) => i).sort((a, b) => coloured.colour[a] - coloured.colour[b] || a - b);
  fillLegend("map-legend", coloured.legend.map(([colour, text]) => [rgb(shown(colour)), text])
    .concat([[css("--cached"), "cached", true]], data.has_pages ? [[css("--uncommitted"), "uncommitted", true]] : []));
  redraw();
};

map.describe = (x, y) => {
  const h = horizontal(), value = map.at(x), offset = map.valueAt(y);
  const slackX = (view.high - view.low) / map.width, slackY = (view.top - view.bottom) / map.height;
  let found = -1, best = Infinity;
  for (let i = 0; i < blocks.begin.length; ++i) {
    const dx = Math.max(h[blocks.begin[i]] - value, value - h[blocks.end[i]], 0) / slackX;
    const dy = Math.max(blocks.address[i] - offset, offset - blocks.address[i] - blocks.size[i], 0) / slackY;
    if (dx + dy < best && dx < 2 && dy < 2) {
      best = dx + dy;
      found = i;
    }
  }
  hovered = found;
  if (found < 0) return { title: `address ${addressAt(offset)}`, rows: [["here", pageState(value, offset)]] };
  const i = found, slack = blocks.size[i] - blocks.requested[i];
  const rows = [["requested", formatBytes(blocks.requested[i])],
    ["block", `${formatBytes(blocks.size[i])}${slack > 0 ? `, ${formatBytes(slack)} of it rounding` : ""}`],
    ["scope", lastPart(data.scopes[blocks.scope[i]])],
    ["call site", data.locations[blocks.location[i]] || "(unknown)"],
    ["stream", data.streams[blocks.stream[i]] ?? "0"],
    ["address", addressAt(blocks.address[i])],
    ["from", when(blocks.begin[i])],
    ["until", when(blocks.end[i])],
    ["lived", `${formatTime(lifetimeOf(i))}, ${formatCount(moments.event[blocks.end[i]] - moments.event[blocks.begin[i]])} events`]];
  // Otherwise the event after the free ends it.
  if (moments.event[blocks.end[i]] - moments.event[blocks.given_back[i]] > 1) rows.push(["freed", when(blocks.given_back[i])]);
  return { title: `${blocks.number[i] ? `#${formatCount(blocks.number[i])} ` : ""}${data.categories[blocks.category[i]]}`, rows };
};
const pageState = (value, offset) => {
  const h = horizontal();
  for (let i = 0; i < pages.begin.length; ++i)
    if (h[pages.begin[i]] <= value && value <= h[pages.end[i]] && pages.address[i] <= offset && offset < pages.address[i] + pages.size[i])
      return data.omitted_blocks ? "cached, or a block not on this page" : "cached, no block";
  return data.has_pages ? "uncommitted" : "no block";
};

const share = (part, whole) => (whole > 0 ? part / whole : 0);
const freeAt = (i) => Math.max(0, samples.reserved[i] - samples.live[i] - samples.pending[i]);
const fragmentations = [
  ["internal: rounding / live", "#3f74bd", (i) => share(Math.max(0, samples.live[i] - requestedAt(i)), samples.live[i])],
  ["external: cached / reserved", "#e0862a", (i) => share(freeAt(i), samples.reserved[i])],
].slice(0, data.has_pages ? 2 : 1);
const fragmentation = new Plot("fragmentation", (plot, c) => {
  for (const [, colour, values] of fragmentations) lineSteps(plot, c, values, rgb(shown(parse(colour))), 1.5);
}, () => ({ low: 0, high: 1.02, write: (v) => `${Math.round(100 * v)} %`, binary: false }));
fragmentation.describe = (x) => {
  const i = sampleAt(fragmentation, x), rows = fragmentations.map(([name, , values]) => [name, formatPercent(values(i))]);
  if (data.has_pages) rows.push(["cached", formatBytes(freeAt(i))]);
  return samples.moment[i] === undefined ? null : { title: when(samples.moment[i]), rows };
};

const fillLegend = (id, entries) => {
  const legend = document.getElementById(id);
  legend.replaceChildren(...entries.map(([colour, text, framed, line]) => {
    const entry = element("span"), swatch = element("i");
    swatch.style.background = colour;
    if (framed) swatch.style.boxShadow = "inset 0 0 0 1px var(--step)";
    if (line) swatch.className = "line";
    entry.append(swatch, text);
    return entry;
  }));
};
