// Layers by positions, as one picture.
const mapCanvas = document.getElementById("map");
const colourOf = name => {
  const probe = document.createElement("i");
  probe.style.color = `var(--${name})`;
  document.body.append(probe);
  const channels = getComputedStyle(probe).color.match(/[\d.]+/g).slice(0, 3).map(Number);
  probe.remove();
  return channels;
};

function drawGrid(canvas, columns, rows, share) {
  canvas.width = columns;
  canvas.height = rows;
  const context = canvas.getContext("2d"), image = context.createImageData(columns, rows);
  const [r, g, b] = colourOf("heat");
  for (let row = 0; row < rows; row++) for (let column = 0; column < columns; column++) {
    const at = 4 * (row * columns + column);
    image.data.set([r, g, b, Math.round(255 * Math.sqrt(Math.min(1, share(row, column))))], at);
  }
  context.putImageData(image, 0, 0);
}

function drawMap(looks, ownLayer, heads) {
  const columns = Math.max(1, Math.min(numTokens, Math.floor(mapCanvas.parentNode.clientWidth)));
  const rowHeight = Math.max(6, Math.min(14, Math.floor(320 / numLayers)));
  mapCanvas.style.height = rowHeight * numLayers + 2 + "px";
  const edge = column => Math.floor(column * numTokens / columns);
  const byLayer = data.layers.map((_, layer) => countChosen(looks, [layer], heads));
  drawGrid(mapCanvas, columns, numLayers, (layer, column) => {
    const { counts, total } = byLayer[layer];
    let sum = 0;
    for (let i = edge(column); i < edge(column + 1); i++) sum += counts[i];
    return total ? sum / (total * (edge(column + 1) - edge(column))) : 0;
  });
  const step = Math.ceil(14 / rowHeight);
  document.getElementById("rows").replaceChildren(...data.layers.flatMap((name, layer) => {
    if (layer !== ownLayer && (ownLayer >= 0 ? Math.abs(layer - ownLayer) < step || layer % step : layer % step)) return [];
    const label = document.createElement("span");
    label.textContent = layer === 0 || layer === ownLayer ? `layer ${name}` : name;
    label.style.top = (layer + 0.5) * rowHeight + 1 + "px";
    label.classList.toggle("own", layer === ownLayer);
    return [label];
  }));
}

function drawWindow() {
  if (!visible.length) return;
  const frame = document.getElementById("window"), scale = 100 / numTokens;
  const first = blocks[visible[0]].first, end = blocks[visible[visible.length - 1]].end;
  frame.style.left = first * scale + "%";
  frame.style.width = (end - first) * scale + "%";
}
