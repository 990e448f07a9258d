// The text, token by token. Only blocks near the window hold a span per token, so that 100K tokens stay light.
const BLOCK = 256;
const pane = document.getElementById("text");
const blocks = [];
let levels = new Uint8Array(numTokens), shownPrefix = numTokens, ownToken = -1;

const shown = token => token.replace(/\r/g, "␍").replace(/\n/g, "↵\n").replace(/\t/g, "⇥   ");

// A token on its own: what cannot be seen is written out.
const spelled = token => { const text = JSON.stringify(token).slice(1, -1); return text.trim() ? text : text.replaceAll(" ", "␣"); };

function tokenClass(i) {
  return (levels[i] ? "h" + levels[i] : "") + (i >= data.promptLength ? " made" : "") + (i >= shownPrefix ? " beyond" : "")
    + (i === ownToken ? " own" : "");
}

function fill(block) {
  const parts = document.createDocumentFragment();
  for (let i = block.first; i < block.end; i++) {
    const span = document.createElement("span");
    span.textContent = shown(data.tokens[i]);
    span.className = tokenClass(i);
    span.dataset.i = i;
    parts.append(span);
  }
  block.element.replaceChildren(parts);
  block.filled = true;
}

function empty(block) {
  block.element.textContent = data.tokens.slice(block.first, block.end).map(shown).join("");
  block.filled = false;
}

for (let first = 0; first < numTokens; first += BLOCK) {
  // Inline, so that lines run on from block to block.
  const block = { first, end: Math.min(first + BLOCK, numTokens), element: document.createElement("span"), seen: false };
  block.element.dataset.block = blocks.length;
  empty(block);
  blocks.push(block);
  pane.append(block.element);
}

function visibleBlocks() {
  const box = pane.getBoundingClientRect(), found = [];
  // Blocks come in order, so the first visible one is found by halving.
  let low = 0, high = blocks.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (blocks[middle].element.getBoundingClientRect().bottom < box.top) low = middle + 1; else high = middle;
  }
  for (let at = low; at < blocks.length; at++) {
    if (at > low && blocks[at].element.getBoundingClientRect().top > box.bottom) break;
    found.push(at);
  }
  return found;
}

let visible = [];
function refill() {
  visible = visibleBlocks();
  const first = visible[0] - 1, last = visible[visible.length - 1] + 1;
  blocks.forEach((block, at) => {
    const wanted = at >= first && at <= last;
    if (wanted && !block.filled) fill(block);
    else if (!wanted && block.filled) empty(block);
  });
}

function paintText(counts, total, prefix) {
  shownPrefix = prefix;
  // Equal steps of the square root: a token that few sets selected can still be told from one that none did.
  for (let i = 0; i < numTokens; i++) levels[i] = counts[i] ? Math.ceil(8 * Math.sqrt(Math.min(1, counts[i] / total))) : 0;
  refill();
  for (const block of blocks) if (block.filled) for (const span of block.element.children) span.className = tokenClass(+span.dataset.i);
}

function markToken(i) {
  const before = ownToken;
  ownToken = i;
  for (const at of [before, i]) {
    const span = at >= 0 && pane.querySelector(`[data-i="${at}"]`);
    if (span) span.className = tokenClass(at);
  }
}

function goToToken(i) {
  const block = blocks[Math.floor(i / BLOCK)];
  if (!block.filled) fill(block);
  const span = block.element.children[i - block.first];
  pane.scrollTop += span.getBoundingClientRect().top - pane.getBoundingClientRect().top - pane.clientHeight / 3;
  refill();
}
