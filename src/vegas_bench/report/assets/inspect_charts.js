// Lines over iterations or layers, shares from 0 to 100 %.
const SERIES = {
  kept: ["kept from the iteration before", "blue", ""],
  ofFirst: ["shared with the first", "purple", "5 3"],
  recall: ["recall against the oracle", "green", ""],
  mass: ["attention weight held", "blue", ""],
  oracleMass: ["the most it could hold", "slate", "5 3"],
};

function drawChart(id, names, labels, axis, own, valueOf, choose) {
  const svg = document.getElementById(id), width = Math.max(280, svg.parentNode.clientWidth - 32), height = 230;
  const left = 46, right = 10, top = 8, bottom = 36, count = labels.length;
  const x = i => count > 1 ? left + (width - left - right) * i / (count - 1) : (left + width - right) / 2;
  const y = share => top + (height - top - bottom) * (1 - share);
  const parts = [];
  for (const share of [0, 0.25, 0.5, 0.75, 1]) {
    parts.push(`<line x1="${left}" x2="${width - right}" y1="${y(share)}" y2="${y(share)}" stroke="var(--grid)"/>`,
      `<text x="${left - 6}" y="${y(share) + 4}" text-anchor="end">${100 * share}${share === 1 ? " %" : ""}</text>`);
  }
  const step = Math.ceil(count / Math.max(2, Math.floor(width / 48)));
  labels.forEach((label, i) => { if (i % step === 0) parts.push(`<text x="${x(i)}" y="${height - bottom + 16}" text-anchor="middle">${label}</text>`); });
  parts.push(`<text x="${(left + width - right) / 2}" y="${height - 4}" text-anchor="middle">${axis}</text>`);
  if (own >= 0) parts.push(`<line class="marker" x1="${x(own)}" x2="${x(own)}" y1="${top}" y2="${height - bottom}" stroke="var(--muted)"/>`);
  for (const name of names) {
    const [, colour, dash] = SERIES[name];
    const points = labels.map((_, i) => [x(i), valueOf(name, i)]).filter(each => each[1] !== null).map(each => [each[0], y(each[1])]);
    parts.push(`<polyline fill="none" stroke="var(--${colour})" stroke-width="2" stroke-dasharray="${dash}" points="${points.map(p => p.map(v => v.toFixed(1)).join()).join(" ")}"/>`);
    if (points.length <= 60) for (const [px, py] of points) parts.push(`<circle cx="${px.toFixed(1)}" cy="${py.toFixed(1)}" r="2.6" fill="var(--${colour})"/>`);
  }
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.innerHTML = parts.join("");
  svg.style.cursor = "pointer";
  svg.onclick = event => {
    const box = svg.getBoundingClientRect(), at = (event.clientX - box.left) * width / box.width;
    choose(Math.max(0, Math.min(count - 1, Math.round((at - left) / (width - left - right) * (count - 1)))));
  };
  document.getElementById(id + "-legend").innerHTML = names.map(name =>
    `<span class="swatch"><i style="background: var(--${SERIES[name][1]})"></i>${SERIES[name][0]}</span>`).join("");
}
