(() => {
  "use strict";
  const byId = (id) => document.getElementById(id);
  const root = byId("page");
  const SVG = "http://www.w3.org/2000/svg";
  // names are data: what is invisible or turns the direction of the text is spelled out, as on the server
  const plain = (text) => String(text).replace(/[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g,
    (c) => { const n = c.charCodeAt(0); return n < 256 ? `\\x${n.toString(16).padStart(2, "0")}` : `\\u${n.toString(16).padStart(4, "0")}`; });
  const make = (name, attributes = {}, text = "") => {
    const node = document.createElementNS(SVG, name);
    for (const [key, content] of Object.entries(attributes)) node.setAttribute(key, content);
    if (text) node.textContent = plain(text);
    return node;
  };
  const tag = (name, classes = "", text = "") => {
    const node = document.createElement(name);
    if (classes) node.className = classes;
    if (text !== "") node.textContent = plain(text);
    return node;
  };
  const whole = (n) => n.toLocaleString("en-US");
  const shown = (v, digits = 4) => {
    if (v === null || v === undefined) return "NaN";
    const size = Math.abs(v);
    if (size >= 10 ** digits && size < 1e7) return whole(Math.round(v));
    if (size !== 0 && (size < 1e-4 || size >= 1e7)) return v.toExponential(2).replace("e+", "e");
    return String(Number(v.toPrecision(digits)));
  };
  // the labels of one axis are all written in the same way
  const tickText = (t, largest) => (t !== 0 && (largest < 1e-3 || largest >= 1e7) ? Number(t.toPrecision(3)).toExponential().replace("e+", "e") : shown(t, 3));
  const ago = (modified) => {
    const s = Math.max(0, Date.now() / 1000 - modified);
    return s < 10 ? `${s.toFixed(1)} s ago` : s < 120 ? `${s.toFixed(0)} s ago` : s < 7200 ? `${(s / 60).toFixed(0)} min ago`
      : s < 172800 ? `${(s / 3600).toFixed(0)} h ago` : `${(s / 86400).toFixed(0)} days ago`;
  };

  // ---- the connection: events from the server, a pause, a word for its state
  let paused = false, source = null;
  const connection = byId("connection"), badge = byId("badge"), pause = byId("pause");
  const say = (word, tone) => { connection.textContent = word; badge.className = `badge ${tone}`; };
  const connect = (address, receive) => {
    source = new EventSource(address());
    source.onopen = () => say("live", "ok");
    source.onmessage = (event) => { if (!paused) receive(JSON.parse(event.data)); };
    source.onerror = () => say("no connection", "warn");
  };
  const toggle = (address, receive) => {
    paused = !paused;
    pause.textContent = paused ? "Resume" : "Pause";
    if (paused) { source.close(); say("paused", "muted"); } else connect(address, receive);
  };

  // ---- the list of runs
  const listPage = () => {
    const body = byId("rows"), filter = byId("filter"), kinds = JSON.parse(root.dataset.kinds);
    const spark = ([line, ticks]) => {
      const picture = make("svg", { width: 120, height: 22, role: "img", "aria-label": "loss of the last steps" });
      picture.append(make("path", { class: "l l1", d: line }), make("path", { class: "l lbad", d: ticks }));
      return picture;
    };
    const cell = (kind, classes, ...content) => {
      const node = tag(kind, classes);
      node.setAttribute("role", kind === "th" ? "rowheader" : "cell");
      if (kind === "th") node.scope = "row";
      node.append(...content);
      return node;
    };
    const row = (run) => {
      const line = tag("tr");
      line.setAttribute("role", "row");
      line.dataset.id = run.id;
      const link = tag("a", "", run.name);
      link.href = `/run/${run.id}`;
      const loss = tag("span", "key");
      loss.append(spark(run.spark), ...(run.recent ? [tag("b", run.loss === null ? "bad" : "", shown(run.loss))] : []));
      const step = tag("span", "", whole(run.step));
      const guarded = run.kind === "run";
      const applied = 100 * run.applied / run.recent;
      const incident = tag("span", run.incident ? "" : "muted", run.incident ? "" : guarded ? run.without_incident : "not guarded");
      if (run.incident) incident.append(tag("code", "", run.code), ` ${plain(run.incident)}, step ${whole(run.incident_step)}`);
      const age = cell("td", "c-age", ago(run.modified));
      age.dataset.modified = run.modified;
      line.append(
        cell("th", "c-run", link, ...(guarded ? [] : [" ", tag("span", "muted kind", kinds[run.kind] || run.kind)])),
        cell("td", "c-state", tag("span", `state ${run.tone}`, `${run.sign} ${run.state}`), " ", tag("span", "reason", run.reason)),
        cell("td", "c-prog nowrap", step, ...(run.total ? [" ", tag("span", "muted", `of ${whole(run.total)}`)] : [])),
        cell("td", "c-loss", loss),
        cell("td", "c-app num", ...(guarded && run.recent ? [`${applied === 100 ? "100" : applied.toFixed(1)} %`, tag("span", "muted phone", " applied")] : [])),
        cell("td", "c-inc", incident), age);
      return line;
    };
    const receive = (message) => {
      const focused = document.activeElement && document.activeElement.closest ? document.activeElement.closest("tr[data-id]") : null;
      const kept = focused ? focused.dataset.id : null;
      byId("heading").textContent = message.heading;
      document.title = `${message.heading} · nantrap live`;
      body.replaceChildren(...message.runs.map(row));
      hide();
      if (kept) { const again = body.querySelector(`tr[data-id="${CSS.escape(kept)}"] a`); if (again) again.focus(); }
    };
    const hide = () => {
      const wanted = filter.value.toLowerCase();
      for (const line of body.rows) line.hidden = !line.textContent.toLowerCase().includes(wanted);
    };
    const address = () => `/events?q=${encodeURIComponent(root.dataset.query)}`;
    const move = (by) => {
      const links = [...body.rows].filter((line) => !line.hidden).map((line) => line.querySelector("a"));
      const at = links.indexOf(document.activeElement);
      (links[Math.max(0, Math.min(links.length - 1, at + by))] || links[0])?.focus();
    };
    filter.addEventListener("input", hide);
    pause.addEventListener("click", () => toggle(address, receive));
    document.addEventListener("keydown", (event) => {
      if (event.target === filter) { if (event.key === "Escape") filter.blur(); return; }
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.key === "j") move(1); else if (event.key === "k") move(-1);
      else if (event.key === "/") { event.preventDefault(); filter.focus(); }
      else if (event.key === "p") toggle(address, receive);
    });
    setInterval(() => {
      if (paused) return;
      for (const age of body.querySelectorAll("[data-modified]")) age.textContent = ago(Number(age.dataset.modified));
    }, 1000);
    connect(address, receive);
  };

  // ---- one run
  const runPage = () => {
    const FOLLOW = 600;
    const ident = root.dataset.id, holder = byId("charts"), feed = byId("feed");
    let last = Number(root.dataset.step), log = true, mode = "follow", range = null, data = null, cursor = null;
    const titles = { loss: "Loss", grad_norm: "Gradient norm", lr: "Learning rate", scale: "Loss scale" };
    const figures = new Map();

    const ticks = (low, high, logarithmic) => {
      if (logarithmic) {
        const found = [], first = Math.floor(Math.log10(low)), end = Math.ceil(Math.log10(high));
        const factors = end - first > 3 ? [1] : end - first > 1 ? [1, 3] : [1, 2, 5];
        const every = Math.max(1, Math.ceil((end - first) / 5));
        for (let p = first; p <= end; p += every) for (const f of factors) { const t = f * 10 ** p; if (t >= low && t <= high) found.push(t); }
        if (found.length > 1) return found;
      }
      const rough = (high - low) / 4 || 1, magnitude = 10 ** Math.floor(Math.log10(rough));
      const size = [1, 2, 5, 10].map((f) => f * magnitude).find((s) => s >= rough * 0.999);
      const found = [];
      for (let t = Math.ceil(low / size) * size; t <= high + size * 1e-9; t += size) found.push(Math.abs(t) < size * 1e-9 ? 0 : t);
      return found;
    };
    const figure = (name) => {
      if (figures.has(name)) return figures.get(name);
      const outer = tag("figure"), caption = tag("figcaption"), plot = tag("div", "plot");
      const readout = tag("span", "now"), title = tag("b", "", titles[name] || name.replace(/^terms\./, "Term ").replace(/^watch\./, "Watched: "));
      const kind = tag("span");
      plot.tabIndex = 0;
      plot.setAttribute("role", "group");
      caption.append(title, kind, readout);
      outer.append(caption, plot);
      const made = { outer, plot, readout, kind, name, title: title.textContent };
      listen(made);
      figures.set(name, made);
      return made;
    };
    const draw = () => {
      if (!data) return;
      const names = Object.keys(data.columns).sort((a, b) => order(a) - order(b) || a.localeCompare(b)).slice(0, 14);
      holder.replaceChildren(...names.map((name) => { const f = figure(name); paint(f); return f.outer; }));
      byId("range").textContent = `steps ${whole(data.first)} to ${whole(data.last)}` + (data.width > 1 ? `, ${whole(data.width)} steps a column` : ", every step")
        + (data.read !== undefined && data.read < 0.999 ? `, ${(100 * data.read).toFixed(0)} % of the journal read so far` : "");
      if (data.read !== undefined && data.read < 0.999 && mode === "whole") setTimeout(() => { if (mode === "whole" && !paused) load(); }, 2000);
    };
    const order = (name) => { const i = ["loss", "grad_norm", "lr", "scale"].indexOf(name); return i < 0 ? (name.startsWith("terms.") ? 5 : 6) : i; };
    const paint = (f) => {
      const rows = data.columns[f.name], height = f.name === "loss" ? 150 : 84;
      const lows = rows.map((r) => r[1]).filter((v) => v !== null), highs = rows.map((r) => r[3]).filter((v) => v !== null);
      let low = Math.min(...lows), high = Math.max(...highs);
      const logarithmic = log && f.name !== "lr" && lows.length > 0 && low > 0 && high / low > 1.2;
      if (!lows.length) { low = 0; high = 1; }
      if (logarithmic) { const room = Math.max((high / low) ** 0.06, 1.05); low /= room; high *= room; }
      else { const room = (high - low) * 0.06 || Math.abs(high) * 0.1 || 1; high += room; low = low >= 0 && low < high * 0.4 ? 0 : low - room; }
      const place = (v) => logarithmic ? Math.log(Math.max(v, low)) : v;
      const y = (v) => height - height * Math.min(1, Math.max(0, (place(v) - place(low)) / (place(high) - place(low) || 1)));
      const span = Math.max(1, data.last - data.first + 1), width = data.width;
      const x = (step) => 1000 * (step + width / 2 - data.first) / span;
      // a few steps that are not finite do not break the curve: it goes on from the last value, above their red ticks
      const bridge = Math.floor(rows.length / 40);
      let line = "", band = "", back = "", bad = "", pen = false, gap = 0;
      const close = () => { if (band) band += `${back}z`; back = ""; };
      for (const [step, lowest, middle, highest] of rows) {
        const at = x(step).toFixed(1);
        if (middle === null) {
          bad += `M${at} ${height - 9}v9`;
          gap += 1;
          if (pen && gap > bridge) { pen = false; close(); }
          continue;
        }
        gap = 0;
        line += `${pen ? "L" : "M"}${at} ${y(middle).toFixed(1)}${pen ? "" : "h.1"}`;
        if (width > 1) { band += `${pen ? "L" : "M"}${at} ${y(highest).toFixed(1)}`; back = `L${at} ${y(lowest).toFixed(1)}${back}`; }
        pen = true;
      }
      close();
      const inner = make("svg", { viewBox: `0 0 1000 ${height}`, width: "100%", height, preserveAspectRatio: "none" });
      const outer = make("svg", { width: "100%", height: height + 18, class: "hit", role: "img" });
      const lastRow = rows[rows.length - 1];
      outer.setAttribute("aria-label", `${f.title}, steps ${whole(data.first)} to ${whole(data.last)}, last ${shown(lastRow && lastRow[2])}, smallest ${shown(lows.length ? Math.min(...lows) : null)}, largest ${shown(highs.length ? Math.max(...highs) : null)}`);
      const levels = ticks(low, high, logarithmic), largest = Math.max(...levels.map(Math.abs));
      for (const t of levels) {
        inner.append(make("path", { class: "grid", d: `M0 ${y(t).toFixed(1)}H1000` }));
        outer.append(make("text", { x: -7, y: (y(t) + 4).toFixed(1), "text-anchor": "end" }, tickText(t, largest)));
      }
      for (const t of ticks(data.first, data.last, false)) {
        const at = 100 * (t - data.first + 0.5) / span;
        if (t !== Math.round(t) || at < 0 || at > 100) continue;
        inner.append(make("path", { class: "grid", d: `M${(at * 10).toFixed(1)} 0V${height}` }));
        outer.append(make("text", { x: `${at.toFixed(2)}%`, y: height + 14, "text-anchor": at < 2 ? "start" : at > 98 ? "end" : "middle" }, whole(t)));
      }
      if (band) inner.append(make("path", { class: "band", d: band }));
      inner.append(make("path", { class: "l l1", d: line }));
      const skips = data.marks.map(([step]) => `M${(1000 * (step - data.first + 0.5) / span).toFixed(1)} ${height - 9}v9`).join("") + bad;
      if (skips) inner.append(make("path", { class: "l lbad", d: skips }));
      outer.append(inner, make("line", { class: "axis", x1: 0, x2: "100%", y1: height, y2: height }));
      f.plot.replaceChildren(outer);
      f.plot.setAttribute("aria-label", `${f.title}: chart; arrow keys read values`);
      f.kind.textContent = (logarithmic ? "log scale" : "linear scale") + ", red ticks: not applied or not finite";
      f.height = height;
      f.svg = outer;
      f.readout.textContent = newest(lastRow);
      if (cursor !== null) point(f);
    };
    const newest = (row) => (!row || data.last >= last ? "now " : `step ${whole(row[0])}: `) + shown(row && row[2]);
    const point = (f) => {
      const rows = data.columns[f.name];
      if (cursor === null || !rows) { f.readout.textContent = newest(rows && rows[rows.length - 1]); f.svg?.querySelector(".cursor")?.remove(); return; }
      let best = null;
      for (const r of rows) if (best === null || Math.abs(r[0] - cursor) < Math.abs(best[0] - cursor)) best = r;
      if (!best) return;
      const at = `${(100 * (best[0] + data.width / 2 - data.first) / Math.max(1, data.last - data.first + 1)).toFixed(2)}%`;
      let bar = f.svg.querySelector(".cursor");
      if (!bar) { bar = make("line", { class: "cursor", y1: 0, y2: f.height }); f.svg.append(bar); }
      bar.setAttribute("x1", at); bar.setAttribute("x2", at);
      const spread = data.width > 1 ? ` (${shown(best[1])} to ${shown(best[3])})` : "";
      f.readout.textContent = `step ${whole(best[0])}: ${shown(best[2])}${spread}`;
    };
    const pointAll = () => { for (const f of figures.values()) if (f.svg && data.columns[f.name]) point(f); };
    const stepAt = (f, event) => {
      const box = f.plot.getBoundingClientRect();
      const share = Math.min(1, Math.max(0, (event.clientX - box.left) / box.width));
      return Math.round(data.first + share * (data.last - data.first));
    };
    const listen = (f) => {
      let from = null, shade = null;
      f.plot.addEventListener("pointermove", (event) => {
        if (!data) return;
        cursor = stepAt(f, event); pointAll();
        if (from !== null && shade) {
          const a = Math.min(from, cursor), b = Math.max(from, cursor), span = data.last - data.first + 1;
          shade.setAttribute("x", `${100 * (a - data.first) / span}%`); shade.setAttribute("width", `${100 * (b - a) / span}%`);
        }
      });
      f.plot.addEventListener("pointerleave", () => { if (from === null) { cursor = null; pointAll(); } });
      f.plot.addEventListener("pointerdown", (event) => {
        if (event.button !== 0 || !data) return;
        from = stepAt(f, event);
        shade = make("rect", { class: "select", y: 0, height: f.height, width: 0 });
        f.svg.append(shade);
        f.plot.setPointerCapture(event.pointerId);
      });
      f.plot.addEventListener("pointerup", (event) => {
        if (from === null) return;
        const to = stepAt(f, event), a = Math.min(from, to), b = Math.max(from, to);
        from = null; shade?.remove();
        if (b - a >= 4) { mode = "zoom"; range = [a, b]; load(); }
      });
      f.plot.addEventListener("keydown", (event) => {
        if (!data || (event.key !== "ArrowLeft" && event.key !== "ArrowRight")) return;
        event.preventDefault();
        const by = (event.key === "ArrowLeft" ? -1 : 1) * data.width;
        cursor = Math.min(data.last, Math.max(data.first, (cursor === null ? data.last : cursor) + by));
        pointAll();
      });
      f.plot.addEventListener("blur", () => { cursor = null; if (data) pointAll(); });
    };
    let asked = 0;
    const load = async () => {
      const [a, b] = mode === "follow" ? [Math.max(0, last - FOLLOW + 1), last] : mode === "whole" ? [0, last] : range;
      for (const button of document.querySelectorAll("[data-range]")) if (button.hasAttribute("aria-pressed")) button.setAttribute("aria-pressed", String(button.dataset.range === mode));
      const mine = ++asked;
      const answer = await fetch(`/api/run/${ident}/series?first=${a}&last=${b}`);
      if (!answer.ok || mine !== asked) return;
      data = await answer.json();
      draw();
    };
    const zoom = (factor) => {
      if (!data) return;
      const middle = cursor === null ? (data.first + data.last) / 2 : cursor, half = Math.max(5, (data.last - data.first) * factor / 2);
      mode = "zoom";
      range = [Math.max(0, Math.round(middle - half)), Math.min(last, Math.round(middle + half))];
      load();
    };
    const set = (id, text) => { const node = byId(`now-${id}`); if (node) node.textContent = text; };
    const receive = (message) => {
      last = message.run.step;
      const state = byId("state");
      state.textContent = `${message.run.sign} ${message.run.state}`;
      state.className = `badge ${message.run.tone}`;
      byId("reason").textContent = plain(message.run.reason);
      document.title = `${plain(message.run.name)}: ${message.run.state}, step ${last.toLocaleString("en-US")} · nantrap live`;
      for (const [id, text] of Object.entries(message.facts)) set(id, text);
      for (const event of message.events) {
        const group = `${event.code} ${event.did}`;
        const before = [...feed.children].find((item) => item.dataset.group === group);
        if (before && Number(before.dataset.step) >= event.step) continue;
        byId("no-events")?.remove();
        const item = tag("li");
        const first = before ? Number(before.dataset.first) : event.step, times = before ? Number(before.dataset.times) + 1 : 1;
        Object.assign(item.dataset, { step: event.step, first, times, group });
        const said = tag("span");
        said.append(tag("b", event.tone, `${event.sign} ${event.code}`), ` ${event.did}`);
        said.append(tag("span", "times", times > 1 ? ` ${whole(times)} times since step ${whole(first)}` : ""));
        item.append(tag("span", "num mono", `${whole(event.step)}\u00a0`), said, tag("span", "note break", event.text));
        before?.remove();
        feed.prepend(item);
        while (feed.children.length > 40) feed.lastElementChild.remove();
      }
      if (mode === "follow") {
        if (!data || data.width !== 1) { load(); return; }
        for (const [step, action, numbers] of message.rows) {
          if (step <= data.last) continue;
          data.last = step;
          if (action !== "apply") data.marks.push([step, action, ""]);
          for (const [name, v] of Object.entries(numbers)) (data.columns[name] ||= []).push([step, v, v, v, v === null ? 0 : 1, v === null ? 1 : 0]);
        }
        data.first = Math.max(0, data.last - FOLLOW + 1);
        for (const name of Object.keys(data.columns)) data.columns[name] = data.columns[name].filter((r) => r[0] >= data.first);
        data.marks = data.marks.filter(([step]) => step >= data.first);
        draw();
      } else if (mode === "whole" && message.rows.length) load();
    };
    const address = () => `/run/${ident}/events?after=${last}`;
    byId("tools").hidden = false;
    for (const button of document.querySelectorAll("[data-range]")) button.addEventListener("click", () => {
      const wanted = button.dataset.range;
      if (wanted === "in") zoom(0.5); else if (wanted === "out") zoom(2); else { mode = wanted; load(); }
    });
    const scale = () => { log = !log; byId("log").setAttribute("aria-pressed", String(log)); draw(); };
    byId("log").addEventListener("click", scale);
    pause.addEventListener("click", () => toggle(address, receive));
    document.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const actions = { l: scale, p: () => toggle(address, receive), w: () => { mode = "whole"; load(); }, f: () => { mode = "follow"; load(); }, "+": () => zoom(0.5), "-": () => zoom(2), i: () => byId("incidents").focus(), Escape: () => { mode = "follow"; load(); } };
      if (actions[event.key]) { event.preventDefault(); actions[event.key](); }
    });
    load().then(() => connect(address, receive));
  };
  if (!root || !window.EventSource) return;
  pause.hidden = false;
  (root.dataset.page === "list" ? listPage : runPage)();
})();
