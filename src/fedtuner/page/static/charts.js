"use strict";
// What is drawn: functions from a study's view to an ECharts option. Texts of a study are only ever drawn as text.

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const FONT = '-apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif';
const narrow = () => window.innerWidth < 640;

function number(x) {
  if (x === null || x === undefined) return "none";
  if (typeof x !== "number") return String(x);
  return Number.isInteger(x) && Math.abs(x) < 1e9 ? x.toLocaleString("en") : String(+x.toPrecision(4));
}
const percent = (x) => (x === null || x === undefined ? "none" : `${(100 * x).toFixed(1)}\u00a0%`);
const tick = (x) => `${+(100 * x).toPrecision(3)}\u00a0%`;
const valueOf = (study, metric) => (x) => (metric === "error" && study.measure.rate ? percent(x) : number(x));
const tickOf = (study, metric) => (x) => (metric === "error" && study.measure.rate ? tick(x) : number(+x.toPrecision(6)));
// The problem's metric is called "error" inside; it may have another name, and higher may be better.
const nameOf = (study, metric = "error") => (metric === "error" ? study.measure.name : metric);
const better = (study) => (a, b) => (study.measure.maximise ? b - a : a - b);
const words = (config) => Object.entries(config).map(([name, x]) => `${name} ${number(x)}`).join(", ");
const first = (arm) => (arm.parent ? arm.parent[1] + 1 : 1);
const when = (study) => (study.target === "global" ? "before" : "after");

function element(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) made.setAttribute(name, value);
  made.append(...children.map((child) => (child instanceof Node ? child : String(child))));
  return made;
}

// A tooltip as elements: ECharts would take a string for HTML.
const tip = (title, ...lines) =>
  element("div", { class: "tip" }, element("b", {}, title), ...lines.filter(Boolean).map((line) => element("div", {}, line)));

function base() {
  const [ink, soft, rule, card] = ["ink", "soft", "rule", "card"].map(css);
  return {
    animation: false,
    textStyle: { fontFamily: FONT, color: ink, fontSize: 13 },
    tooltip: {
      confine: true, backgroundColor: card, borderColor: rule, textStyle: { color: ink, fontSize: 13 }, padding: [8, 10],
    },
    aria: { enabled: false },
    axis: (name, more) => ({
      name, nameTextStyle: { color: soft, fontSize: 13 }, axisLabel: { color: soft, fontSize: 12, hideOverlap: true },
      axisLine: { show: true, lineStyle: { color: rule } }, axisTick: { show: false },
      splitLine: { show: false }, ...more,
    }),
    grid: { left: 12, right: 16, top: 34, bottom: 36, outerBoundsMode: "same", outerBoundsContain: "axisLabel" },
  };
}
const below = (gap = 28) => ({ nameLocation: "middle", nameGap: gap });
const above = { nameLocation: "end", nameGap: 12, nameTextStyle: { align: "left", padding: [0, 0, 0, -30], fontSize: 13 } };
const lines = () => ({ splitLine: { show: true, lineStyle: { color: css("rule"), opacity: 0.6 } }, axisLine: { show: false } });
const ticks = (formatter) => ({ color: css("soft"), fontSize: 12, hideOverlap: true, formatter });
const label = (study, show) => `${nameOf(study, show.metric)} ${show.when} local training`;

const rounded = (x) => {
  const unit = 10 ** Math.floor(Math.log10(Math.abs(x) || 1)) / 2;
  return Math.ceil(x / unit - 1e-9) * unit;
};
// Both ends of the y axis. It ends a little above where arms begin: arms that diverge leave the picture.
function range(study, key, kind) {
  const starts = study.arms.filter((a) => !a.parent).map((a) => a[key][kind].find((v) => v !== null) ?? 0);
  const shown = study.arms.flatMap((a) => a[key][kind]).concat(study.untuned ? study.untuned[key][kind] : []).filter((v) => v !== null);
  const [least, most] = shown.reduce(([low, high], v) => [Math.min(low, v), Math.max(high, v)], [0, 0]);
  const middle = [...starts].sort((a, b) => a - b)[Math.floor(starts.length / 2)] || most;
  const free = study.measure.maximise && key.startsWith("error");
  return [-rounded(-least) || 0, rounded(free || middle <= 0 ? most : Math.min(most, 1.6 * middle)) || 1];
}

