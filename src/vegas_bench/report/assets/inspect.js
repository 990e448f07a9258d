// The page: what is chosen above, and everything that follows from it.
(async () => {
  const at = id => document.getElementById(id);
  const state = { look: 0, all: false, layer: -1, head: -1, token: -1 };
  const looks = () => state.all ? [...Array(numLooks).keys()] : [state.look];
  const layers = () => range(state.layer, numLayers), heads = () => range(state.head, numHeads);
  const number = value => value.toLocaleString("en-US");
  const percent = share => share === null ? "not measured" : (100 * share).toFixed(1) + " %";

  for (const [i, name] of data.layers.entries()) at("layer").append(new Option(name, i));
  for (let i = 0; i < numHeads; i++) at("head").append(new Option(i, i));
  at("end").textContent = number(numTokens);
  await unpack();

  function draw() {
    const { counts, total } = countChosen(looks(), layers(), heads());
    const prefix = state.all ? numTokens : data.looks[state.look].prefix;
    at("sets").textContent = total === 1 ? "1 set" : `${number(total)} sets`;
    paintText(counts, total, prefix);
    drawMap(looks(), state.layer, heads());
    drawWindow();
    drawChart("drift", ["kept", "ofFirst", "recall"], data.looks.map(look => look.number), "iteration", state.all ? -1 : state.look,
      (name, i) => meanShare(name, [i], layers(), heads()), i => { state.look = i; state.all = false; sync(); });
    drawChart("layers", ["recall", "mass", "oracleMass"], data.layers, "layer", state.layer,
      (name, i) => meanShare(name, looks(), [i], heads()), i => { state.layer = i; sync(); });
    const look = data.looks[state.look];
    const means = ["recall", "kept"].map(name => percent(meanShare(name, looks(), layers(), heads())));
    at("now").textContent = (state.all ? `All ${numLooks} iterations` :
      `Iteration ${look.number}: selected from ${number(look.prefix)} positions, then ${look.accepted} of ${look.drafted} drafts accepted`)
      + ` · recall ${means[0]} · kept from the one before ${means[1]}`;
    if (state.token >= 0) describe(state.token);
  }

  function sync() {
    at("iteration").value = state.look;
    at("all").checked = state.all;
    at("layer").value = state.layer;
    at("head").value = state.head;
    draw();
  }

  function describe(i) {
    const rows = [["position", `${number(i)} of ${number(numTokens)}, ${i < data.promptLength ? "prompt" : "generated"}`]];
    const told = iterations => {
      const count = countToken(i, iterations, layers(), heads()), total = countSets(iterations, layers(), heads());
      return `${number(count)} of ${number(total)} sets (${percent(count / total)})`;
    };
    if (!state.all) rows.push([`in iteration ${data.looks[state.look].number}`, told([state.look])]);
    rows.push(["in all", told([...Array(numLooks).keys()])]);
    const list = document.createElement("dl");
    for (const [name, value] of rows) {
      const term = document.createElement("dt"), text = document.createElement("dd");
      term.textContent = name;
      text.textContent = value;
      list.append(term, text);
    }
    const token = document.createElement("div");
    token.className = "token";
    token.textContent = spelled(data.tokens[i]);
    const byHead = document.createElement("canvas"), byLook = document.createElement("canvas");
    drawGrid(byHead, numLayers, numHeads, (head, layer) => countToken(i, looks(), [layer], [head]) / looks().length);
    byHead.style.height = Math.min(14 * numHeads, 120) + "px";
    drawGrid(byLook, numLooks, 1, (_, look) => countToken(i, [look], layers(), heads()) / countSets([look], layers(), heads()));
    byLook.style.height = "14px";
    const caption = text => { const line = document.createElement("small"); line.textContent = text; return line; };
    at("token").replaceChildren(token, list, caption(`KV heads (down) by layers ${data.layers[0]} to ${data.layers[numLayers - 1]} (across)`), byHead,
      caption(`iterations ${data.looks[0].number} to ${data.looks[numLooks - 1].number}`), byLook);
  }

  function show(i, pinned) {
    state.token = i;
    if (pinned) { markToken(i); at("details").classList.add("open"); }
    describe(i);
  }

  const tokenOf = event => { const span = event.target.closest("[data-i]"); return span ? +span.dataset.i : -1; };
  let waiting = 0;
  pane.addEventListener("pointerover", event => {
    const i = tokenOf(event);
    if (i < 0 || event.pointerType === "touch" || ownToken >= 0) return;
    cancelAnimationFrame(waiting);
    waiting = requestAnimationFrame(() => show(i, false));
  });
  pane.addEventListener("click", event => { const i = tokenOf(event); if (i >= 0) { if (i === ownToken) markToken(-1); else show(i, true); } });
  pane.addEventListener("scroll", () => { refill(); drawWindow(); }, { passive: true });
  at("close").addEventListener("click", () => { at("details").classList.remove("open"); markToken(-1); });
  at("iteration").addEventListener("input", event => { state.look = +event.target.value; state.all = false; sync(); });
  const move = step => { state.look = Math.max(0, Math.min(numLooks - 1, state.look + step)); state.all = false; sync(); };
  at("back").addEventListener("click", () => move(-1));
  at("next").addEventListener("click", () => move(1));
  at("all").addEventListener("change", event => { state.all = event.target.checked; sync(); });
  for (const name of ["layer", "head"]) at(name).addEventListener("change", event => { state[name] = +event.target.value; sync(); });
  mapCanvas.addEventListener("click", event => {
    const box = mapCanvas.getBoundingClientRect();
    goToToken(Math.max(0, Math.min(numTokens - 1, Math.floor((event.clientX - box.left) / box.width * numTokens))));
    drawWindow();
  });
  for (const each of data.mostChosen) {
    const item = document.createElement("li"), button = document.createElement("button"), where = document.createElement("small");
    where.textContent = `${number(each.position)} · ${Math.round(100 * each.share)} %`;
    button.type = "button";
    button.append(spelled(each.token), " ", where);
    button.addEventListener("click", () => {
      goToToken(each.position);
      show(each.position, true);
      pane.scrollIntoView({ block: "center" });
    });
    item.append(button);
    at("chosen").append(item);
  }
  addEventListener("themechange", draw);
  let resizing = 0, width = innerWidth;
  addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; clearTimeout(resizing); resizing = setTimeout(draw, 120); } });
  sync();
  document.documentElement.dataset.ready = "";
})();
