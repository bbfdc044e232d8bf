// One canvas with axes. All plots show the same part of the horizontal axis: the view.
const view = { axis: data.timed ? "time" : "events", low: 0, high: 1, bottom: 0, top: Math.max(mapSize, 1) };
const horizontal = () => (view.axis === "time" ? moments.time : moments.event);
const lastMoment = () => Math.max(horizontal().at(-1) ?? 1, 1);
const plots = [];
let pointer = null;  // { plot, x, y } while a mouse is over a plot

const margin = { left: 78, right: 14, top: 14, bottom: 24 };

// About `count` round numbers between low and high; powers of two for bytes.
const ticks = (low, high, count, binary) => {
  const rough = Math.max((high - low) / count, binary || view.axis === "events" ? 1 : 1e-9);
  let step;
  if (binary) {
    step = 2 ** Math.ceil(Math.log2(rough));
  } else {
    const power = 10 ** Math.floor(Math.log10(rough));
    step = power * [1, 2, 5, 10].find((m) => m * power >= rough * 0.999);
  }
  const result = [];
  for (let t = Math.ceil(low / step) * step; t <= high; t += step) result.push(t);
  return result;
};

class Plot {
  constructor(id, paint, vertical) {
    this.canvas = document.getElementById(id);
    this.context = this.canvas.getContext("2d");
    this.backdrop = document.createElement("canvas");
    this.paint = paint;
    this.vertical = vertical;  // () => { low, high, write, binary, numbered }
    plots.push(this);
    this.listen();
  }

  x(value) { return margin.left + ((value - view.low) / (view.high - view.low)) * this.width; }
  at(x) { return view.low + ((x - margin.left) / this.width) * (view.high - view.low); }
  y(value) { return margin.top + this.height - ((value - this.scale.low) / (this.scale.high - this.scale.low)) * this.height; }
  valueAt(y) { return this.scale.low + ((margin.top + this.height - y) / this.height) * (this.scale.high - this.scale.low); }

  // Paints everything onto the backdrop if the view has changed, and then the pointer on top.
  draw(changed) {
    const ratio = window.devicePixelRatio || 1, box = this.canvas.getBoundingClientRect();
    const pixels = [Math.round(box.width * ratio), Math.round(box.height * ratio)];
    if (changed || this.canvas.width !== pixels[0] || this.canvas.height !== pixels[1]) {
      for (const canvas of [this.canvas, this.backdrop]) [canvas.width, canvas.height] = pixels;
      this.width = box.width - margin.left - margin.right;
      this.height = box.height - margin.top - margin.bottom;
      this.scale = this.vertical();
      const c = this.backdrop.getContext("2d");
      c.setTransform(ratio, 0, 0, ratio, 0, 0);
      c.font = "11.5px system-ui, 'DejaVu Sans', sans-serif";
      this.drawGrid(c);
      this.clipped(c, () => {
        this.paint(this, c);
        this.drawSteps(c);
      });
      this.drawMarks(c);
    }
    const c = this.context;
    c.setTransform(1, 0, 0, 1, 0, 0);
    c.clearRect(0, 0, ...pixels);
    c.drawImage(this.backdrop, 0, 0);
    if (!pointer) return;
    c.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.clipped(c, () => {
      this.drawCrosshair(c);
      this.highlight?.(c);
    });
  }

  clipped(c, paint) {
    c.save();
    c.beginPath();
    c.rect(margin.left, margin.top, this.width, this.height);
    c.clip();
    paint();
    c.restore();
  }

  drawGrid(c) {
    c.fillStyle = css("--soft");
    c.strokeStyle = css("--grid");
    c.lineWidth = 1;
    c.textAlign = "right";
    c.textBaseline = "middle";
    for (const t of ticks(this.scale.low, this.scale.high, this.height / 45, this.scale.binary)) {
      const y = Math.round(this.y(t)) + 0.5;
      c.beginPath();
      c.moveTo(margin.left, y);
      c.lineTo(margin.left + this.width, y);
      c.stroke();
      c.fillText(this.scale.write(t), margin.left - 7, y);
    }
    c.textBaseline = "top";
    const write = view.axis === "time" ? formatTime : formatCount;
    const floor = margin.top + this.height;
    const all = ticks(view.low, view.high, this.width / 110, false);
    all.forEach((t, i) => {
      const x = Math.round(this.x(t)) + 0.5;
      c.beginPath();
      c.moveTo(x, floor);
      c.lineTo(x, floor + 4);
      c.stroke();
      const text = write(t) + (view.axis === "events" && i === all.length - 1 ? " events" : "");
      const half = c.measureText(text).width / 2;
      c.textAlign = "center";
      c.fillText(text, Math.min(Math.max(x, margin.left + half - 30), margin.left + this.width + margin.right - half), floor + 7);
    });
  }

  drawSteps(c) {
    const h = horizontal();
    let last = -Infinity, free = -Infinity;
    c.strokeStyle = css("--step");
    c.fillStyle = css("--soft");
    c.textAlign = "left";
    c.textBaseline = "top";
    for (let i = 0; i < steps.length; ++i) {
      const x = Math.round(this.x(h[steps[i]])) + 0.5;
      if (x < margin.left || x > margin.left + this.width || x - last < 3) continue;
      c.globalAlpha = 0.8;
      c.setLineDash([3, 3]);
      c.beginPath();
      c.moveTo(x, margin.top);
      c.lineTo(x, margin.top + this.height);
      c.stroke();
      c.setLineDash([]);
      c.globalAlpha = 1;
      last = x;
      if (!this.scale.numbered || x < free) continue;
      const text = `step ${i}`;
      c.fillText(text, x + 4, margin.top + 2);
      free = x + c.measureText(text).width + 14;
    }
  }