function ancestors(study, id) {
  const found = new Set(), arm = study.arms.find((one) => one.id === id);
  if (arm && arm.parent) ancestors(study, arm.parent[0]).add(arm.parent[0]).forEach((one) => found.add(one));
  return found;
}

// How far labels at the ends of lines move up or down, in pixels, to stand apart; ends are [name, x, value].
function apart(ends, low, high, near, height) {
  const moved = {}, placed = [];
  for (const [name, x, value] of [...ends].sort((a, b) => a[2] - b[2])) {
    const wanted = (((value ?? low) - low) / (high - low)) * height;
    const under = placed.filter(([other]) => Math.abs(other - x) < near).map(([, at]) => at + 17);
    const at = Math.max(wanted, ...under);
    placed.push([x, at]);
    moved[name] = wanted - at;
  }
  return moved;
}

function race(study, show, chosen, pointer) {
  const b = base(), key = `${show.metric}_${show.when}`, kind = show.raw ? "raw" : "mean";
  const colour = { winner: css("winner"), before: css("winner"), untuned: css("untuned"), chosen: css("chosen"), faint: css("faint") };
  const say = valueOf(study, show.metric), [low, high] = range(study, key, kind);
  const series = [];
  const before = ancestors(study, study.winner ? study.winner.arm : null);
  const role = (arm) => (study.winner && arm.id === study.winner.arm ? "winner" : arm.id === chosen ? "chosen" : before.has(arm.id) ? "before" : "faint");
  const named = { winner: "winner", chosen: "chosen" }, order = { faint: 2, before: 3, chosen: 4, winner: 5 };
  const band = (id, curve, start, shade) => {
    if (show.raw) return;
    const from = [], wide = [];
    curve.mean.forEach((m, n) => {
      const h = curve.half[n];
      if (m === null || h === null) return;
      from.push([start + n, Math.max(low, m - h)]);
      wide.push([start + n, m + h - Math.max(low, m - h)]);
    });
    const common = { type: "line", stack: `band-${id}`, stackStrategy: "all", symbol: "none", silent: true, lineStyle: { opacity: 0 }, z: 1, tooltip: { show: false } };
    series.push({ ...common, id: `low-${id}`, data: from });
    series.push({ ...common, id: `band-${id}`, data: wide, areaStyle: { color: shade, opacity: 0.16 } });
  };
  const longest = Math.max(1, ...study.arms.map((a) => a.rounds)); // the untuned default may have more
  const plain = study.untuned && { raw: study.untuned[key].raw.slice(0, longest), mean: study.untuned[key].mean.slice(0, longest), half: study.untuned[key].half };
  const ends = study.arms.filter((arm) => role(arm) in named).map((arm) => [`arm-${arm.id}`, arm.rounds, arm[key][kind].at(-1)]);
  if (plain) ends.push(["untuned", plain[kind].length, plain[kind].at(-1)]);
  const moved = apart(ends, low, high, 0.1 * longest, narrow() ? 280 : 340);
  for (const arm of study.arms) {
    const r = role(arm), start = first(arm), data = arm[key][kind].map((v, n) => [start + n, v]);
    const last = data.findLast((point) => point[1] !== null);
    const bright = r in named, text = !bright ? "" : `arm ${arm.id}${narrow() ? "" : `, ${named[r]}`}`;
    if (bright) band(arm.id, arm[key], start, colour[r]);
    series.push({
      id: `arm-${arm.id}`, name: `arm ${arm.id}`, type: "line", data, symbol: "none", z: order[r], sampling: "lttb",
      lineStyle: { color: colour[r], width: r === "winner" ? 2.6 : bright ? 2.2 : r === "before" ? 1.6 : 1.2 }, emphasis: { disabled: true },
      triggerLineEvent: true, color: colour[r],
      endLabel: { show: bright, formatter: () => text, color: colour[r], fontSize: 13, fontWeight: 600, distance: 8, offset: [0, moved[`arm-${arm.id}`] || 0] },
      markPoint: last && last[1] <= high && (arm.out || r === "winner" || arm.ended)
        ? { symbol: r === "winner" ? "circle" : "path://M0 0L10 10M10 0L0 10", symbolSize: r === "winner" ? 9 : 6, silent: true,
            itemStyle: { color: r === "winner" ? colour[r] : "transparent", borderColor: colour[r], borderWidth: r === "winner" ? 0 : 1.4 },
            label: { show: false }, data: [{ coord: last }] }
        : undefined,
    });
  }
  if (study.untuned) {
    band("untuned", plain, 1, colour.untuned);
    series.push({
      id: "untuned", name: "untuned", type: "line", data: plain[kind].map((v, n) => [1 + n, v]), symbol: "none", z: 4, sampling: "lttb",
      lineStyle: { color: colour.untuned, width: 2, type: [6, 4] }, color: colour.untuned, emphasis: { disabled: true },
      endLabel: { show: true, formatter: () => "untuned", color: colour.untuned, fontSize: 13, fontWeight: 600, distance: 8, offset: [0, moved.untuned] },
    });
  }
  return {
    ...b, series, grid: { ...b.grid, right: narrow() ? 70 : 120 },
    xAxis: b.axis("round of the arm", { type: "value", min: 0, max: longest, minInterval: 1, ...below() }),
    yAxis: b.axis(label(study, show), {
      type: "value", min: low, max: high, ...above, ...lines(), axisLabel: ticks(tickOf(study, show.metric)),
    }),
    tooltip: {
      ...b.tooltip, trigger: "axis", axisPointer: { type: "line", lineStyle: { color: css("faint") } },
      formatter: (params) => raceTip(study, show, params, pointer),
    },
  };
}

