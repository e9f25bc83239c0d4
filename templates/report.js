"use strict";
// Choosing, sorting, filtering, highlighting and opening cases. The address keeps all of it: #place?key=value&...
(() => {
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  const byId = (id) => document.getElementById(id);

  // --- the address ------------------------------------------------------------------------------------------------

  /** Return the element that the address names, and the state behind it. */
  function read() {
    const hash = location.hash.slice(1);
    const at = hash.indexOf("?");
    const place = at < 0 ? hash : hash.slice(0, at);
    let id = place;
    if (!byId(id)) {
      try { id = decodeURIComponent(place); } catch { /* a stray percent sign is part of the name */ }
    }
    return { place: id, state: new URLSearchParams(at < 0 ? "" : hash.slice(at + 1)) };
  }

  function address(place, state) {
    const query = state.toString();
    return `#${place}${query ? `?${query}` : ""}`;
  }

  /** Change the state in the address. No step back is added: only places are in the history. */
  function remember(key, value) {
    const { place, state } = read();
    if (value) state.set(key, value); else state.delete(key);
    history.replaceState(null, "", address(place, state) === "#" ? location.pathname + location.search : address(place, state));
  }

  // --- workload and colours ---------------------------------------------------------------------------------------

  const workload = byId("workload");
  function showWorkload(name) {
    if (!workload) return;
    workload.value = name;
    if (workload.selectedIndex < 0) workload.value = "";
    for (const each of all("main > [data-workload], nav [data-workload]")) {
      each.hidden = Boolean(workload.value) && each.dataset.workload !== workload.value;
    }
  }
  workload?.addEventListener("change", () => { showWorkload(workload.value); remember("workload", workload.value); });

  const theme = byId("theme");
  function showTheme(name) {
    theme.value = name;
    if (theme.value) document.documentElement.dataset.theme = theme.value;
    else delete document.documentElement.dataset.theme;
  }
  theme?.addEventListener("change", () => { showTheme(theme.value); remember("theme", theme.value); });

  // --- tables -----------------------------------------------------------------------------------------------------

  const collator = new Intl.Collator("en", { numeric: true });
  const orders = new Map();

  function value(row, column) {
    const cell = row.cells[column];
    const number = cell?.dataset.v;
    return number === undefined ? cell?.textContent.trim() ?? "" : Number(number);
  }

  /** Compare two cells: numbers before texts, and empty ones last in both directions. */
  function compare(a, b, sign) {
    if (a === "" || b === "") return (a === "") - (b === "");
    if (typeof a === "number" && typeof b === "number") return sign * (a - b);
    if (typeof a !== typeof b) return typeof a === "number" ? -1 : 1;
    return sign * collator.compare(a, b);
  }

  function sort(table, column, direction) {
    const body = table.tBodies[0];
    if (!orders.has(table)) orders.set(table, [...body.rows]);
    const rows = [...orders.get(table)];
    if (direction) {
      const sign = direction === "descending" ? -1 : 1;
      const keyed = rows.map((row) => [value(row, column), row]);
      keyed.sort((a, b) => compare(a[0], b[0], sign));
      body.append(...keyed.map((pair) => pair[1]));
    } else body.append(...rows);
    for (const [i, head] of [...table.tHead.rows[0].cells].entries()) {
      if (head.querySelector("button")) head.setAttribute("aria-sort", i === column && direction ? direction : "none");
    }
  }

  for (const table of all("table.sortable")) {
    for (const [i, head] of [...table.tHead.rows[0].cells].entries()) {
      const button = head.querySelector("button");
      if (!button) continue;
      head.setAttribute("aria-sort", "none");
      button.addEventListener("click", () => {
        const first = head.classList.contains("n") ? "descending" : "ascending";
        const second = first === "descending" ? "ascending" : "descending";
        const now = head.getAttribute("aria-sort");
        const next = now === "none" ? first : now === first ? second : "";
        sort(table, i, next);
        remember(`sort.${table.id}`, next ? `${i}.${next}` : "");
      });
    }
  }

  function filter(field) {
    const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const row of byId(field.dataset.filter).tBodies[0].rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
    }
  }
  for (const field of all("[data-filter]")) {
    field.closest("label").hidden = false;
    field.addEventListener("input", () => { filter(field); remember(`filter.${field.dataset.filter}`, field.value); });
  }

  for (const flag of all(".flag[aria-describedby]")) {
    flag.title = byId(flag.getAttribute("aria-describedby"))?.textContent ?? "";
  }

  // --- choices ----------------------------------------------------------------------------------------------------

  function options(choice) {
    return all(":scope > .option", choice).map((element) => ({ element, values: JSON.parse(element.dataset.values) }));
  }

  /** Show the option with the chosen values; a choice that another one excludes changes to one that exists. */
  function choose(choice, changed = -1) {
    const selects = all(":scope > .controls select", choice);
    const wanted = (values) => selects.every((select) => values[select.dataset.dimension] === select.value);
    const every = options(choice);
    const chosen = every.find(({ values }) => wanted(values))
      ?? every.find(({ values }) => changed >= 0 && values[changed] === selects.find((s) => Number(s.dataset.dimension) === changed)?.value)
      ?? every[0];
    for (const select of selects) select.value = chosen.values[select.dataset.dimension];
    for (const { element } of every) element.hidden = element !== chosen.element;
    return chosen.values;
  }
  for (const choice of all(".choice")) {
    choice.querySelector(":scope > .controls").hidden = false;
    choose(choice);
    for (const select of all(":scope > .controls select", choice)) {
      select.addEventListener("change", () => {
        remember(`show.${choice.id}`, JSON.stringify(choose(choice, Number(select.dataset.dimension))));
      });
    }
  }

  // --- series -----------------------------------------------------------------------------------------------------

  /** Fade all series but those with this key; every chart follows. */
  function highlight(key) {
    document.dispatchEvent(new CustomEvent("series", { detail: key }));
    for (const each of all("svg.plot .series[data-series]")) {
      const figure = each.closest("figure");
      const has = key && figure.querySelector(`.legend [data-series="${CSS.escape(key)}"]`);
      each.classList.toggle("faded", Boolean(has) && each.dataset.series !== key);
    }
  }
  let held = "";
  function hold(key) {
    held = key;
    for (const button of all(".legend button")) {
      button.setAttribute("aria-pressed", String(Boolean(key) && button.dataset.series === key));
    }
    highlight(key);
  }
  for (const button of all(".legend button")) {
    button.addEventListener("click", () => {
      hold(held === button.dataset.series ? "" : button.dataset.series);
      remember("series", held);
    });
    button.addEventListener("pointerenter", () => highlight(button.dataset.series));
    button.addEventListener("pointerleave", () => highlight(held));
  }

  // --- points -----------------------------------------------------------------------------------------------------

  const tip = byId("tip");
  function showTip(text, x, y) {
    (document.querySelector("dialog[open]") ?? document.body).append(tip);
    tip.textContent = text;
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(4, Math.min(x + 14, innerWidth - box.width - 8))}px`;
    tip.style.top = `${y + 18 + box.height > innerHeight ? y - box.height - 12 : y + 18}px`;
  }
  document.addEventListener("pointermove", (event) => {
    if (event.target.matches?.("canvas")) return;
    const mark = event.target.closest?.("[data-tip]") ?? nearest(event);
    if (mark) {
      const name = mark.closest("[data-name]")?.dataset.name;
      const lines = [name, mark.dataset.tip, mark.dataset.case && "Click: the case"];
      showTip(lines.filter(Boolean).join("\n"), event.clientX, event.clientY);
    } else hideTip();
  });
  function hideTip() { tip.hidden = true; }
  document.addEventListener("scroll", hideTip, { passive: true });

  /** Return the mark nearest to the pointer in a plot of points, up to 18 pixels away. */
  function nearest(event) {
    const plot = event.target.closest?.("svg.lines, svg.roofline, svg.strip, svg.intervals, svg.forest");
    if (!plot) return null;
    let best = null;
    let least = 18;
    for (const mark of all(".mark[data-tip]", plot)) {
      const box = mark.getBoundingClientRect();
      const apart = Math.hypot(event.clientX - box.x - box.width / 2, event.clientY - box.y - box.height / 2);
      if (apart < least) [best, least] = [mark, apart];
    }
    return best;
  }

  document.addEventListener("click", (event) => {
    const mark = event.target.closest?.("svg.plot [data-case]") ?? nearest(event);
    const page = mark?.dataset.case && byId(mark.dataset.case)?.closest("dialog");
    if (page) go(page.id);
  });

  // --- cases ------------------------------------------------------------------------------------------------------

  /** Go to a place and keep the state. */
  function go(place) {
    const { state } = read();
    history.pushState(null, "", address(place, state));
    show();
  }
  document.addEventListener("click", (event) => {
    const link = event.target.closest?.('a[href^="#"]');
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    if (link.classList.contains("close")) link.closest("dialog").close();
    else go(link.getAttribute("href").slice(1));
  });

  let opener = null;
  for (const dialog of all("dialog.page")) {
    dialog.addEventListener("close", () => {
      if (read().place === dialog.id) go("");
      opener?.focus?.();
    });
    dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
  }

  function open(dialog) {
    for (const other of all("dialog[open]")) if (other !== dialog) other.close();
    if (dialog.open) return;
    opener = document.activeElement;
    dialog.showModal();
    dialog.scrollTop = 0;
  }

  // --- all of it --------------------------------------------------------------------------------------------------

  /** Show what the address says. */
  function show() {
    const { place, state } = read();
    showTheme(state.get("theme") ?? "");
    showWorkload(state.get("workload") ?? "");
    hold(state.get("series") ?? "");
    for (const [key, text] of state) {
      const [kind, ...rest] = key.split(".");
      const element = byId(rest.join("."));
      if (!element) continue;
      unfold(element);
      if (kind === "sort" && orderOf(text)) sort(element, ...orderOf(text));
      if (kind === "filter") {
        const field = document.querySelector(`[data-filter="${CSS.escape(element.id)}"]`);
        if (field) { field.value = text; filter(field); }
      }
      if (kind === "show") showOption(element, text);
    }
    document.dispatchEvent(new Event("shown"));
    const target = place ? byId(place) : null;
    if (target?.matches("dialog.page")) { open(target); return; }
    for (const dialog of all("dialog[open]")) dialog.close();
    if (target) {
      unfold(target);
      target.scrollIntoView();
    }
  }

  /** Open what an element is folded in; of a section, its own fold. */
  function unfold(element) {
    for (const fold of all(":scope > details.fold", element)) fold.open = true;
    for (let each = element; each; each = each.parentElement) if (each.matches("details")) each.open = true;
  }

  /** Return the column and the direction of a sorting, or null for another text. */
  function orderOf(text) {
    const found = /^(\d+)\.(ascending|descending)$/.exec(text);
    return found && [Number(found[1]), found[2]];
  }

  function showOption(choice, text) {
    let values;
    try { values = JSON.parse(text); } catch { return; }
    if (!Array.isArray(values)) return;
    for (const select of all(":scope > .controls select", choice)) select.value = String(values[select.dataset.dimension]);
    choose(choice);
  }

  // What timeline.js uses too.
  window.reportPage = { remember, read, showTip, hideTip };

  for (const each of all(".scripted")) each.hidden = false;
  if (matchMedia("(max-width: 960px)").matches) document.querySelector("nav details").open = false;
  addEventListener("beforeprint", () => { for (const each of all("details.fold")) each.open = true; });
  addEventListener("hashchange", show);
  addEventListener("popstate", show);
  show();
})();
