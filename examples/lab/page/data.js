// Unpacks the data of the page, and formats numbers.
const data = JSON.parse(document.getElementById("data").textContent);

// Base 64 of LEB128 of zigzag differences. Numbers here may be beyond 32 bits: no bit operations on them.
const unpack = (text) => {
  const bytes = atob(text), values = [];
  let value = 0, zigzag = 0, scale = 1;
  for (let i = 0; i < bytes.length; ++i) {
    const byte = bytes.charCodeAt(i);
    zigzag += (byte & 127) * scale;
    scale *= 128;
    if (byte & 128) continue;
    value += zigzag % 2 ? -(zigzag + 1) / 2 : zigzag / 2;
    values.push(value);
    zigzag = 0;
    scale = 1;
  }
  return values;
};
const unpackAll = (columns) => Object.fromEntries(Object.entries(columns).map(([name, text]) => [name, unpack(text)]));

const moments = unpackAll(data.moments);  // blocks, pages, samples and marks refer to these: { event, time }
const blocks = unpackAll(data.blocks);
const pages = unpackAll(data.pages);
const ranges = unpackAll(data.ranges);  // of addresses, laid end to end on the map
const samples = unpackAll(data.samples);
samples.requested = data.requested.map(unpack);  // one column for each of data.sampled
const steps = unpack(data.steps);
const marks = data.marks;

const formatBytes = (bytes) => {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  for (; Math.abs(bytes) >= 1024 && unit < units.length - 1; ++unit) bytes /= 1024;
  const digits = unit === 0 || Number.isInteger(bytes) ? 0 : bytes < 10 ? 2 : bytes < 100 ? 1 : 0;
  return `${bytes.toFixed(digits)} ${units[unit]}`;
};
const formatTime = (ns) => {
  for (const [size, name] of [[1e9, "s"], [1e6, "ms"], [1e3, "µs"]])
    if (Math.abs(ns) >= 0.9995 * size) return `${Number((ns / size).toPrecision(3))} ${name}`;
  return `${Math.round(ns)} ns`;
};
const formatCount = (n) => Math.round(n).toLocaleString("en-US");
const formatPercent = (f) => `${(100 * f).toFixed(1)} %`;

// Text goes into the page only through textContent: names in a trace may look like markup.
const element = (name, text, className) => {
  const node = document.createElement(name);
  if (text !== undefined) node.textContent = text;
  if (className) node.className = className;
  return node;
};

// The last index whose value is <= x, or -1.
const upTo = (values, x, key = (v) => v) => {
  let low = -1, high = values.length;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (key(values[middle]) <= x) low = middle;
    else high = middle;
  }
  return low;
};

// The address behind an offset on the map.
const addressAt = (where) => {
  const offset = Math.floor(where);
  const range = Math.max(0, upTo(ranges.offset, offset));
  return "0x" + (ranges.address[range] + offset - ranges.offset[range]).toString(16);
};
const mapSize = ranges.size.reduce((a, b) => a + b, 0);