function raceTip(study, show, params, pointer) {
  const key = `${show.metric}_${show.when}`, say = valueOf(study, show.metric), at = Math.round(params[0].axisValue);
  const curves = new Map(study.arms.map((arm) => [`arm-${arm.id}`, [`Arm ${arm.id}`, arm[key], at - first(arm), arm]]));
  if (study.untuned) curves.set("untuned", ["Untuned", study.untuned[key], at - 1, null]);
  const aim = pointer(), kind = show.raw ? "raw" : "mean";
  let best = null;
  for (const [id, [name, curve, n, arm]] of curves) {
    const value = curve[kind][n];
    if (n < 0 || value === undefined || value === null) continue;
    const far = Math.abs(value - aim);
    if (!best || far < best.far) best = { id, name, curve, n, arm, far };
  }
  if (!best) return null;
  const { curve, n, arm } = best, half = curve.half[n];
  const mean = `mean of the last ${study.window} rounds: ${say(curve.mean[n])}${half ? ` ± ${say(half)}` : ""}`;
  return tip(`${best.name}, round ${at}`, `${nameOf(study, show.metric)} ${show.when}: ${say(curve.raw[n])}`, study.window > 1 && mean,
    arm && words(arm.client));
}

function incumbent(study, show) {
  const b = base(), key = `${show.metric}_${show.when}`, say = valueOf(study, show.metric), found = study.incumbent;
  const [low, high] = range(study, key, "mean"), own = study.untuned ? study.untuned[key].mean : [];
  const moved = apart([["tuned", study.used, found[key].at(-1)], ["untuned", own.length, own.at(-1)]], low, high, 0.1 * study.used, 220);
  const series = [{
    id: "incumbent", type: "line", step: "end", symbol: found.used.length > 1 ? "none" : "circle", symbolSize: 8, z: 3, lineStyle: { color: css("winner"), width: 2.4 }, color: css("winner"),
    data: found.used.map((used, n) => [used, found[key][n], found.arm[n]]),
    endLabel: { show: true, formatter: () => "tuned", color: css("winner"), fontSize: 13, fontWeight: 600, distance: 8, offset: [0, moved.tuned] }, emphasis: { disabled: true },
  }];
  if (study.untuned) series.push({
    id: "untuned", type: "line", symbol: "none", lineStyle: { color: css("untuned"), width: 2, type: [6, 4] }, color: css("untuned"),
    data: study.untuned[key].mean.map((v, n) => [n + 1, v]), sampling: "lttb", emphasis: { disabled: true },
    endLabel: { show: true, formatter: () => "untuned", color: css("untuned"), fontSize: 13, fontWeight: 600, distance: 8, offset: [0, moved.untuned] },
  });
  return {
    ...b, series, grid: { ...b.grid, right: narrow() ? 62 : 80 },
    xAxis: b.axis("communication rounds used, over all arms", { type: "value", min: 0, max: Math.max(study.used, study.untuned ? study.untuned[key].raw.length : 1), minInterval: 1, ...below() }),
    yAxis: b.axis(label(study, show), { type: "value", min: low, max: high, ...above, ...lines(), axisLabel: ticks(tickOf(study, show.metric)) }),
    tooltip: {
      ...b.tooltip, trigger: "axis", axisPointer: { type: "line", lineStyle: { color: css("faint") } },
      formatter: (params) => {
        const own = params.find((p) => p.seriesId === "incumbent"), other = params.find((p) => p.seriesId === "untuned");
        return tip(`${number(Math.round(params[0].value[0]))} rounds used`, own && `incumbent, arm ${own.value[2]}: ${say(own.value[1])}`, other && `untuned: ${say(other.value[1])}`);
      },
    },
  };
}

