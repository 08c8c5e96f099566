/* metrics.h - counters, gauges and histograms, written as Prometheus text.
 *
 * A family has a name, a help line and a kind; its children differ in their
 * labels, which are given ready-made (`node="a",state="ready"`; build values
 * with metrics_label).  Children are found once and kept by whoever counts, so
 * counting itself is an addition.  Everything belongs to the registry, which is
 * used from one thread.
 */
#ifndef SILICEO_COMMON_METRICS_H
#define SILICEO_COMMON_METRICS_H

#include "common/error.h"
#include "common/json.h"
#include <stddef.h>
#include <stdint.h>

typedef enum metrics_kind { METRICS_COUNTER, METRICS_GAUGE, METRICS_HISTOGRAM } metrics_kind;

typedef struct metric metric;
typedef struct metrics_family metrics_family;
typedef struct metrics {
    metrics_family *first;
    metrics_family **last; /* where the next family is hung in */
} metrics;

enum { METRICS_MAX_BOUNDS = 24 };

void metrics_init(metrics *m);
void metrics_release(metrics *m);

/* A family; NULL without memory.  bounds are the ascending upper bounds of a
 * histogram's buckets (+Inf is added), n_bounds is 0 for the other kinds. */
metrics_family *metrics_family_add(metrics *m, metrics_kind kind, const char *name,
                                   const char *help, const double *bounds, size_t n_bounds);

/* The child with these labels ("" for none), made on first use; NULL without
 * memory or family, and every function below accepts NULL. */
metric *metrics_child(metrics_family *family, const char *labels);
/* Drop all children, for gauges that are set anew at every scrape. */
void metrics_family_clear(metrics_family *family);

void metric_add(metric *child, double amount); /* a counter refuses negative amounts */
void metric_set(metric *child, double value);  /* gauges */
void metric_observe(metric *child, double value);
double metric_value(const metric *child); /* of a histogram: its count */

/* Append `name="value"` with the value escaped, after a comma where labels is not empty. */
void metrics_label(json_text *labels, const char *name, const char *value);

/* The whole registry in Prometheus text format 0.0.4. */
void metrics_print(const metrics *m, json_text *out);

#endif
