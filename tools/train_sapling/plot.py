# SPDX-License-Identifier: Apache-2.0
"""A loss plot as a plain SVG, so that no plotting library is needed."""


def loss_svg(log, path, names, width=760, height=360):
    """log: rows of [step, value per name]."""
    log = [r for r in log if r[0] >= 50] or log
    smooth = [[] for _ in names]
    for i in range(len(log)):
        part = log[max(0, i - 4):i + 5]
        for j in range(len(names)):
            smooth[j].append(sum(r[j + 1] for r in part) / len(part))
    lo, hi = min(map(min, smooth)), max(map(max, smooth))
    hi = min(hi, lo + 3.0)
    first, last = log[0][0], max(log[-1][0], log[0][0] + 1)
    x = lambda s: 60 + (s - first) / (last - first) * (width - 80)
    y = lambda v: 20 + (hi - min(v, hi)) / max(hi - lo, 1e-9) * (height - 70)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
           f'<rect width="{width}" height="{height}" fill="white"/>']
    for i in range(6):
        v = lo + (hi - lo) * i / 5
        out.append(f'<line x1="60" x2="{width - 20}" y1="{y(v):.1f}" y2="{y(v):.1f}" stroke="#ddd"/>'
                   f'<text x="52" y="{y(v) + 4:.1f}" text-anchor="end">{v:.2f}</text>')
        st = first + (last - first) * i / 5
        out.append(f'<text x="{x(st):.1f}" y="{height - 30}" text-anchor="middle">{st:.0f}</text>')
    for j, (name, colour) in enumerate(zip(names, ["#1b6e3c", "#b5651d", "#355c9a", "#8a2f5b", "#555", "#a0a"])):
        pts = " ".join(f"{x(r[0]):.1f},{y(v):.1f}" for r, v in zip(log, smooth[j]))
        out.append(f'<polyline fill="none" stroke="{colour}" stroke-width="1.6" points="{pts}"/>'
                   f'<text x="{width - 150}" y="{36 + 16 * j}" fill="{colour}">{name}</text>')
    out.append(f'<text x="{width / 2}" y="{height - 8}" text-anchor="middle">step</text>'
               f'<text x="14" y="{height / 2}" transform="rotate(-90 14 {height / 2})" text-anchor="middle">nats per token</text></svg>')
    open(path, "w").write("\n".join(out))