// From good to bad, even in lightness on both grounds.
const dark = () => matchMedia("(prefers-color-scheme: dark)").matches;
const SCALE = () => (dark() ? ["#4fc3b8", "#7f96b8", "#8b7aa8", "#8a6350"] : ["#0b6e69", "#5b86b3", "#b3a5cf", "#e3c39a"]);
function shade(part) {
  const scale = SCALE(), at = Math.min(0.9999, Math.max(0, part)) * (scale.length - 1), n = Math.floor(at);
  const [from, to] = [scale[n], scale[n + 1]].map((c) => [1, 3, 5].map((i) => parseInt(c.slice(i, i + 2), 16)));
  return `rgb(${from.map((x, i) => Math.round(x + (at - n) * (to[i] - x))).join(",")})`;
}

function configurations(study, chosen) {
  const b = base(), { axes, rows } = study.configurations, say = valueOf(study, "error"), soft = css("soft");
  const known = rows.filter((row) => row.error !== null).sort((x, y) => better(study)(y.error, x.error));
  const rank = new Map(known.map((row, n) => [row.arm, known.length > 1 ? 1 - n / (known.length - 1) : 0]));
  const short = (name) => (narrow() ? name : name.replace(".", "\n"));
  const common = { nameTextStyle: { color: css("ink"), fontSize: 12, lineHeight: 15 }, axisLine: { lineStyle: { color: css("faint") } }, axisTick: { show: false }, axisLabel: { color: soft, fontSize: 11, hideOverlap: true } };
  const errors = known.map((row) => row.error);
  const parallelAxis = axes.map((axis, dim) => ({
    dim, name: short(axis.name), ...common,
    ...(axis.kind === "choice" ? { type: "category", data: axis.choices.map(String) }
      : { type: axis.kind === "log" ? "log" : "value", min: axis.low, max: axis.high, splitNumber: 4, minInterval: axis.whole ? 1 : 0,
          axisLabel: { ...common.axisLabel, formatter: (v) => (v !== 0 && (Math.abs(v) < 0.001 || Math.abs(v) >= 1e5) ? v.toExponential(0) : number(v)) } }),
  }));
  parallelAxis.push({ dim: axes.length, name: nameOf(study), type: "value", min: -rounded(-Math.min(...errors, 0)) || 0, max: rounded(Math.max(...errors, 1e-9)), ...common, nameTextStyle: { color: css("ink"), fontWeight: 600 },
    axisLabel: { ...common.axisLabel, formatter: tickOf(study, "error") } });
  const line = (row) => ({
    name: String(row.arm), value: [...row.values.map((v, n) => (v === null ? v : axes[n].kind === "choice" ? String(v) : Math.min(Math.max(v, axes[n].low), axes[n].high))), row.error],
    lineStyle: row.arm === chosen ? { color: css("chosen"), width: 2.6, opacity: 1 } : { color: shade(rank.get(row.arm)), width: 1.6, opacity: 0.85 },
  });
  const winner = study.winner && known.find((row) => row.arm === study.winner.arm);
  const ordered = known.filter((row) => row !== winner).sort((x, y) => (x.arm === chosen) - (y.arm === chosen));
  const series = [{ id: "arms", type: "parallel", data: ordered.map(line), smooth: 0.15, emphasis: { lineStyle: { width: 3, opacity: 1 } } }];
  if (winner) series.push({ id: "winner", type: "parallel", data: [{ ...line(winner), lineStyle: { color: css("winner"), width: 3.2, opacity: 1 } }], smooth: 0.15, z: 5 });
  return {
    ...b, series, parallelAxis,
    parallel: narrow() ? { layout: "vertical", left: 16, right: 116, top: 14, bottom: 24 } : { left: 50, right: 60, top: 52, bottom: 24 },
    ...(narrow() ? { parallelAxis: parallelAxis.map((a) => ({ ...a, nameLocation: "end", nameGap: 8 })) } : {}),
    tooltip: { ...b.tooltip, trigger: "item", formatter: (p) => {
      const row = known.find((one) => String(one.arm) === p.name), arm = study.arms.find((one) => one.id === row.arm);
      return tip(`Arm ${row.arm}${row === winner ? ", the winner" : ""}`, `${nameOf(study)} ${say(row.error)} after ${arm.rounds} rounds`, words(arm.client), words(arm.server) && `server: ${words(arm.server)}`);
    } },
  };
}

