"""gpu_compare.py A B ROWS [KEY LIMIT]: largest difference and divergence of two files of float32 logits, as JSON.

Fails when the figure KEY is above LIMIT, or not a number.
"""
import array, json, math, sys


def rows(path, n):
    values = array.array('f')
    with open(path, 'rb') as f:
        values.frombytes(f.read())
    width = len(values) // n
    return [values[i * width:(i + 1) * width] for i in range(n)]


def log_softmax(row):
    most = max(row)
    total = math.log(sum(math.exp(x - most) for x in row))
    return [x - most - total for x in row]


a, b = (rows(p, int(sys.argv[3])) for p in sys.argv[1:3])
kl = []
for x, y in zip(a, b):
    p, q = log_softmax(x), log_softmax(y)
    kl.append(sum(math.exp(s) * (s - t) for s, t in zip(p, q)))
equal = sum(x.index(max(x)) == y.index(max(y)) for x, y in zip(a, b))
figures = {'rows': len(a), 'max_diff': max(abs(s - t) for x, y in zip(a, b) for s, t in zip(x, y)),
                  'kl_mean': sum(kl) / len(kl), 'kl_max': max(kl), 'argmax_equal': equal / len(a)}
print(json.dumps(figures))
if len(sys.argv) > 5 and not figures[sys.argv[4]] <= float(sys.argv[5]):
    sys.exit(1)
