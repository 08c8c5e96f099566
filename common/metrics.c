#include "common/metrics.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct metric {
    metric *next;
    const metrics_family *family;
    char *labels;
    double value; /* of a histogram: the sum */
    uint64_t count;
    uint64_t buckets[METRICS_MAX_BOUNDS];
};

struct metrics_family {
    metrics_family *next;
    metrics_kind kind;
    char *name;
    char *help;
    double bounds[METRICS_MAX_BOUNDS];
    size_t n_bounds;
    metric *first;
    metric **last;
};

void metrics_init(metrics *m) {
    m->first = NULL;
    m->last = &m->first;
}

void metrics_family_clear(metrics_family *family) {
    if (family == NULL) return;
    for (metric *child = family->first; child != NULL;) {
        metric *next = child->next;
        free(child->labels);
        free(child);
        child = next;
    }
    family->first = NULL;
    family->last = &family->first;
}

static void family_free(metrics_family *family) {
    if (family == NULL) return;
    metrics_family_clear(family);
    free(family->name);
    free(family->help);
    free(family);
}

void metrics_release(metrics *m) {
    for (metrics_family *family = m->first; family != NULL;) {
        metrics_family *next = family->next;
        family_free(family);
        family = next;
    }
    metrics_init(m);
}

metrics_family *metrics_family_add(metrics *m, metrics_kind kind, const char *name,
                                   const char *help, const double *bounds, size_t n_bounds) {
    CHECK(n_bounds <= METRICS_MAX_BOUNDS);
    metrics_family *family = calloc(1, sizeof *family);
    if (family == NULL) return NULL;
    family->kind = kind;
    family->last = &family->first;
    family->name = strdup(name);
    family->help = strdup(help);
    if (family->name == NULL || family->help == NULL) {
        family_free(family);
        return NULL;
    }
    for (size_t i = 0; i < n_bounds; i++)
        family->bounds[i] = bounds[i];
    family->n_bounds = n_bounds;
    *m->last = family;
    m->last = &family->next;
    return family;
}

metric *metrics_child(metrics_family *family, const char *labels) {
    if (family == NULL) return NULL;
    for (metric *child = family->first; child != NULL; child = child->next) {
        if (strcmp(child->labels, labels) == 0) return child;
    }
    metric *child = calloc(1, sizeof *child);
    if (child == NULL) return NULL;
    child->labels = strdup(labels);
    if (child->labels == NULL) {
        free(child);
        return NULL;
    }
    child->family = family;
    *family->last = child;
    family->last = &child->next;
    return child;
}

void metric_add(metric *child, double amount) {
    if (child == NULL) return;
    if (child->family->kind == METRICS_COUNTER && !(amount >= 0)) return;
    child->value += amount;
}

void metric_set(metric *child, double value) {
    if (child != NULL) child->value = value;
}

void metric_observe(metric *child, double value) {
    if (child == NULL || isnan(value)) return;
    const metrics_family *family = child->family;
    size_t i = 0;
    while (i < family->n_bounds && value > family->bounds[i])
        i++;
    if (i < family->n_bounds) child->buckets[i]++;
    child->count++;
    child->value += value;
}

double metric_value(const metric *child) {
    if (child == NULL) return 0;
    return child->family->kind == METRICS_HISTOGRAM ? (double)child->count : child->value;
}

static void add_escaped(json_text *out, const char *text, bool quotes) {
    for (const char *p = text; *p != '\0'; p++) {
        if (*p == '\\')
            json_text_add(out, "\\\\", 2);
        else if (*p == '\n')
            json_text_add(out, "\\n", 2);
        else if (*p == '"' && quotes)
            json_text_add(out, "\\\"", 2);
        else
            json_text_add(out, p, 1);
    }
}

void metrics_label(json_text *labels, const char *name, const char *value) {
    json_text_format(labels, "%s%s=\"", labels->length > 0 ? "," : "", name);
    add_escaped(labels, value, true);
    json_text_add(labels, "\"", 1);
}

/* A value as Prometheus reads it: 17 digits only where 15 do not say the same number. */
static void add_number(json_text *out, double value) {
    if (isnan(value)) {
        json_text_format(out, "NaN\n");
    } else if (isinf(value)) {
        json_text_format(out, value > 0 ? "+Inf\n" : "-Inf\n");
    } else {
        char text[40];
        (void)snprintf(text, sizeof text, "%.15g", value);
        if (strtod(text, NULL) < value || strtod(text, NULL) > value) {
            (void)snprintf(text, sizeof text, "%.17g", value);
        }
        json_text_format(out, "%s\n", text);
    }
}

static void print_scalar(json_text *out, const metrics_family *family, const metric *child) {
    json_text_format(out, "%s", family->name);
    if (child->labels[0] != '\0') json_text_format(out, "{%s}", child->labels);
    json_text_add(out, " ", 1);
    add_number(out, child->value);
}

static void print_histogram(json_text *out, const metrics_family *family, const metric *child) {
    const char *comma = child->labels[0] != '\0' ? "," : "";
    uint64_t sum = 0;
    for (size_t i = 0; i < family->n_bounds; i++) {
        sum += child->buckets[i];
        json_text_format(out, "%s_bucket{%s%sle=\"%.10g\"} %llu\n", family->name, child->labels,
                         comma, family->bounds[i], (unsigned long long)sum);
    }
    json_text_format(out, "%s_bucket{%s%sle=\"+Inf\"} %llu\n", family->name, child->labels,
                     comma, (unsigned long long)child->count);
    bool labelled = child->labels[0] != '\0';
    json_text_format(out, "%s_sum%s%s%s ", family->name, labelled ? "{" : "", child->labels,
                     labelled ? "}" : "");
    add_number(out, child->value);
    json_text_format(out, "%s_count%s%s%s %llu\n", family->name, labelled ? "{" : "",
                     child->labels, labelled ? "}" : "", (unsigned long long)child->count);
}

void metrics_print(const metrics *m, json_text *out) {
    static const char *const kinds[] = {"counter", "gauge", "histogram"};
    for (const metrics_family *family = m->first; family != NULL; family = family->next) {
        json_text_format(out, "# HELP %s ", family->name);
        add_escaped(out, family->help, false);
        json_text_format(out, "\n# TYPE %s %s\n", family->name, kinds[family->kind]);
        for (const metric *child = family->first; child != NULL; child = child->next) {
            if (family->kind == METRICS_HISTOGRAM)
                print_histogram(out, family, child);
            else
                print_scalar(out, family, child);
        }
    }
}
