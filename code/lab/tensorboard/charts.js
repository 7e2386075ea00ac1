// The part of Google Charts that the profiler's tab uses, drawn with Plotly: DataTable, seven kinds
// of charts, events. Nothing is fetched.
(() => {
  "use strict";
  const value = (cell) => (cell !== null && typeof cell === "object" && "v" in cell ? cell.v : cell);
  const shown = (cell) => (cell !== null && typeof cell === "object" && "f" in cell ? cell.f : value(cell));
  const FONT = { family: "Roboto, Arial, sans-serif", size: 12, color: "#333" };

  class DataTable {
    constructor() {
      this.columns = [];
      this.rows = [];
      this.properties = new Map();
    }
    addColumn(type, label) {
      this.columns.push(typeof type === "object" ? type : { type, label });
    }
    addRow(row) {
      this.rows.push(row);
    }
    addRows(rows) {
      this.rows.push(...rows);
    }
    setProperty(row, column, name, content) {
      const key = `${row},${column}`;
      this.properties.set(key, { ...this.properties.get(key), [name]: content });
    }
    // Columns with values, each with the column that holds its tooltips (or undefined).
    series() {
      const found = [];
      this.columns.forEach((column, index) => {
        if (column.role === "tooltip") found.at(-1).tooltip = index;
        else if (!column.role || column.role === "data") found.push({ index, label: column.label });
      });
      return found;
    }
    values(index) {
      return this.rows.map((row) => value(row[index]));
    }
  }

  function arrayToDataTable(array) {
    const table = new DataTable();
    array[0].forEach((label) => table.addColumn(typeof label === "object" ? label : { label }));
    table.addRows(array.slice(1));
    return table;
  }

  const events = {
    addListener(chart, name, listener) {
      chart.listeners.push({ name, listener });
    },
  };

  // Plotly's hover text knows <br> and <b>; the tab's tooltips are HTML of its own.
  const plain = (html) => {
    const page = new DOMParser().parseFromString(
      String(html ?? "").replace(/<br\s*\/?>|<\/(div|p|tr|li)>|\n/gi, "\u0001"), "text/html");
    const lines = page.body.textContent.split("\u0001").map((line) => line.trim());
    return lines.filter(Boolean).map((line) => line.replace(/</g, "&lt;")).join("<br>");
  };

  class Chart {
    constructor(element) {
      this.element = element;
      this.listeners = [];
      this.selection = [];
    }
    emit(name, event) {
      for (const one of this.listeners) if (one.name === name) one.listener(event ?? {});
    }
    getSelection() {
      return this.selection;
    }
    setSelection(selection) {
      this.selection = selection ?? [];
    }
    clearChart() {
      this.observer?.disconnect();
      Plotly.purge(this.element);
      this.element.replaceChildren();
    }
    draw(table, options = {}) {
      const { traces, layout } = this.figure(table, options);
      // Plotly takes a key without a value amiss; JSON leaves those out.
      const full = JSON.parse(JSON.stringify({
        title: options.title ? { text: options.title, font: { size: 14 } } : undefined,
        font: FONT, height: options.height, autosize: true, hovermode: "closest",
        margin: { l: 80, r: 30, t: options.title ? 45 : 20, b: 60 },
        legend: { orientation: "h", y: -0.2 }, colorway: options.colors, ...layout,
      }));
      Plotly.newPlot(this.element, traces, full, { displaylogo: false, responsive: true }).then(() => {
        this.element.on("plotly_click", ({ points }) => {
          this.selection = [{ row: points[0].pointIndex, column: points[0].data.column }];
          this.emit("select");
        });
        // The tab draws some charts while they are hidden: their width is known later.
        let width = this.element.clientWidth;
        this.observer = new ResizeObserver(() => {
          if (this.element.clientWidth === width) return;
          width = this.element.clientWidth;
          if (width) Plotly.Plots.resize(this.element);
        });
        this.observer.observe(this.element);
        this.emit("ready");
      });
    }
  }

  // A legend of kernels' names would leave no room for the pie: their middle is left out. Slices of
  // one name become one, so those that are then the same differ in something that is not seen.
  const LEGEND = 32;
  const cut = (names) => {
    const seen = {};
    return names.map((name) => {
      const text = String(name);
      if (text.length <= LEGEND) return text;
      const short = `${text.slice(0, LEGEND / 2)}…${text.slice(1 - LEGEND / 2)}`;
      seen[short] = (seen[short] ?? -1) + 1;
      return short + "\u200b".repeat(seen[short]);
    });
  };

  class PieChart extends Chart {
    figure(table, options) {
      const [names, sizes] = table.series();
      const whole = table.values(names.index).map((name) => String(name).replace(/</g, "&lt;"));
      const tips = sizes.tooltip === undefined ? undefined : table.values(sizes.tooltip).map(plain);
      return {
        traces: [{
          type: "pie", hole: options.pieHole ?? 0, labels: cut(table.values(names.index)),
          values: table.values(sizes.index), sort: false, direction: "clockwise",
          textinfo: "percent", textposition: "inside", marker: { colors: options.colors },
          hovertext: tips ?? whole, hoverinfo: tips ? "text" : "text+value+percent",
          column: sizes.index,
        }],
        layout: {
          showlegend: options.legend !== "none", uniformtext: { minsize: 9, mode: "hide" },
          legend: { orientation: "v", x: 1.05, y: 1, font: { size: 11 }, maxheight: 0.95 },
          margin: { l: 15, r: 15, t: options.title ? 40 : 15, b: 15 },
        },
      };
    }
  }

  // Charts with axes. A first column of words becomes labels, one a row: two rows may be called
  // the same.
  class AxesChart extends Chart {
    figure(table, options) {
      const [x, ...series] = table.series();
      const axes = Object.values(options.vAxes ?? { 0: options.vAxis ?? {} });
      const axis = (one) => ({
        title: one?.title ? { text: one.title } : undefined, rangemode: "tozero", automargin: true,
        type: "linear",
      });
      const words = table.rows.some((row) => typeof value(row[x.index]) === "string");
      const labels = table.values(x.index), numbers = words ? labels.map((_, row) => row) : labels;
      return {
        traces: series.map((one, index) => ({
          name: one.label, x: numbers, y: table.values(one.index), column: one.index,
          hovertext: one.tooltip === undefined ? (words ? labels : undefined)
            : table.values(one.tooltip).map(plain),
          hoverinfo: one.tooltip !== undefined ? "text" : words ? "text+y+name" : "x+y+name",
          yaxis: options.series?.[index]?.targetAxisIndex === 1 ? "y2" : "y",
          ...this.style(options.series?.[index]?.type, options),
        })),
        layout: {
          barmode: options.isStacked ? "stack" : "group",
          xaxis: { title: options.hAxis?.title ? { text: options.hAxis.title } : undefined,
            automargin: true, ticklabeloverflow: "allow",
            ...(words ? { tickmode: "array", tickvals: numbers, ticktext: labels } : {}) },
          yaxis: axis(axes[0]),
          yaxis2: axes[1] ? { ...axis(axes[1]), overlaying: "y", side: "right" } : undefined,
        },
      };
    }
  }

  class ColumnChart extends AxesChart {
    style() {
      return { type: "bar" };
    }
  }

  class ComboChart extends AxesChart {
    style(type) {
      return type === "line" ? { type: "scatter", mode: "lines+markers" } : { type: "bar" };
    }
  }

  // Bars without gaps: the steps of a stepped area, each centred over its label.
  class SteppedAreaChart extends AxesChart {
    style() {
      return { type: "bar" };
    }
    figure(table, options) {
      const { traces, layout } = super.figure(table, options);
      return { traces, layout: { ...layout, bargap: 0 } };
    }
  }

  class LineChart extends AxesChart {
    style() {
      return { type: "scatter", mode: "lines" };
    }
    figure(table, options) {
      const { traces, layout } = super.figure(table, options);
      layout.dragmode = options.explorer ? "zoom" : false;
      return { traces, layout };
    }
    // The tab asks which times are in view after each change of the chart.
    getChartLayoutInterface() {
      const axis = () => this.element._fullLayout.xaxis;
      return {
        getChartAreaBoundingBox: () => ({ left: axis()._offset, width: axis()._length }),
        getHAxisValue: (pixel) => axis().p2c(pixel - axis()._offset),
      };
    }
    setSelection(selection) {
      super.setSelection(selection);
      if (!this.element._fullLayout) return;
      const marks = this.selection.map(({ row, column }) => {
        const trace = this.element.data.find((one) => one.column === column);
        return { x: trace.x[row], y: trace.y[row], text: "", showarrow: true, arrowhead: 6, ay: -18, ax: 0 };
      });
      if (marks.length || this.element.layout.annotations?.length) {
        Plotly.relayout(this.element, { annotations: marks });
      }
    }
  }

  const create = (parent, tag, style, text) => {
    const element = parent.appendChild(document.createElement(tag));
    element.style.cssText = style;
    if (text !== undefined) element.textContent = text;
    return element;
  };

  // A table in pages; a click on a heading sorts.
  class Table extends Chart {
    draw(table, options = {}) {
      this.state = { page: 0, column: options.sortColumn ?? -1,
        ascending: options.sortAscending !== false };
      this.render(table, options);
      this.emit("ready");
    }
    order(table) {
      const { column, ascending } = this.state, rows = table.rows.map((_, row) => row);
      if (column < 0) return rows;
      const cell = (row) => value(table.rows[row][column]);
      const sign = ascending ? 1 : -1;
      return rows.sort((a, b) => (cell(a) < cell(b) ? -sign : cell(a) > cell(b) ? sign : 0));
    }
    render(table, options) {
      const { state } = this, size = options.pageSize ?? 30, rows = this.order(table);
      const again = (change) => {
        Object.assign(state, change);
        this.render(table, options);
      };
      this.element.replaceChildren();
      const box = create(this.element, "div", "overflow:auto;max-height:100%");
      const grid = create(box, "table", "border-collapse:collapse;width:100%;font:12px Arial");
      const head = create(grid, "tr", "background:#eee;cursor:pointer");
      const series = table.series();
      for (const { index, label } of series) {
        const sorted = index === state.column;
        create(head, "th", "border:1px solid #ccc;padding:4px 6px",
          label + (sorted ? (state.ascending ? " ▲" : " ▼") : "")).onclick = () =>
          again({ column: index, ascending: sorted ? !state.ascending : true });
      }
      for (const row of rows.slice(state.page * size, (state.page + 1) * size)) {
        const line = create(grid, "tr", "");
        for (const { index } of series) {
          const properties = table.properties.get(`${row},${index}`) ?? {};
          const number = table.columns[index].type === "number";
          const cell = create(line, "td", `border:1px solid #eee;padding:3px 6px;text-align:${
            number ? "right" : "left"};${properties.style ?? ""}`);
          cell.className = properties.className ?? "";
          cell.textContent = shown(table.rows[row][index]) ?? "";
        }
      }
      this.renderPages(Math.max(1, Math.ceil(rows.length / size)), again);
    }
    renderPages(pages, again) {
      if (pages === 1) return;
      const { page } = this.state, bar = create(this.element, "div", "padding:4px;font:12px Arial");
      create(bar, "button", "", "◀").onclick = () => again({ page: Math.max(0, page - 1) });
      create(bar, "span", "margin:0 8px", `${page + 1} of ${pages}`);
      create(bar, "button", "", "▶").onclick = () => again({ page: Math.min(pages - 1, page + 1) });
    }
  }

  window.google = {
    charts: { load: () => Promise.resolve() },
    visualization: { DataTable, arrayToDataTable, events, PieChart, ColumnChart, ComboChart,
      SteppedAreaChart, LineChart, Table },
  };
})();