function importance(study) {
  const b = base(), shares = [...study.importance.shares].reverse();
  return {
    ...b, grid: { ...b.grid, top: 4, right: 60 },
    xAxis: b.axis("share of the importance", { type: "value", min: 0, splitNumber: narrow() ? 3 : 6, ...below(), axisLabel: ticks(tick) }),
    yAxis: b.axis("", { type: "category", data: shares.map(([name]) => name), axisLabel: { color: css("ink"), fontSize: 13 }, axisLine: { show: false } }),
    series: [{ id: "importance", type: "bar", data: shares.map(([, share]) => share), barMaxWidth: 18, itemStyle: { color: css("winner"), borderRadius: [0, 3, 3, 0] },
      label: { show: true, position: "right", color: css("soft"), formatter: (p) => tick(+p.value.toPrecision(2)) } }],
    tooltip: { ...b.tooltip, trigger: "item", formatter: (p) => tip(p.name, percent(p.value)) },
  };
}

function theta(study, arm) {
  const b = base(), { rounds, p } = arm.theta, start = first(arm), k = p[0].length, max = Math.max(...p.flat(), 1 / k);
  const cells = p.flatMap((column, x) => column.map((value, y) => [x, y, value]));
  const every = Math.max(1, Math.ceil(k / 9));
  const left = 52, right = 20;
  return {
    ...b,
    grid: [{ left, right, top: 26, height: 70 }, { left, right, top: 136, bottom: 84 }],
    xAxis: [b.axis("", { type: "category", data: rounds, gridIndex: 0, axisLabel: { show: false } }),
      b.axis("round", { type: "category", data: rounds, gridIndex: 1, ...below(26), axisLabel: { color: css("soft"), fontSize: 12, hideOverlap: true } })],
    yAxis: [b.axis("entropy of theta, in nats", { type: "value", gridIndex: 0, min: 0, max: +Math.log(k).toFixed(2), interval: +Math.log(k).toFixed(2), ...above, ...lines() }),
      b.axis("probability of each candidate", { type: "category", data: p[0].map((_, n) => `c${n + 1}`), gridIndex: 1, inverse: true, nameLocation: "start", nameGap: 12,
        nameTextStyle: { align: "left", padding: [0, 0, 0, -30], color: css("soft"), fontSize: 13 }, axisLabel: { color: css("soft"), fontSize: 12, interval: (n) => n % every === 0 } })],
    visualMap: { type: "continuous", min: 0, max, seriesIndex: 1, dimension: 2, orient: "horizontal", left: "center", bottom: 0, calculable: false, itemHeight: 160, itemWidth: 10,
      text: [number(+max.toPrecision(2)), "0"], textStyle: { color: css("soft") }, inRange: { color: dark() ? ["#1f2229", "#1f5a5a", "#4fc3b8", "#d8fff6"] : ["#ffffff", "#bfe0d8", "#3f9d94", "#063c3a"] } },
    series: [
      { id: "entropy", type: "line", xAxisIndex: 0, yAxisIndex: 0, symbol: "none", data: rounds.map((t) => arm.entropy[t - start]), lineStyle: { color: css("chosen"), width: 2 }, color: css("chosen"), emphasis: { disabled: true } },
      { id: "theta", type: "heatmap", xAxisIndex: 1, yAxisIndex: 1, data: cells, itemStyle: { borderWidth: 0 }, emphasis: { itemStyle: { borderColor: css("ink"), borderWidth: 1 } } },
    ],
    tooltip: { ...b.tooltip, trigger: "item", axisPointer: { type: "line" }, formatter: (q) =>
      (q.seriesId === "theta" ? tip(`Round ${rounds[q.value[0]]}, candidate c${q.value[1] + 1}`, `probability ${number(q.value[2])}`, words(arm.candidates[q.value[1]] || {})) : null) },
  };
}

