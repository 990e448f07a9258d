// What was selected: bit sets by iteration, layer and head, and shares by the same.
const data = JSON.parse(document.getElementById("data").textContent);
const numTokens = data.tokens.length, numLayers = data.layers.length, numHeads = data.heads, numLooks = data.looks.length;
const rowBytes = Math.ceil(numTokens / 8), lookBytes = numLayers * numHeads * rowBytes;
const UNKNOWN = 255;

function bytesOf(base64) {
  const text = atob(base64), bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return bytes;
}

const shares = Object.fromEntries(Object.entries(data.shares).map(([name, packed]) => [name, bytesOf(packed)]));
let sets = null; // Uint8Array of [looks][layers][heads][rowBytes], bit i % 8 of byte i >> 3 is position i
let present = null; // whether a layer has such a head

async function unpack() {
  const packed = new Blob([bytesOf(document.getElementById("packed").textContent)]);
  const stream = packed.stream().pipeThrough(new DecompressionStream("deflate"));
  sets = new Uint8Array(await new Response(stream).arrayBuffer());
  for (let i = lookBytes; i < sets.length; i++) sets[i] ^= sets[i - lookBytes];
  present = new Uint8Array(numLayers * numHeads);
  for (let row = 0; row < present.length; row++) present[row] = sets.subarray(row * rowBytes, (row + 1) * rowBytes).some(b => b);
}

const range = (chosen, count) => chosen < 0 ? [...Array(count).keys()] : [chosen];
const has = (look, layer, head, position) =>
  (sets[look * lookBytes + (layer * numHeads + head) * rowBytes + (position >> 3)] >> (position & 7)) & 1;

// One token's number of sets in these iterations, layers and heads.
function countToken(position, looks, layers, heads) {
  let count = 0;
  for (const look of looks) for (const layer of layers) for (const head of heads) count += has(look, layer, head, position);
  return count;
}

function countSets(looks, layers, heads) {
  let count = 0;
  for (const layer of layers) for (const head of heads) count += present[layer * numHeads + head];
  return count * looks.length;
}

// How often each position is selected in these iterations, layers and heads, and how many sets that is.
function countChosen(looks, layers, heads) {
  const counts = new Uint32Array(rowBytes * 8);
  let total = 0;
  for (const look of looks) for (const layer of layers) for (const head of heads) {
    if (!present[layer * numHeads + head]) continue;
    total++;
    const first = look * lookBytes + (layer * numHeads + head) * rowBytes;
    for (let byte = 0; byte < rowBytes; byte++) {
      let bits = sets[first + byte];
      for (let at = byte * 8; bits; bits >>= 1, at++) counts[at] += bits & 1;
    }
  }
  return { counts, total };
}

// Mean of a share over these iterations, layers and heads; null where nothing is known.
function meanShare(name, looks, layers, heads) {
  let sum = 0, count = 0;
  for (const look of looks) for (const layer of layers) for (const head of heads) {
    const value = shares[name][(look * numLayers + layer) * numHeads + head];
    if (value !== UNKNOWN) { sum += value / 254; count++; }
  }
  return count ? sum / count : null;
}
