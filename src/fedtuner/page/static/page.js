"use strict";
// The page: its texts, tables and controls, and where the charts of charts.js go.

(() => {
  const given = JSON.parse(document.getElementById("data").textContent);
  const $ = (id) => document.getElementById(id);
  const charts = new Map();
  const show = { metric: "error", when: "after", raw: false };
  let aimed = 0; // where the pointer is in its chart, from the top
  let studies = given.studies, comparing = given.comparison, at = 0, chosen = null, asked = null, group = "";
  const study = () => studies[at];
  const armOf = (id) => study().arms.find((arm) => arm.id === id);
  const plural = (n, one, many) => `${number(n)} ${n === 1 ? one : many || `${one}s`}`;

  function put(id, ...children) { $(id).replaceChildren(...children.map((c) => (c instanceof Node ? c : document.createTextNode(c)))); }

  function draw(id, option, about) {
    const place = $(id);
    place.hidden = !option;
    if (!option) {
      if (charts.has(id)) charts.get(id).dispose();
      charts.delete(id);
      return null;
    }
    if (!charts.has(id)) {
      charts.set(id, echarts.init(place, null, { renderer: "svg" }));
      charts.get(id).getZr().on("mousemove", (event) => { aimed = event.offsetY; });
    }
    const chart = charts.get(id);
    chart.resize();
    chart.setOption(option, { notMerge: true });
    place.setAttribute("role", "img");
    place.setAttribute("aria-label", about);
    return chart;
  }

  function table(id, caption, heads, rows) {
    const fold = $(id).parentElement;
    if (fold.tagName === "DETAILS") fold.hidden = !rows.length;
    if (!rows.length) return put(id);
    const head = element("tr", {}, ...heads.map((text) => element("th", { scope: "col" }, text)));
    const body = rows.map((cells) => element("tr", {}, ...cells.map((cell, n) => element(n ? "td" : "th", { ...(n ? {} : { scope: "row" }), ...(String(cell).length < 16 ? { class: "short" } : {}) }, cell))));
    put(id, element("table", {}, element("caption", {}, caption), element("thead", {}, head), element("tbody", {}, ...body)));
    const box = $(id);
    box.setAttribute("role", "region");
    box.setAttribute("aria-label", caption);
    box.tabIndex = 0; // it may scroll
  }

  const sides = (arm) => [words(arm.client), words(arm.server) && `server: ${words(arm.server)}`].filter(Boolean).join("; ");
  const link = (arm) => element("a", { href: `#arm-${arm}` }, `arm ${arm}`);
  const last = (values) => values.findLast((v) => v !== null) ?? null;

  function head() {
    const s = study(), say = valueOf(s, "error"), side = s.target;
    put("name", s.name);
    put("headline", s.headline);
    document.title = `${s.name} - fedtuner`;
    const done = s.winner !== null;
    const state = done ? `Finished: arm ${s.winner.arm} won after ${plural(s.winner.round, "round")}.`
      : given.live ? `Running, or interrupted: ${number(s.used)} of ${plural(s.budget, "round")} used.`
        : `Not finished: ${number(s.used)} of ${plural(s.budget, "round")} used when this page was written.`;
    const told = [state, ...s.notes].join(" ");
    if ($("state").textContent !== told) put("state", told); // a screen reader says it again only if it has changed
    const facts = [];
    const fact = (name, value, more) => facts.push(element("div", {}, element("dt", {}, name), element("dd", {}, value, ...(more ? [element("small", {}, more)] : []))));
    const split = ["test", "valid"].find((one) => (s.evaluations.tuned || {})[`${one} mode error`]); // of both, or they do not compare
    const errors = (who) => (s.evaluations[who] || {})[`${split} mode error`];
    const tuned = errors("tuned"), plain = errors("untuned"), both = (e) => `${say(e.global)} before local training`;
    const which = `${split === "test" ? "Test" : "Validation"} ${nameOf(s)}`;
    if (tuned) fact(`${which}, ${side}`, say(tuned[side]), side === "personalized" ? both(tuned) : `${say(tuned.personalized)} after local training`);
    else if (s.chosen !== null) fact(`Validation ${nameOf(s)} now`, say(last(armOf(s.chosen)[`error_${when(s)}`].mean)), `arm ${s.chosen}, ${when(s)} local training`);
    if (plain) fact(`${which}, untuned`, say(plain[side]), side === "personalized" ? both(plain) : "");
    fact("Rounds used", `${number(s.used)} of ${number(s.budget)}`, plural(s.arms.length, "arm"));
    const best = s.winner ? armOf(s.winner.arm) : null;
    if (best) fact("Configuration found", "", sides(best) || "nothing was tuned");
    put("figures", ...facts);
    const sections = [...document.querySelectorAll("main > section")].filter((one) => !one.hidden);
    put("nav", ...sections.map((one) => element("li", {}, element("a", { href: `#${one.id}` }, one.id === "arm" ? "An arm" : one.querySelector("h2").textContent))));
  }

  function key(color, text, kind = "") {
    const mark = element("i", { class: kind, "aria-hidden": "true" });
    mark.style[kind === "dot" ? "background" : "borderColor"] = color;
    return element("span", {}, mark, text);
  }

  function drawRace() {
    const s = study(), name = `${show.metric}_${show.when}`, say = valueOf(s, show.metric), alive = s.arms.filter((a) => !a.out).length;
    const smooth = s.window > 1 ? ` Lines are means of the last ${s.window} rounds; bands are 90 % intervals of these means: wide where few clients have validated.` : " Bands are 90 % intervals: wide where few clients have validated.";
    put("race-text", `Each line is an arm, from its first round to where it was cut (×).${show.raw ? "" : smooth} Click a line to choose the arm.`);
    const pointer = () => chart.convertFromPixel({ yAxisIndex: 0 }, aimed);
    const ended = last((s.winner ? armOf(s.winner.arm) : armOf(chosen) || { [name]: { mean: [] } })[name].mean);
    const chart = s.arms.length ? draw("race-chart", race(s, show, chosen, pointer),
      `Curves of ${plural(s.arms.length, "arm")} over their rounds, ${label(s, show)}. ${s.winner ? `The winner, arm ${s.winner.arm}, ends at ${say(ended)}.` : `${plural(alive, "arm")} not eliminated yet.`} The table below has each arm.`) : draw("race-chart", null);
    if (chart) {
      chart.off("click");
      chart.on("click", (event) => { if (/^arm-\d+$/.test(event.seriesId)) choose(+event.seriesId.slice(4)); });
    } else put("race-text", "No round is written yet.");
    const keys = [];
    if (s.winner) keys.push(key(css("winner"), `winner, arm ${s.winner.arm}`));
    if (chosen !== null && (!s.winner || chosen !== s.winner.arm)) keys.push(key(css("chosen"), `chosen, arm ${chosen}`));
    if (s.untuned) keys.push(key(css("untuned"), "the untuned default"));
    if (s.arms.length > 1) keys.push(key(css("faint"), "other arms"));
    put("race-keys", ...keys);
    table("race-table", "Arms", ["arm", "rounds", `${nameOf(s, show.metric)} before`, `${nameOf(s, show.metric)} after`, "ended", "configuration"],
      s.arms.map((a) => [link(a.id), number(a.rounds), say(last(a[`${show.metric}_before`].mean)), say(last(a[`${show.metric}_after`].mean)),
        a.ended || (s.winner && s.winner.arm === a.id ? "won" : a.out ? "eliminated" : ""), sides(a)]));
  }

  function drawIncumbent() {
    const s = study(), name = `${show.metric}_${show.when}`, say = valueOf(s, show.metric), found = s.incumbent, n = found.used.length;
    put("incumbent-text", `The validation ${nameOf(s, show.metric)} of the arm that was ahead, against the rounds that all arms together had used. It may get worse: a new leader's next rounds tell more of it.`);
    draw("incumbent-chart", n ? incumbent(s, show) : null, n ? `The incumbent's ${nameOf(s, show.metric)} goes from ${say(found[name][0])} after ${found.used[0]} rounds to ${say(found[name][n - 1])} after ${found.used[n - 1]}.` : "");
    const changes = found.used.map((used, i) => [used, i]).filter(([, i]) => i === n - 1 || found.arm[i] !== found.arm[i - 1] || i % Math.ceil(n / 20) === 0);
    table("incumbent-table", "The incumbent", ["rounds used", "arm", `${nameOf(s, show.metric)} ${show.when}`], changes.map(([used, i]) => [number(used), link(found.arm[i]), say(found[name][i])]));
  }

  function drawConfigurations() {
    const s = study(), { axes, rows, common } = s.configurations, say = valueOf(s, "error"), known = rows.filter((r) => r.error !== null);
    put("configurations-text", axes.length ? `Each line is an arm's configuration${s.arms.some((a) => a.candidates.length) ? " (of several candidates the most probable one)" : ""}, coloured by the rank of its last validation ${nameOf(s)} ${when(s)} local training.` : "Nothing is tuned in this study: all arms have the same configuration.");
    $("configurations-chart").style.height = narrow() ? `${Math.max(260, 52 * (axes.length + 1))}px` : "";
    draw("configurations-chart", axes.length && known.length ? configurations(s, chosen) : null, `Configurations of ${plural(known.length, "arm")} over ${plural(axes.length, "hyperparameter")}; the numbers are in the table below.`);
    const scale = element("i", { class: "scale", "aria-hidden": "true" });
    scale.style.background = `linear-gradient(to right, ${SCALE().join(",")})`;
    const keys = axes.length && known.length ? [element("span", {}, "best", scale, "worst")] : [];
    if (keys.length && s.winner) keys.push(key(css("winner"), "winner"));
    put("configurations-keys", ...keys);
    table("configurations-table", "Configurations", ["arm", nameOf(s), ...axes.map((a) => a.name)], axes.length ? [...rows].sort((x, y) => (x.error === null) - (y.error === null) || better(s)(x.error, y.error)).map((r) => [link(r.arm), say(r.error), ...r.values.map(number)]) : []);
    const found = s.importance;
    put("importance-text", found.shares ? `By Optuna's PED-ANOVA: how the best quarter of ${found.arms} arms differs from all, by their ${nameOf(s)} after round ${common}, which all of them had. With few arms this is a hint, not a measurement.` : found.why);
    $("importance-chart").style.height = found.shares ? `${70 + 30 * found.shares.length}px` : "";
    draw("importance-chart", found.shares ? importance(s) : null, found.shares ? `Importance: ${found.shares.map(([n, x]) => `${n} ${percent(+x.toPrecision(2))}`).join(", ")}.` : "");
  }

  function drawArm() {
    const s = study(), arm = armOf(chosen), say = valueOf(s, "error");
    if (!arm) return;
    $("chosen").replaceChildren(...s.arms.map((a) => {
      const option = element("option", { value: a.id }, `${a.id}${s.winner && a.id === s.winner.arm ? ", the winner" : ""}`);
      option.selected = a.id === chosen;
      return option;
    }));
    put("arm-title", `Arm ${arm.id}${stageOf(arm)}`);
    const how = arm.parent ? `It continues arm ${arm.parent[0]} after round ${arm.parent[1]}` : "It began with new weights";
    const end = arm.ended || (s.winner && s.winner.arm === arm.id ? "won" : arm.out ? "was eliminated" : "is still in the race");
    put("arm-text", `${how}, reached round ${arm.rounds} and ${end === "diverged" || end === "stalled" ? "has " : ""}${end}: ${nameOf(s)} ${say(last(arm.error_before.mean))} before and ${say(last(arm.error_after.mean))} after local training.`);
    table("arm-table", "Configuration", ["hyperparameter", "value"], [...Object.entries(arm.client).map(([n, v]) => [`client.${n}`, number(v)]), ...Object.entries(arm.server).map(([n, v]) => [`server.${n}`, number(v)])]);
    const known = arm.theta && arm.theta.rounds.length;
    const top = known ? arm.theta.p.at(-1) : [], best = top.indexOf(Math.max(...top));
    put("theta-text", known ? `At the end candidate c${best + 1} has probability ${number(top[best])} of ${top.length} candidates${words(arm.candidates[best] || {}) && `: ${words(arm.candidates[best])}`}.`
      : arm.candidates.length > 1 ? "No theta of this arm is in the journal yet." : arm.drawn ? "The clients of this arm draw from a belief over the whole space, so there are no candidates. The table above has its mean, as of its latest saved state." : "This arm has one client configuration, so there is no distribution over candidates.");
    draw("theta-chart", known ? theta(s, arm) : null, known ? `Theta over ${plural(arm.theta.rounds.length, "round")}; its entropy falls from ${number(arm.entropy[0])} to ${number(arm.entropy.at(-1))} nats.` : "");
    $("theta-numbers").hidden = !known;
    table("theta-table", "Candidates after the last round", ["candidate", "probability", "configuration"], known ? top.map((p, n) => [p, n]).sort((a, b) => b[0] - a[0]).map(([p, n]) => [`c${n + 1}`, number(p), words(arm.candidates[n] || {})]) : []);
    drawServed();
    drawClients();
  }

  function drawServed() {
    const s = study(), arm = armOf(chosen), found = arm && s.served[arm.id], say = valueOf(s, "error"), side = show.when;
    if (!found) return;
    const names = Object.keys((found.lines[side] || {})), known = names.length > 0;
    const ends = names.map((name) => `${whom(name)} ${say(last(found.lines[side][name]))}`).join(", ");
    const pooled = s.measure.pooled ? ` They are means of clients' values: the ${nameOf(s)} of all examples together is in the race.` : "";
    put("served-text", known ? `Of each round's clients the tenth with the worst ${nameOf(s)}, at least one${names.length > 2 ? ", and each group" : ""}, beside all of them.${s.window > 1 ? ` Lines are means of the last ${s.window} rounds.` : ""}${pooled}` : "The journal has no single clients: the server sees only sums.");
    draw("served-chart", known ? servedOver(s, found, side) : null, known ? `${nameOf(s)} ${side} local training over ${plural(arm.rounds, "round")}; at the end: ${ends}.` : "");
    const styles = served(names);
    put("served-keys", ...names.map((name) => key(styles.get(name).color, whom(name), styles.get(name).type === "solid" ? "" : "dashed")));
    table("served-table", "Validation, the later half of its rounds", ["whom", "clients", "before", "after"], found.whom.map(([name, n, before, after]) => [whom(name), number(n), say(before), say(after)]));
    const won = s.winner && s.winner.arm === arm.id, test = (who) => (s.across[who] || {})["test mode"] || {};
    const whole = (who) => ((s.evaluations[who] || {})["test mode error"] || {});
    const pair = (who, name) => (name === "clients" ? [whole(who).global ?? null, whole(who).personalized ?? null] : test(who)[name] || [null, null]);
    const rows = won && Object.keys(test("tuned")).length ? ["clients", ...Object.keys(test("tuned"))] : [];
    const plain = Object.keys(test("untuned")).length > 0;
    table("served-test", "Test data, all clients", ["whom", "before", "after", ...(plain ? ["untuned before", "untuned after"] : [])], rows.map((name) => [whom(name), ...pair("tuned", name).map(say), ...(plain ? pair("untuned", name).map(say) : [])]));
  }

  function drawClients() {
    const s = study(), arm = armOf(chosen), whole = s.clients[arm.id], say = valueOf(s, "error");
    const known = [...new Set((whole || []).map((row) => row[6]))].filter(Boolean).sort();
    if (!known.includes(group)) group = "";
    $("of-group").hidden = !known.length;
    $("group").replaceChildren(...["", ...known].map((name) => {
      const option = element("option", { value: name }, name || "all");
      option.selected = name === group;
      return option;
    }));
    const rows = whole && whole.filter((row) => !group || row[6] === group);
    const count = { helped: 0, harmed: 0, same: 0 };
    (rows || []).forEach((row) => { count[fate(s, row)] += 1; });
    put("clients-text", rows ? `Of ${plural(rows.length, "client")}${group && ` of the group ${group}`} in the later half of its rounds local training helped ${count.helped}, harmed ${count.harmed} and left ${count.same} as they were. Larger dots have more training examples; ${s.measure.maximise ? "above" : "below"} the diagonal a client was helped.`
      : Object.keys(s.clients).length ? "The clients of this arm are not in this page; those of arms with more rounds are." : "The journal has no single clients: the server sees only sums.");
    const colours = HELPED();
    put("clients-keys", ...(rows ? [key(colours.helped, "helped", "dot"), key(colours.harmed, "harmed", "dot"), key(colours.same, "as before", "dot")] : []));
    draw("clients-chart", rows ? clients(s, rows) : null, rows ? `${nameOf(s)} of ${plural(rows.length, "client")} before and after local training: ${count.helped} helped, ${count.harmed} harmed.` : "");
    const mean = (some, n) => some.reduce((sum, row) => sum + row[n], 0) / some.length;
    const cut = rows ? Math.ceil(rows.length / 3) : 0;
    const sizes = rows ? [["largest", rows.slice(0, cut)], ["middle", rows.slice(cut, 2 * cut)], ["smallest", rows.slice(2 * cut)]].filter(([, some]) => some.length) : [];
    table("clients-sizes", "By training examples", ["clients", "examples", "before", "after", "helped", "harmed"], sizes.map(([name, some]) =>
      [name, `${number(some.at(-1)[1])} to ${number(some[0][1])}`, say(mean(some, 4)), say(mean(some, 5)), number(some.filter((r) => fate(s, r) === "helped").length), number(some.filter((r) => fate(s, r) === "harmed").length)]));
    table("clients-worst", `Worst ${nameOf(s)} after local training`, ["client", ...(known.length ? ["group"] : []), "examples", "before", "after"],
      rows ? [...rows].sort((a, b) => better(s)(b[5], a[5])).slice(0, Math.max(8, Math.min(40, Math.ceil(rows.length / 10)))).map((r) => [r[0], ...(known.length ? [r[6]] : []), number(r[1]), say(r[4]), say(r[5])]) : []);
  }

  function drawLineage() {
    const s = study();
    if ($("lineage").hidden) return;
    const say = valueOf(s, "error"), shown = family(s);
    put("lineage-text", `An arm that continues another one's model begins on the dotted line.${s.parts && ` ${s.parts}`}`);
    $("lineage-chart").style.height = `${70 + 26 * shown.length}px`;
    const chart = draw("lineage-chart", lineage(s, chosen), `${plural(shown.length, "arm")}, ${shown.filter((a) => a.parent).length} of which continue another. The list below has each.`);
    chart.off("click");
    chart.on("click", (event) => { if (/^arm-\d+$/.test(event.seriesId)) choose(+event.seriesId.slice(4)); });
    table("lineage-table", "Lineage", ["arm", "part", "continues", "until round", nameOf(s)], shown.map((a) => [link(a.id), a.stage || "", a.parent ? `arm ${a.parent[0]} after round ${a.parent[1]}` : "nothing", number(a.rounds), say(last(a[`error_${when(s)}`].mean))]));
  }

  function drawHealth() {
    const s = study(), h = s.health, absent = h.failed + h.late + h.silent, faults = absent + h.broken + h.bounded;
    const said = [`${plural(h.clients, "client")} asked over ${plural(s.used, "round")}`];
    const ways = [h.failed && `${number(h.failed)} failed (an error, or a reply that could not be used)`, h.late && `${number(h.late)} came late`, h.silent && `${number(h.silent)} gave no reply`];
    said.push(absent ? `${number(absent)} did not report: ${ways.filter(Boolean).join(", ")}` : "all reported");
    said.push(h.broken ? `${plural(h.broken, "update")} broken (not finite)` : "no update was broken");
    said.push(h.bounded ? `${plural(h.bounded, "report")} bounded or dropped by a screen` : "none was bounded");
    said.push(h.diverged + h.stalled ? [h.diverged && `${plural(h.diverged, "arm")} diverged`, h.stalled && `${plural(h.stalled, "arm")} stalled`].filter(Boolean).join(", ") : "no arm diverged");
    put("health-text", `${said.join("; ")}.`);
    draw("health-chart", faults ? health(s) : null, `Faults by round: ${said.join("; ")}.`);
    table("health-table", "Devices whose replies were not used", ["device", "could not be used", "late"], h.devices.map(([id, bad, late]) => [id, number(bad), number(late)]));
  }

  function flat(value, name = "") {
    if (value !== null && typeof value === "object" && !Array.isArray(value)) return Object.entries(value).flatMap(([k, v]) => flat(v, name ? `${name}.${k}` : k));
    return [[name, Array.isArray(value) ? JSON.stringify(value) : number(value)]];
  }

  function drawSetup() {
    const s = study();
    put("setup-text", s.command ? "The command that began it; the same command continues it, and with another store makes it again:" : "It was made in Python; the same call with these settings makes it again.");
    put("command", s.command);
    table("setup-table", "Settings", ["setting", "value"], flat(s.setup));
    table("versions-table", "Versions it began with", ["package", "version"], Object.entries(s.versions));
  }

  function drawComparison() {
    if (!comparing) return;
    const say = (x) => (x === null ? "none" : comparing.rates ? percent(x) : number(x));
    put("comparison-text", ["Large dots are means over seeds, small ones single seeds, bars 90 % intervals of the means.", ...comparing.notes].join(" "));
    $("comparison-chart").style.height = `${80 + 44 * comparing.rows.length}px`;
    draw("comparison-chart", comparing.rows.length ? comparison(comparing) : null, `Test ${comparing.measure}: ${comparing.rows.map((r) => `${r.name} ${say(r.mean)}${r.half === null ? "" : ` plus or minus ${say(r.half)}`}`).join("; ")}.`);
    table("comparison-table", "Studies", ["study", "seeds", `mean test ${comparing.measure}`, "90 % interval", "difference to the first"], comparing.rows.map((r) => [r.name, number(r.n), say(r.mean), r.half === null ? "none: one seed" : `± ${say(r.half)}`, r.difference || ""]));
  }

  function all() {
    if (chosen === null || !armOf(chosen)) chosen = study().chosen;
    if (asked !== null && armOf(asked)) chosen = asked;
    $("comparison").hidden = !comparing;
    $("lineage").hidden = !study().arms.some((a) => a.parent);
    $("arm").hidden = !armOf(chosen);
    ["incumbent", "configurations", "health"].forEach((id) => { $(id).hidden = !study().used; });
    document.querySelector(".controls").hidden = !study().used;
    put("measure", nameOf(study()));
    $("measures").hidden = nameOf(study()) === "loss"; // it is the same
    document.body.removeAttribute("data-drawn");
    head();
    soon([drawComparison, drawRace, drawIncumbent, drawConfigurations, drawArm, drawLineage, drawHealth, drawSetup]);
  }

  let queue = 0;
  function soon([next, ...rest]) { // one chart after the other, so that the page answers in between
    clearTimeout(queue);
    if (!next) return document.body.setAttribute("data-drawn", "");
    next();
    queue = setTimeout(() => soon(rest));
  }

  function choose(arm) {
    if (!armOf(arm)) return;
    chosen = asked = arm;
    history.replaceState(null, "", `#arm-${arm}`);
    drawRace(); drawConfigurations(); drawArm(); drawLineage();
  }

  function follow() { // a link to an arm
    const found = /^#arm-(\d+)$/.exec(location.hash);
    if (!found) return;
    choose(+found[1]);
    $("arm").scrollIntoView();
  }

  function setUp() {
    show.when = when(study());
    show.metric = study().metric;
    document.querySelector(`input[name=metric][value=${show.metric}]`).checked = true;
    document.querySelector(`input[name=when][value=${show.when}]`).checked = true;
    document.querySelector(".controls").addEventListener("change", (event) => {
      const { name, value, checked, type } = event.target;
      show[name] = type === "checkbox" ? checked : value;
      drawRace(); drawIncumbent(); drawServed();
    });
    $("group").addEventListener("change", (event) => { group = event.target.value; drawClients(); });
    $("chosen").addEventListener("change", (event) => choose(+event.target.value));
    if (studies.length > 1) {
      $("which").hidden = false;
      $("study").replaceChildren(...studies.map((s, n) => element("option", { value: n }, s.name)));
      $("study").addEventListener("change", (event) => { at = +event.target.value; chosen = asked = null; all(); });
    }
    window.addEventListener("hashchange", follow);
    let width = window.innerWidth, waiting = 0;
    window.addEventListener("resize", () => {
      if (window.innerWidth === width) return; // a phone's bars come and go
      width = window.innerWidth;
      clearTimeout(waiting);
      waiting = setTimeout(all, 100);
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", all);
  }

  let tag = null;
  async function update() {
    try {
      if (document.visibilityState === "visible") {
        const reply = await fetch("view.json", { headers: tag ? { "If-None-Match": tag } : {}, cache: "no-store" });
        if (reply.status === 200) {
          tag = reply.headers.get("ETag");
          studies = (await reply.json()).studies;
          all();
        }
      }
      setTimeout(update, 3000);
    } catch {
      put("state", `${$("state").textContent} 'fedtuner watch' has ended: this is what it saw last.`);
    }
  }

  setUp();
  all();
  follow();
  if (given.live) setTimeout(update, 1000);
})();