  // Above the plot: reclaim stages and failures.
  drawMarks(c) {
    const h = horizontal();
    this.markAt = [];
    for (const mark of marks) {
      const x = this.x(h[mark.at]);
      if (x < margin.left - 1 || x > margin.left + this.width + 1) continue;
      this.markAt.push([x, mark]);
      c.fillStyle = css(mark.kind === "oom" ? "--oom" : "--stage");
      c.beginPath();
      if (mark.kind === "oom") {
        c.rect(x - 4, margin.top - 11, 8, 8);
      } else {
        c.moveTo(x - 4, margin.top - 10);
        c.lineTo(x + 4, margin.top - 10);
        c.lineTo(x, margin.top - 3);
      }
      c.fill();
      if (mark.kind === "oom") c.fillRect(x - 0.5, margin.top, 1, this.height);
    }
  }

  drawCrosshair(c) {
    const x = this.x(pointer.value);
    if (x < margin.left || x > margin.left + this.width) return;
    c.strokeStyle = css("--accent");
    c.globalAlpha = 0.7;
    c.beginPath();
    c.moveTo(x, margin.top);
    c.lineTo(x, margin.top + this.height);
    c.stroke();
    c.globalAlpha = 1;
  }

  listen() {
    this.canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      const factor = Math.exp((event.deltaY || event.deltaX) * (event.deltaMode ? 0.05 : 0.0015));
      if (event.shiftKey && this.canvas.id === "map") zoomAddresses(factor, this.valueAt(event.offsetY));
      else zoom(factor, this.at(event.offsetX));
    }, { passive: false });
    this.canvas.addEventListener("pointerdown", (event) => {
      this.drag = { x: event.offsetX, y: event.offsetY, ...view };
      this.canvas.setPointerCapture(event.pointerId);
    });
    const release = () => { this.drag = null; };
    this.canvas.addEventListener("pointerup", release);
    this.canvas.addEventListener("pointercancel", release);
    this.canvas.addEventListener("pointermove", (event) => {
      if (this.drag) {
        const from = this.drag, move = ((event.offsetX - from.x) / this.width) * (from.high - from.low);
        show(from.low - move, from.high - move);
        if (this.canvas.id === "map") {
          const rise = ((event.offsetY - from.y) / this.height) * (from.top - from.bottom);
          showAddresses(from.bottom + rise, from.top + rise);
        }
      }
      pointer = { plot: this, x: event.offsetX, y: event.offsetY, value: this.at(event.offsetX) };
      redraw(false);
      showTooltip(this, event);
    });
    this.canvas.addEventListener("pointerleave", () => {
      pointer = null;
      hideTooltip();
      redraw(false);
    });
    this.canvas.addEventListener("dblclick", showAll);
  }
}

const show = (low, high) => {
  const last = lastMoment(), least = view.axis === "events" ? Math.min(8, last) : last / 1e6;
  const width = Math.min(Math.max(high - low, least), last);
  view.low = Math.min(Math.max(low, 0), last - width);
  view.high = view.low + width;
  redraw();
};
const showAddresses = (bottom, top) => {
  const all = Math.max(mapSize, 1), height = Math.min(Math.max(top - bottom, Math.min(512, all)), all);
  view.bottom = Math.min(Math.max(bottom, 0), all - height);
  view.top = view.bottom + height;
  redraw();
};
const zoom = (factor, around) => show(around - (around - view.low) * factor, around + (view.high - around) * factor);
const zoomAddresses = (factor, around) =>
  showAddresses(around - (around - view.bottom) * factor, around + (view.top - around) * factor);
const showAll = () => {
  showAddresses(0, mapSize);
  show(0, lastMoment());
};

// Once per frame; `changed` if more than the pointer has moved.
let waiting = false, everything = false;
const redraw = (changed = true) => {
  everything ||= changed;
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => {
    const all = everything;
    waiting = everything = false;
    for (const plot of plots) plot.draw(all);
  });
};

const tooltip = document.getElementById("tooltip");
const hideTooltip = () => { tooltip.hidden = true; };
const showTooltip = (plot, event) => {
  const mark = plot.markAt?.find(([x]) => Math.abs(x - event.offsetX) < 5 && event.offsetY < margin.top + 4)?.[1];
  const found = mark ? { title: mark.title, rows: mark.rows } : plot.describe?.(event.offsetX, event.offsetY);
  if (!found || event.offsetX < margin.left) return hideTooltip();
  tooltip.replaceChildren(element("b", found.title));
  const grid = element("div");
  for (const [name, value] of found.rows) grid.append(element("span", name), element("span", value));
  tooltip.append(grid);
  tooltip.hidden = false;
  const box = tooltip.getBoundingClientRect();
  const x = event.clientX + 14 + box.width > innerWidth ? event.clientX - 14 - box.width : event.clientX + 14;
  const y = Math.min(event.clientY + 14, innerHeight - box.height - 6);
  tooltip.style.left = `${Math.max(4, x)}px`;
  tooltip.style.top = `${Math.max(4, y)}px`;
};
