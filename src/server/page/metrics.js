// Reads /metrics: names without their prefix (of several with one number the first counts); a histogram's buckets by their bounds.

function parse_metrics(text) {
  const values = {};
  const buckets = {};
  const prefixes = {};
  for (const line of text.split("\n")) {
    const match = /^([^#{\s]+)(?:\{([^}]*)\})?\s+(\S+)/.exec(line);
    if (!match) continue;
    const colon = match[1].indexOf(":") + 1;
    const name = match[1].slice(colon), prefix = match[1].slice(0, colon);
    if ((prefixes[name] ??= prefix) !== prefix) continue;
    const bound = /(?:^|,)le="([^"]+)"/.exec(match[2] || "");
    if (bound) {
      (buckets[name.replace(/_bucket$/, "")] ||= []).push([bound[1] === "+Inf" ? Infinity : Number(bound[1]), Number(match[3])]);
    } else {
      values[name] = (values[name] || 0) + Number(match[3]); // labels are summed
    }
  }
  return { values, buckets };
}

function difference(now, before, name) {
  const a = now.values[name], b = before.values[name];
  return a === undefined || b === undefined ? undefined : Math.max(0, a - b);
}

// The quantile of what was observed between two readings, within its bucket by straight line.
function quantile(now, before, name, share) {
  const upper = now.buckets[name], lower = before.buckets[name];
  if (!upper || !lower || upper.length !== lower.length) return undefined;
  const counts = upper.map(([bound, count], i) => [bound, count - lower[i][1]]);
  const total = counts[counts.length - 1][1];
  if (total <= 0) return undefined;
  let below = 0, from = 0;
  for (const [bound, count] of counts) {
    if (count >= share * total) {
      if (!isFinite(bound)) return from;
      return from + (bound - from) * (share * total - below) / Math.max(1, count - below);
    }
    below = count;
    from = bound;
  }
  return from;
}
