// Google Charts' Timeline on a canvas: tens of thousands of operators, one row for each depth.
// The wheel zooms, dragging pans, a double click shows all again.
(() => {
  "use strict";
  const ROW = 22, AXIS = 24;
  const COLORS = ["#4285f4", "#db4437", "#f4b400", "#0f9d58", "#ab47bc", "#00acc1", "#ff7043"];

  class Timeline {
    constructor(element) {
      this.element = element;
    }
    draw(table) {
      const levels = [...new Set(table.values(0))];
      const row = new Map(levels.map((level, index) => [level, index]));
      this.bars = table.rows.map(([level, name, tip, start, end], index) =>
        ({ row: row.get(level), name, tip, start, end, color: COLORS[index % COLORS.length] }));
      // Not Math.min(...bars): a call takes a limited number of arguments.
      this.all = this.bars.reduce(([first, last], bar) =>
        [Math.min(first, bar.start), Math.max(last, bar.end)], [Infinity, -Infinity]);
      this.view = [...this.all];
      this.element.replaceChildren();
      this.canvas = this.element.appendChild(document.createElement("canvas"));
      this.canvas.style.cssText = `display:block;width:100%;height:${levels.length * ROW + AXIS}px`;
      this.listen();
      new ResizeObserver(() => this.paint()).observe(this.canvas);
    }
    clearChart() {
      this.element.replaceChildren();
    }
    time(pixel) {
      const [from, to] = this.view;
      return from + (pixel / this.canvas.clientWidth) * (to - from);
    }
    paint() {
      const { canvas, view: [from, to] } = this, width = canvas.clientWidth;
      canvas.width = width * devicePixelRatio;
      canvas.height = canvas.clientHeight * devicePixelRatio;
      const pen = canvas.getContext("2d");
      pen.scale(devicePixelRatio, devicePixelRatio);
      pen.font = "11px Arial";
      pen.textBaseline = "middle";
      for (const bar of this.bars) {
        if (bar.end < from || bar.start > to) continue;
        const left = Math.max(0, ((bar.start - from) / (to - from)) * width);
        const right = Math.min(width, ((bar.end - from) / (to - from)) * width);
        pen.fillStyle = bar.color;
        pen.fillRect(left, bar.row * ROW + 1, Math.max(0.5, right - left), ROW - 2);
        if (right - left > 30) {
          pen.save();
          pen.beginPath();
          pen.rect(left, bar.row * ROW, right - left - 2, ROW);
          pen.clip();
          pen.fillStyle = "#fff";
          pen.fillText(bar.name, left + 4, bar.row * ROW + ROW / 2);
          pen.restore();
        }
      }
      this.paintAxis(pen, width);
    }
    paintAxis(pen, width) {
      const [from, to] = this.view.map((time) => time - this.all[0]), y = this.canvas.clientHeight - AXIS / 2;
      const rough = (to - from) / Math.max(2, width / 120), power = 10 ** Math.floor(Math.log10(rough));
      const step = [1, 2, 5, 10].map((one) => one * power).find((one) => one >= rough);
      const digits = Math.max(0, -Math.floor(Math.log10(step)));
      pen.fillStyle = "#333";
      for (let tick = Math.ceil(from / step) * step; tick <= to; tick += step) {
        const x = ((tick - from) / (to - from)) * width;
        pen.fillRect(x, this.canvas.clientHeight - AXIS, 1, 5);
        pen.fillText(`${tick.toFixed(digits)} ms`, x + 3, y);
      }
    }
    barAt(event) {
      const time = this.time(event.offsetX), row = Math.floor(event.offsetY / ROW);
      const near = this.time(1) - this.time(0);
      return this.bars.find((bar) => bar.row === row && bar.start - near <= time && time <= bar.end + near);
    }
    look(from, to) {
      const [first, last] = this.all, length = Math.min(to - from, last - first);
      const start = Math.min(Math.max(from, first), last - length);
      this.view = [start, start + length];
      this.paint();
    }
    listen() {
      const { canvas } = this;
      canvas.addEventListener("wheel", (event) => {
        event.preventDefault();
        const [from, to] = this.view, at = this.time(event.offsetX);
        const scale = event.deltaY > 0 ? 1.25 : 0.8;
        this.look(at - (at - from) * scale, at + (to - at) * scale);
      }, { passive: false });
      canvas.addEventListener("mousemove", (event) => {
        if (event.buttons === 1) {
          const [from, to] = this.view, shift = this.time(event.movementX) - from;
          this.look(from - shift, to - shift);
        }
        canvas.title = this.barAt(event)?.tip ?? "";
      });
      canvas.addEventListener("dblclick", () => this.look(...this.all));
    }
  }

  window.google.visualization.Timeline = Timeline;
})();
