"""gpu_compare.py A B ROWS: largest difference and mean divergence of two float32 logit files."""
import sys
import numpy as np
a, b = (np.fromfile(p, np.float32).reshape(int(sys.argv[3]), -1).astype(np.float64) for p in sys.argv[1:3])
lp = lambda x: x - x.max(1, keepdims=True) - np.log(np.exp(x - x.max(1, keepdims=True)).sum(1, keepdims=True))
pa, pb = lp(a), lp(b)
kl = (np.exp(pa) * (pa - pb)).sum(1)
print(f'rows {len(a)} max_diff {np.abs(a - b).max():.3g} kl_mean {kl.mean():.3g} kl_max {kl.max():.3g} argmax_equal {(a.argmax(1) == b.argmax(1)).mean():.4f} nan {np.isnan(b).any()}')
