"""timeline.py TIMELINE: what the bus and the GPU did during each step with a prompt, as JSON.

A step begins with its embedding and ends with its last kernel; one with experts_sort has a prompt.
wall_ms is its length; bus_busy_ms the time in which at least one copy to the GPU ran, copied_mib what
came, gpu_busy_ms the time in which at least one kernel ran; shares are of wall_ms.
"""
import json, sys

TO_GPU = 'copy1'


def union_ns(spans, begin, end):
    total, reached = 0, begin
    for a, b in sorted(spans):
        a, b = max(a, reached), min(b, end)
        if b > a:
            total, reached = total + b - a, b
    return total


kernels, copies = [], []
for line in open(sys.argv[1]):
    name, begin, end, n_bytes = line.rstrip('\n').rsplit(',', 3)
    if not name.startswith('copy'):
        kernels.append((int(begin), int(end), name))
    elif name == TO_GPU:
        copies.append((int(begin), int(end), int(n_bytes)))
kernels.sort()
starts = [i for i, k in enumerate(kernels) if k[2] == 'embed'] + [len(kernels)]
steps = []
for first, after in zip(starts, starts[1:]):
    step = kernels[first:after]
    if not any(k[2] == 'experts_sort' for k in step):
        continue
    begin, end = step[0][0], max(k[1] for k in step)
    during = [c for c in copies if c[0] < end and c[1] > begin]
    bus = union_ns([c[:2] for c in during], begin, end)
    busy = union_ns([k[:2] for k in step], begin, end)
    n_bytes = sum(c[2] for c in during)
    steps.append({'wall_ms': (end - begin) / 1e6, 'bus_busy_ms': bus / 1e6, 'bus_share': bus / (end - begin),
                  'copied_mib': n_bytes / 2**20, 'bus_gb_per_s': n_bytes / max(bus, 1), 'gpu_busy_ms': busy / 1e6,
                  'gpu_share': busy / (end - begin)})
print(json.dumps({'prompts': steps}))