const HELPED = () => ({ helped: css("winner"), harmed: css("untuned"), same: css("soft") });
function fate(study, row) {
  const gain = better(study)(row[4], row[5]);
  return gain > 1e-9 ? "helped" : gain < -1e-9 ? "harmed" : "same";
}

function clients(study, rows) {
  const b = base(), say = valueOf(study, "error"), colours = HELPED(), largest = Math.max(...rows.map((r) => r[1]), 1);
  const most = rounded(Math.max(...rows.map((r) => Math.max(r[4], r[5])), 0.01)), least = -rounded(-Math.min(...rows.map((r) => Math.min(r[4], r[5])), 0)) || 0;
  const series = Object.entries(colours).map(([name, color]) => ({
    id: name, name, type: "scatter", itemStyle: { color, opacity: 0.6, borderColor: color }, cursor: "default",
    data: rows.filter((row) => fate(study, row) === name).map((row) => ({ value: [row[4], row[5], row[1]], row })),
    symbolSize: (value) => 4 + 10 * Math.sqrt(value[2] / largest),
  }));
  series[0].markLine = { silent: true, symbol: "none", lineStyle: { color: css("faint"), type: "dashed", width: 1 }, label: { show: false }, data: [[{ coord: [least, least] }, { coord: [most, most] }]] };
  const ends = { type: "value", min: least, max: most, ...lines() };
  return {
    ...b, series, grid: { ...b.grid, right: 24 },
    xAxis: b.axis(`${nameOf(study)} before local training`, { ...ends, ...below(), axisLabel: ticks(tickOf(study, "error")) }),
    yAxis: b.axis(`${nameOf(study)} after local training`, { ...ends, ...above, axisLabel: ticks(tickOf(study, "error")) }),
    tooltip: { ...b.tooltip, trigger: "item", formatter: (p) => {
      const [id, size, held, rounds, before, after] = p.data.row;
      return tip(`Client ${id}`, `${say(before)} before, ${say(after)} after local training`, `${number(size)} training and ${number(held)} validation examples, ${number(rounds)} rounds`);
    } },
  };
}

// All clients, the worst tenth of them, and groups: the same name has the same colour and dashes in the keys.
const GROUPS = () => (dark() ? ["#9ab6ff", "#e0c15a", "#d79ad0", "#8fd18a", "#c9a58c", "#7fc9e0"] : ["#3557b0", "#8a6d00", "#8e3f86", "#3a7a35", "#80533a", "#1f6f88"]);
function served(names) {
  const colours = GROUPS(), groups = names.filter((name) => name.startsWith("group "));
  return new Map(names.map((name) => {
    const n = groups.indexOf(name);
    return [name, n >= 0 ? { color: colours[n % colours.length], width: 1.6, type: n < colours.length ? "solid" : [2, 3] }
      : name === "clients" ? { color: css("winner"), width: 2.4, type: "solid" } : { color: css("untuned"), width: 2.2, type: [6, 4] }];
  }));
}
const whom = (name) => ({ clients: "all clients", "worst tenth": "worst tenth of clients", "mean of clients": "mean over clients" }[name] || name);

