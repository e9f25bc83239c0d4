"use strict";
// Draws the timelines of the page: each element with data-timeline stands after a script with its lanes as JSON.
// A box is [start, duration, name, key, operations, sum of their times, launched, bytes]; times are ns.
(() => {
  const START = 0, DURATION = 1, NAME = 2, KEY = 3, COUNT = 4, BUSY = 5, LAUNCHED = 6, BYTES = 7;
  const HEIGHTS = { program: 18, host: 18, idle: 15, stream: 26 };
  const RULER = 22, HEADING = 21, SPACE = 3, LEAST_NS = 100;
  const { remember, read, showTip, hideTip } = window.reportPage;

  const UNITS = [[1e9, "s"], [1e6, "ms"], [1e3, "us"], [1, "ns"]];
  function time(ns) {
    const [size, unit] = UNITS.find(([size]) => Math.abs(ns) >= size) ?? UNITS[3];
    return `${Number((ns / size).toPrecision(4))} ${unit}`;
  }
  function size(bytes) {
    const [factor, unit] = [[1e9, "GB"], [1e6, "MB"], [1e3, "kB"], [1, "B"]].find(([factor]) => bytes >= factor) ?? [1, "B"];
    return `${Number((bytes / factor).toPrecision(3))} ${unit}`;
  }
  const cut = (text, most) => (text.length <= most ? text : `${text.slice(0, most - 1)}…`);
  /** Return the last part of a name, without its arguments: what fits into a box. */
  const brief = (name) => name.replaceAll("(anonymous namespace)::", "").replace(/[<(].*$/s, "").split("::").pop().trim() || name;

  class Timeline {
    constructor(element) {
      this.figure = element.closest("figure");
      this.data = JSON.parse(this.figure.querySelector('script[type="application/json"]').textContent);
      this.id = element.dataset.timeline;
      this.view = [0, this.data.duration];
      this.faded = "";
      this.gap = -1;
      this.canvas = document.createElement("canvas");
      // For scripts and tests: the places of lanes and boxes.
      this.canvas.timeline = this;
      this.canvas.tabIndex = 0;
      this.canvas.setAttribute("role", "application");
      this.canvas.setAttribute("aria-roledescription", "timeline");
      this.canvas.setAttribute("aria-labelledby", `${this.id}-title`);
      this.canvas.setAttribute("aria-describedby", `${this.id}-keys`);
      element.append(this.canvas);
      this.readout = this.figure.querySelector(".readout");
      this.layOut();
      this.listen();
      new ResizeObserver(() => this.draw()).observe(element);
    }

    /** Give each lane its place, and collect the gaps, the longest first. */
    layOut() {
      let y = RULER;
      let group = null;
      this.headings = [];
      for (const lane of this.data.lanes) {
        if (lane.group !== group) {
          group = lane.group;
          this.headings.push({ y, text: group });
          y += HEADING;
        }
        lane.y = y;
        lane.height = HEIGHTS[lane.kind];
        lane.longest = lane.boxes.reduce((most, box) => Math.max(most, box[DURATION]), 0);
        y += lane.height + SPACE;
      }
      this.height = y + 4;
      // A box of several gaps is longer than each of them.
      const isSingle = (box) => !(box[COUNT] > 1);
      this.gaps = this.data.lanes.filter((lane) => lane.kind === "idle")
        .flatMap((lane) => lane.boxes.filter(isSingle).map((box) => ({ lane, box })))
        .sort((a, b) => b.box[DURATION] - a.box[DURATION]);
      this.numbered = this.data.numbered.map(([number, start]) => {
        const lane = this.data.lanes[number];
        return { lane, box: lane.boxes.find((box) => box[START] === start && isSingle(box)) };
      });
    }

    // --- drawing ---------------------------------------------------------------------------------------------------

    get gutter() { return this.width < 620 ? 76 : 124; }
    x(ns) { return this.gutter + ((ns - this.view[0]) / (this.view[1] - this.view[0])) * (this.width - this.gutter); }
    ns(x) { return this.view[0] + ((x - this.gutter) / (this.width - this.gutter)) * (this.view[1] - this.view[0]); }

    /** Read the colours of the style sheet, which differ between light and dark. */
    readColours() {
      const probe = document.createElement("span");
      probe.style.color = "var(--c)";
      this.figure.append(probe);
      this.colours = this.data.classes.map((name) => {
        probe.className = name;
        return getComputedStyle(probe).color;
      });
      this.texts = this.colours.map((colour) => {
        const [r, g, b] = colour.match(/[\d.]+/g).map(Number);
        return 0.299 * r + 0.587 * g + 0.114 * b > 150 ? "#16191f" : "#ffffff";
      });
      probe.className = "";
      [this.ink, this.muted, this.rule, this.sunk, this.card] = ["ink", "muted", "rule", "sunk", "card"].map((name) => {
        probe.style.color = `var(--${name})`;
        return getComputedStyle(probe).color;
      });
      probe.remove();
    }

    draw() {
      this.width = this.canvas.parentElement.clientWidth;
      if (!this.width) return;
      this.readColours();
      const ratio = window.devicePixelRatio || 1;
      this.canvas.width = Math.round(this.width * ratio);
      this.canvas.height = Math.round(this.height * ratio);
      this.canvas.style.height = `${this.height}px`;
      const context = this.context = this.canvas.getContext("2d");
      context.setTransform(ratio, 0, 0, ratio, 0, 0);
      context.clearRect(0, 0, this.width, this.height);
      context.font = "11px system-ui, sans-serif";
      context.textBaseline = "middle";
      this.drawRuler();
      context.save();
      context.beginPath();
      context.rect(this.gutter, 0, this.width - this.gutter, this.height);
      context.clip();
      for (const lane of this.data.lanes) this.drawLane(lane);
      this.drawSelected();
      this.drawNumbers();
      context.restore();
      this.drawLabels();
      [this.canvas.dataset.from, this.canvas.dataset.to] = this.view.map(Math.round);
    }

    drawRuler() {
      const context = this.context;
      const span = this.view[1] - this.view[0];
      const wanted = span / Math.max(2, (this.width - this.gutter) / 110);
      const power = 10 ** Math.floor(Math.log10(wanted));
      const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= wanted);
      context.fillStyle = this.muted;
      context.strokeStyle = this.rule;
      context.textAlign = "left";
      for (let at = Math.ceil(this.view[0] / step) * step; at <= this.view[1]; at += step) {
        const x = Math.round(this.x(at)) + 0.5;
        context.beginPath();
        context.moveTo(x, 4);
        context.lineTo(x, this.height);
        context.stroke();
        context.fillText(at ? time(at) : "0", x + 4, RULER / 2);
      }
    }

    drawLane(lane) {
      const context = this.context;
      if (lane.kind === "stream") {
        context.fillStyle = this.sunk;
        context.globalAlpha = 0.6;
        context.fillRect(this.gutter, lane.y, this.width - this.gutter, lane.height);
        // Idle time is the ground of the streams of its device.
        const idle = this.data.lanes.find((other) => other.kind === "idle" && other.group === lane.group);
        context.globalAlpha = 0.55;
        if (idle) this.drawBoxes(idle, lane, false);
      }
      context.globalAlpha = 1;
      this.drawBoxes(lane, lane, true);
    }

    /** Draw the visible boxes of ``lane`` at the place of ``at``; those of one pixel are drawn once. */
    drawBoxes(lane, at, isOwn) {
      const context = this.context;
      const alpha = context.globalAlpha;
      let drawn = -1;
      let colour = -1;
      for (let i = this.first(lane); i < lane.boxes.length; i += 1) {
        const box = lane.boxes[i];
        if (box[START] > this.view[1]) break;
        if (box[START] + box[DURATION] < this.view[0]) continue;
        const left = Math.max(this.x(box[START]), this.gutter - 2);
        const right = Math.min(this.x(box[START] + box[DURATION]), this.width + 2);
        if (right < drawn + 0.5 && box[KEY] === colour) continue;
        const width = Math.max(right - left - (isOwn && right - left > 4 ? 0.75 : 0), 0.7);
        context.globalAlpha = this.faded && this.data.keys[box[KEY]] !== this.faded ? alpha * 0.16 : alpha;
        context.fillStyle = this.colours[box[KEY]];
        context.fillRect(left, at.y, width, at.height);
        [drawn, colour] = [right, box[KEY]];
        if (isOwn && width > 46) this.drawName(lane, box, left, width, at);
      }
      context.globalAlpha = alpha;
    }

    drawName(of, box, left, width, lane) {
      const context = this.context;
      const shown = Math.max(left, this.gutter);
      const room = left + width - shown - 8;
      if (room < 30 || (of.kind === "idle" && room < 60)) return;
      context.textAlign = "left";
      context.fillStyle = this.texts[box[KEY]];
      const text = of.kind === "idle" ? time(box[DURATION]) : brief(this.data.names[box[NAME]]);
      context.fillText(cut(text, Math.floor(room / 6.2)), shown + (of.kind === "idle" ? 20 : 4), lane.y + lane.height / 2 + 0.5);
    }

    /** Number the largest gaps as in the table below. */
    drawNumbers() {
      const context = this.context;
      context.textAlign = "center";
      context.font = "600 10px system-ui, sans-serif";
      this.numbered.forEach(({ lane, box }, i) => {
        if (!box) return;
        const left = Math.max(this.x(box[START]), this.gutter);
        const right = Math.min(this.x(box[START] + box[DURATION]), this.width);
        if (right < left) return;
        const y = lane.y + lane.height / 2;
        const at = right - left > 68 ? left + 8 : (left + right) / 2;
        context.fillStyle = this.ink;
        context.beginPath();
        context.arc(at, y, 7.5, 0, 2 * Math.PI);
        context.fill();
        context.fillStyle = this.card;
        context.fillText(String(i + 1), at, y + 0.5);
      });
      context.font = "11px system-ui, sans-serif";
    }

    drawSelected() {
      if (!this.selected) return;
      const { lane, box } = this.selected;
      const context = this.context;
      context.strokeStyle = this.ink;
      context.lineWidth = 2;
      const left = this.x(box[START]);
      context.strokeRect(left - 1, lane.y - 1, Math.max(this.x(box[START] + box[DURATION]) - left, 1) + 2, lane.height + 2);
      const call = this.callOf(lane, box);
      if (call) {
        context.beginPath();
        context.moveTo(this.x(box[LAUNCHED]), call.lane.y + call.lane.height);
        context.lineTo(left, lane.y);
        context.stroke();
      }
      context.lineWidth = 1;
    }

    drawLabels() {
      const context = this.context;
      const width = this.gutter;
      context.textAlign = "left";
      for (const { y, text } of this.headings) {
        context.fillStyle = this.ink;
        context.font = "600 11.5px system-ui, sans-serif";
        context.fillText(cut(text, Math.floor(this.width / 7)), 2, y + HEADING / 2 + 1);
      }
      context.font = "11px system-ui, sans-serif";
      context.fillStyle = this.muted;
      for (const lane of this.data.lanes) context.fillText(cut(lane.title, Math.floor(width / 6)), 2, lane.y + lane.height / 2 + 0.5);
    }

    /** Return the first box that can be visible. */
    first(lane) {
      let low = 0;
      let high = lane.boxes.length;
      const from = this.view[0] - lane.longest;
      while (low < high) {
        const middle = (low + high) >> 1;
        if (lane.boxes[middle][START] < from) low = middle + 1; else high = middle;
      }
      return low;
    }

    /** Return the launch call of an operation, where it is drawn. */
    callOf(lane, box) {
      if (lane.kind !== "stream" || box[LAUNCHED] === undefined || box[LAUNCHED] === null) return null;
      for (const host of this.data.lanes) {
        if (host.kind !== "host" || host.group !== lane.group) continue;
        const call = host.boxes.find((each) => each[START] <= box[LAUNCHED] && each[START] + each[DURATION] >= box[LAUNCHED]);
        if (call) return { lane: host, box: call };
      }
      return null;
    }

    // --- what a box is ---------------------------------------------------------------------------------------------

    /** Return the lane and the box below a point; between two operations that is the idle time. */
    at(x, y) {
      const lane = this.data.lanes.find((each) => y >= each.y - 1 && y <= each.y + each.height + 1);
      if (!lane || x < this.gutter) return null;
      const idle = this.data.lanes.find((each) => each.kind === "idle" && each.group === lane.group);
      const box = this.nearest(lane, x) ?? null;
      if (box) return { lane, box };
      const gap = lane.kind === "stream" && idle ? this.nearest(idle, x, 0) : null;
      return gap ? { lane: idle, box: gap } : null;
    }

    nearest(lane, x, slack = 2) {
      let best = null;
      let least = slack + 0.01;
      for (let i = this.first(lane); i < lane.boxes.length; i += 1) {
        const box = lane.boxes[i];
        if (box[START] > this.view[1]) break;
        const left = this.x(box[START]);
        const right = this.x(box[START] + box[DURATION]);
        const apart = Math.max(left - x, x - right, 0);
        if (apart < least || (apart === 0 && least === 0)) [best, least] = [box, apart];
      }
      return best;
    }

    describe({ lane, box }) {
      const name = this.data.names[box[NAME]];
      const label = this.data.labels[box[KEY]];
      const lines = [];
      if (box[COUNT] > 1) {
        const what = { program: "parts", host: "calls", idle: "gaps", stream: "operations" }[lane.kind];
        lines.push(`${box[COUNT]} ${what}, ${time(box[BUSY])} together, most time: ${label}`, cut(name, 300));
      } else {
        lines.push(cut(lane.kind === "host" ? `${box[KEY] === this.data.wait ? "" : "launch of "}${name}` : name || label, 400));
        lines.push(`${lane.kind === "idle" ? "" : `${label}, `}${time(box[DURATION])}, from ${time(box[START])}`);
        if (typeof box[LAUNCHED] === "number") lines.push(`launched ${time(box[START] - box[LAUNCHED])} before it ran`);
        if (box[BYTES]) lines.push(`${size(box[BYTES])}, ${Number((box[BYTES] / box[DURATION]).toPrecision(3))} GB/s`);
      }
      return lines.filter(Boolean);
    }

    select(found, isSaid = true) {
      this.selected = found;
      if (isSaid) this.readout.textContent = found ? [found.lane.kind === "idle" ? "" : found.lane.title, ...this.describe(found)].filter(Boolean).join(" · ") : "";
      this.draw();
    }

    // --- moving ----------------------------------------------------------------------------------------------------

    /** Show from ``from`` to ``to``, inside the recording and not closer than some ns. */
    show(from, to, isKept = true) {
      const whole = this.data.duration;
      const span = Math.min(Math.max(to - from, Math.min(LEAST_NS, whole)), whole);
      const middle = (from + to) / 2;
      const begin = Math.min(Math.max(middle - span / 2, 0), whole - span);
      this.view = [begin, begin + span];
      this.draw();
      if (!isKept) return;
      clearTimeout(this.timer);
      const state = span >= whole ? "" : `${Math.floor(begin)}-${Math.ceil(begin + span)}`;
      this.timer = setTimeout(() => remember(`zoom.${this.id}`, state), 150);
    }
    zoom(factor, x = (this.gutter + this.width) / 2) {
      const at = this.ns(Math.max(x, this.gutter));
      this.show(at - (at - this.view[0]) * factor, at + (this.view[1] - at) * factor);
    }
    pan(share) {
      const by = share * (this.view[1] - this.view[0]);
      this.show(this.view[0] + by, this.view[1] + by);
    }
    zoomTo({ box }, share) {
      const middle = box[START] + box[DURATION] / 2;
      const half = Math.max(box[DURATION], 1) / share / 2;
      this.show(middle - half, middle + half);
    }
    nextGap() {
      if (!this.gaps.length) return;
      this.gap = (this.gap + 1) % Math.min(this.gaps.length, 20);
      this.select(this.gaps[this.gap]);
      this.zoomTo(this.gaps[this.gap], 0.4);
    }

    step(by) {
      const lane = this.selected?.lane ?? this.data.lanes.find((each) => each.kind === "stream") ?? this.data.lanes[0];
      const now = this.selected ? lane.boxes.indexOf(this.selected.box) + by : this.first(lane);
      const box = lane.boxes[Math.min(Math.max(now, 0), lane.boxes.length - 1)];
      if (!box) return;
      this.select({ lane, box });
      if (box[START] < this.view[0] || box[START] + box[DURATION] > this.view[1]) {
        const half = (this.view[1] - this.view[0]) / 2;
        this.show(box[START] - half, box[START] + half);
      }
    }
    changeLane(by) {
      const lanes = this.data.lanes.filter((each) => each.boxes.length);
      const now = this.selected ? lanes.indexOf(this.selected.lane) + by : 0;
      const lane = lanes[Math.min(Math.max(now, 0), lanes.length - 1)];
      const at = this.selected ? this.selected.box[START] : this.view[0];
      const box = lane.boxes.reduce((best, each) => (Math.abs(each[START] - at) < Math.abs(best[START] - at) ? each : best));
      this.select({ lane, box });
    }

    // --- events ----------------------------------------------------------------------------------------------------

    listen() {
      const canvas = this.canvas;
      let drag = null;
      canvas.addEventListener("pointerdown", (event) => {
        drag = { x: event.offsetX, view: [...this.view], moved: false };
        canvas.setPointerCapture(event.pointerId);
      });
      canvas.addEventListener("pointermove", (event) => {
        if (drag) {
          const by = ((drag.x - event.offsetX) / (this.width - this.gutter)) * (drag.view[1] - drag.view[0]);
          drag.moved ||= Math.abs(drag.x - event.offsetX) > 3;
          if (drag.moved) this.show(drag.view[0] + by, drag.view[1] + by);
          return;
        }
        const found = this.at(event.offsetX, event.offsetY);
        if (found) showTip(this.describe(found).join("\n"), event.clientX, event.clientY); else hideTip();
      });
      canvas.addEventListener("pointerup", (event) => {
        if (drag && !drag.moved) this.select(this.at(event.offsetX, event.offsetY));
        drag = null;
      });
      canvas.addEventListener("pointercancel", () => { drag = null; });
      canvas.addEventListener("pointerleave", hideTip);
      canvas.addEventListener("dblclick", (event) => {
        const found = this.at(event.offsetX, event.offsetY);
        if (found) this.zoomTo(found, 0.6); else this.zoom(0.5, event.offsetX);
      });
      // Without the focus the wheel scrolls the page, as everywhere else.
      canvas.addEventListener("wheel", (event) => {
        const isSideways = Math.abs(event.deltaX) > Math.abs(event.deltaY);
        if (!isSideways && !event.ctrlKey && document.activeElement !== canvas) return;
        event.preventDefault();
        if (isSideways) this.pan(event.deltaX / this.width); else this.zoom(1.0015 ** Math.max(-400, Math.min(event.deltaY, 400)), event.offsetX);
      }, { passive: false });
      const keys = {
        "+": () => this.zoom(0.6), "=": () => this.zoom(0.6), "-": () => this.zoom(1 / 0.6), 0: () => this.show(0, this.data.duration),
        ArrowRight: (event) => (event.shiftKey ? this.pan(0.2) : this.step(1)), ArrowLeft: (event) => (event.shiftKey ? this.pan(-0.2) : this.step(-1)),
        ArrowDown: () => this.changeLane(1), ArrowUp: () => this.changeLane(-1), g: () => this.nextGap(),
        Enter: () => this.selected && this.zoomTo(this.selected, 0.6), Escape: () => this.select(null),
      };
      canvas.addEventListener("keydown", (event) => {
        if (!keys[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
        event.preventDefault();
        keys[event.key](event);
      });
      const actions = {
        in: () => this.zoom(0.6), out: () => this.zoom(1 / 0.6), left: () => this.pan(-0.3), right: () => this.pan(0.3),
        all: () => this.show(0, this.data.duration), gap: () => this.nextGap(),
      };
      for (const button of this.figure.querySelectorAll("[data-action]")) {
        button.addEventListener("click", () => actions[button.dataset.action]());
      }
      document.addEventListener("series", (event) => {
        this.faded = this.data.keys.includes(event.detail) ? event.detail : "";
        this.draw();
      });
      document.addEventListener("shown", () => this.restore());
      const redraw = () => this.draw();
      matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
      new MutationObserver(redraw).observe(document.documentElement, { attributeFilter: ["data-theme"] });
    }

    /** Show the part that the address names. */
    restore() {
      const found = /^(\d+)-(\d+)$/.exec(read().state.get(`zoom.${this.id}`) ?? "");
      if (found) this.show(Number(found[1]), Number(found[2]), false);
      else if (this.view[1] - this.view[0] < this.data.duration) this.show(0, this.data.duration, false);
    }
  }

  // The page of a case leads to the timelines: then that of the case is chosen.
  document.addEventListener("click", (event) => {
    const link = event.target.closest?.('dialog a[href^="#"]');
    const figure = link && [...document.querySelectorAll("figure.timeline")]
      .find((each) => each.dataset.of === link.closest("dialog").id && `#${each.closest("section").id}` === link.getAttribute("href"));
    const option = figure?.closest(".option");
    if (!option) return;
    const values = JSON.parse(option.dataset.values);
    for (const select of option.parentElement.querySelectorAll(":scope > .controls select")) {
      select.value = values[select.dataset.dimension];
      select.dispatchEvent(new Event("change"));
    }
  }, true);

  for (const element of document.querySelectorAll("[data-timeline]")) new Timeline(element).restore();
})();