function servedOver(study, found, side) {
  const b = base(), say = valueOf(study, "error"), lines_ = found.lines[side], names = Object.keys(lines_), styles = served(names);
  const values = names.flatMap((name) => lines_[name]).filter((v) => v !== null);
  return {
    ...b, grid: { ...b.grid, right: 24 },
    xAxis: b.axis("round of the arm", { type: "value", min: Math.min(...found.rounds) > 1 ? Math.min(...found.rounds) : 0, max: Math.max(...found.rounds), minInterval: 1, ...below() }),
    yAxis: b.axis(`${nameOf(study)} ${side} local training`, { type: "value", min: -rounded(-Math.min(0, ...values)) || 0, max: rounded(Math.max(...values, 1e-9)), ...above, ...lines(), axisLabel: ticks(tickOf(study, "error")) }),
    series: names.map((name) => ({ id: `served-${name}`, name, type: "line", symbol: found.rounds.length > 1 ? "none" : "circle", symbolSize: 8, lineStyle: styles.get(name), color: styles.get(name).color,
      connectNulls: true, emphasis: { disabled: true }, data: found.rounds.map((t, n) => [t, lines_[name][n]]) })),
    tooltip: { ...b.tooltip, trigger: "axis", axisPointer: { type: "line", lineStyle: { color: css("faint") } }, formatter: (params) => {
      const n = params[0].dataIndex;
      return tip(`Round ${found.rounds[n]}`, ...names.map((name) => `${whom(name)}: ${say(lines_[name][n])}`));
    } },
  };
}

function family(study) {
  const parents = new Set(study.arms.filter((a) => a.parent).flatMap((a) => [a.id, a.parent[0]]));
  return study.arms.length <= 30 ? study.arms : study.arms.filter((a) => parents.has(a.id));
}
const stageOf = (arm) => (arm.stage ? `, ${arm.stage}` : "");

function lineage(study, chosen) {
  const b = base(), shown = family(study), rows = new Map(shown.map((arm, n) => [arm.id, n])), series = [];
  for (const arm of shown) {
    const y = rows.get(arm.id), start = first(arm) - 1, won = study.winner && arm.id === study.winner.arm;
    const color = won ? css("winner") : arm.id === chosen ? css("chosen") : css("soft");
    if (arm.parent && rows.has(arm.parent[0])) series.push({
      id: `from-${arm.id}`, type: "line", symbol: "none", silent: true, data: [[start, rows.get(arm.parent[0])], [start, y]], lineStyle: { color: css("faint"), width: 1.4, type: "dotted" },
    });
    series.push({
      id: `arm-${arm.id}`, name: String(arm.id), type: "line", data: [[start, y], [arm.rounds, y]], symbol: "circle", symbolSize: (v, q) => (q.dataIndex ? 9 : arm.parent ? 7 : 0),
      lineStyle: { color, width: won ? 5 : 3.5 }, itemStyle: { color, opacity: 1 }, emphasis: { disabled: true },
      endLabel: { show: true, formatter: () => `arm ${arm.id}${won ? ", winner" : ""}`, color, fontSize: 12, distance: 8 },
    });
  }
  return {
    ...b, series, grid: { left: narrow() ? 16 : 24, right: narrow() ? 92 : 110, top: 8, bottom: 40 },
    xAxis: b.axis("round of the arm", { type: "value", axisLine: { show: false }, min: 0, max: Math.max(...shown.map((a) => a.rounds), 1), minInterval: 1, ...below() }),
    yAxis: { type: "value", min: -0.6, max: shown.length - 0.4, inverse: true, show: false },
    tooltip: { ...b.tooltip, trigger: "item", formatter: (p) => {
      const arm = study.arms.find((one) => String(one.id) === p.seriesName);
      return arm ? tip(`Arm ${arm.id}${stageOf(arm)}`, arm.parent ? `continues arm ${arm.parent[0]} after round ${arm.parent[1]}` : "begins with new weights", `reaches round ${arm.rounds}`, words(arm.client)) : null;
    } },
  };
}

function health(study) {
  const b = base(), { bins, size } = study.health, colours = [css("link"), css("winner"), css("soft"), css("untuned"), css("chosen")];
  const names = ["failed", "late", "silent", "broken", "bounded"];
  return {
    ...b, legend: { top: 0, left: 0, textStyle: { color: css("ink") }, itemWidth: 12, itemHeight: 12, data: names },
    grid: { ...b.grid, top: narrow() ? 76 : 56 },
    xAxis: b.axis("rounds used", { type: "category", data: bins.map((_, n) => String(n * size + 1)), ...below() }),
    yAxis: b.axis("of the clients asked", { type: "value", min: 0, ...above, ...lines(), axisLabel: ticks(tick) }),
    series: names.map((name, n) => ({ name, id: name, type: "bar", stack: "all", data: bins.map((bin) => bin[n + 1] / Math.max(1, bin[0])), itemStyle: { color: colours[n] }, barMaxWidth: 24 })),
    tooltip: { ...b.tooltip, trigger: "axis", axisPointer: { type: "shadow" }, formatter: (params) => {
      const bin = bins[params[0].dataIndex], from = params[0].dataIndex * size + 1;
      return tip(`Rounds ${from} to ${from + size - 1}`, `${number(bin[0])} clients asked`, ...names.map((name, n) => `${name}: ${number(bin[n + 1])}`));
    } },
  };
}

function comparison(found) {
  const b = base(), rows = [...found.rows].reverse(), say = (x) => (found.rates ? percent(x) : number(x));
  const known = rows.flatMap((r) => [...Object.values(r.errors), r.mean]).filter((x) => x !== null), low = Math.min(...known, 0) < 0 ? -Infinity : 0;
  const [least, most] = [Math.min(...rows.map((r) => Math.max(low, r.mean - (r.half || 0))), ...known, 0), Math.max(...rows.map((r) => r.mean + (r.half || 0)), ...known, 1e-9)];
  const color = (row) => css(row.untuned ? "untuned" : "winner");
  return {
    ...b, grid: { ...b.grid, top: 8, right: 28, left: 8 },
    xAxis: b.axis(`test ${found.measure}`, { type: "value", min: -rounded(-least) || 0, max: rounded(most), ...below(), ...lines(), axisLabel: ticks(found.rates ? tick : number) }),
    yAxis: b.axis("", { type: "category", data: rows.map((r) => r.name), axisLabel: { color: css("ink"), fontSize: 13, width: narrow() ? 110 : 260, overflow: "break" } }),
    series: [
      ...rows.map((row, n) => ({ id: `interval-${n}`, type: "line", symbol: "none", silent: true, lineStyle: { color: color(row), width: 3 }, data: row.half === null ? [] : [[Math.max(low, row.mean - row.half), n], [row.mean + row.half, n]] })),
      { id: "seeds", type: "scatter", symbolSize: 7, itemStyle: { opacity: 0.45 }, data: rows.flatMap((row, n) => Object.entries(row.errors).map(([seed, e]) => ({ value: [e, n], seed, row, itemStyle: { color: color(row) } }))) },
      { id: "means", type: "scatter", symbolSize: 13, data: rows.map((row, n) => ({ value: [row.mean, n], row, itemStyle: { color: color(row) } })) },
    ],
    tooltip: { ...b.tooltip, trigger: "item", formatter: (p) => p.data.row && (p.data.seed === undefined
      ? tip(p.data.row.name, `mean of ${p.data.row.n}: ${say(p.data.row.mean)}${p.data.row.half === null ? "" : ` ± ${say(p.data.row.half)}`}`)
      : tip(p.data.row.name, `seed ${p.data.seed}: ${say(p.value[0])}`)) },
  };
}
