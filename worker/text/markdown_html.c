#include "worker/text/markdown_html.h"

#include <string.h>
#include <strings.h>

typedef struct scan {
    const char *at, *end;
} scan;

static bool is_letter(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

static bool is_space(char c) {
    return c == ' ' || c == '\t' || c == '\r' || c == '\f' || c == '\v';
}

static bool takes(scan *s, const char *text) {
    size_t n = strlen(text);
    if ((size_t)(s->end - s->at) < n || strncasecmp(s->at, text, n) != 0) return false;
    s->at += n;
    return true;
}

static bool skip_spaces(scan *s) {
    const char *from = s->at;
    while (s->at < s->end && is_space(*s->at))
        s->at++;
    return s->at > from;
}

static bool has(const char *line, size_t length, const char *text) {
    size_t n = strlen(text);
    for (size_t i = 0; i + n <= length; i++) {
        if (strncasecmp(line + i, text, n) == 0) return true;
    }
    return false;
}

static const char *const verbatim[] = {"script", "pre", "textarea", "style"};

static bool begins_verbatim(scan s) {
    for (size_t i = 0; i < sizeof verbatim / sizeof verbatim[0]; i++) {
        scan t = s;
        if (takes(&t, verbatim[i]) && (t.at == t.end || is_space(*t.at) || *t.at == '>')) {
            return true;
        }
    }
    return false;
}

static const char *const block_tags[] = {
    "address", "article",  "aside",   "base",     "basefont", "blockquote", "body",
    "caption", "center",   "col",     "colgroup", "dd",       "details",    "dialog",
    "dir",     "div",      "dl",      "dt",       "fieldset", "figcaption", "figure",
    "footer",  "form",     "frame",   "frameset", "h1",       "h2",         "h3",
    "h4",      "h5",       "h6",      "head",     "header",   "hr",         "html",
    "iframe",  "legend",   "li",      "link",     "main",     "menu",       "menuitem",
    "nav",     "noframes", "ol",      "optgroup", "option",   "p",          "param",
    "search",  "section",  "summary", "table",    "tbody",    "td",         "tfoot",
    "th",      "thead",    "title",   "tr",       "track",    "ul"};

static bool begins_block_tag(scan s) {
    (void)takes(&s, "/");
    for (size_t i = 0; i < sizeof block_tags / sizeof block_tags[0]; i++) {
        scan t = s;
        if (!takes(&t, block_tags[i])) continue;
        if (t.at == t.end || is_space(*t.at) || *t.at == '>' || takes(&t, "/>")) return true;
    }
    return false;
}

static bool tag_name(scan *s) {
    if (s->at == s->end || !is_letter(*s->at)) return false;
    while (s->at < s->end && (is_letter(*s->at) || is_digit(*s->at) || *s->at == '-'))
        s->at++;
    return true;
}

static bool attribute_value(scan *s) {
    if (s->at == s->end) return false;
    char quote = *s->at;
    if (quote == '"' || quote == '\'') {
        const char *close = memchr(s->at + 1, quote, (size_t)(s->end - s->at - 1));
        if (close == NULL) return false;
        s->at = close + 1;
        return true;
    }
    const char *from = s->at;
    while (s->at < s->end && (unsigned char)*s->at > ' ' && strchr("\"'=<>`", *s->at) == NULL)
        s->at++;
    return s->at > from;
}

static bool attribute(scan *s) {
    scan t = *s;
    if (!skip_spaces(&t) || t.at == t.end) return false;
    if (!is_letter(*t.at) && *t.at != '_' && *t.at != ':') return false;
    while (t.at < t.end && (is_letter(*t.at) || is_digit(*t.at) ||
                            (*t.at != '\0' && strchr(":._-", *t.at) != NULL)))
        t.at++;
    *s = t;
    (void)skip_spaces(&t);
    if (!takes(&t, "=")) return true;
    (void)skip_spaces(&t);
    if (attribute_value(&t)) *s = t;
    return true;
}

/* A whole tag alone on its line. */
static bool is_lone_tag(scan s) {
    if (takes(&s, "/")) {
        if (!tag_name(&s)) return false;
        (void)skip_spaces(&s);
    } else {
        if (!tag_name(&s)) return false;
        while (attribute(&s)) {
        }
        (void)skip_spaces(&s);
        (void)takes(&s, "/");
    }
    if (!takes(&s, ">")) return false;
    (void)skip_spaces(&s);
    return s.at == s.end;
}

int markdown_html_begins(const char *line, size_t length) {
    scan s = {line, line + length};
    if (!takes(&s, "<")) return 0;
    scan t = s;
    if (begins_verbatim(s)) return 1;
    if (takes(&t, "!--")) return 2;
    if (takes(&t, "?")) return 3;
    if (takes(&t, "![CDATA[")) return 5;
    if (takes(&t, "!")) return t.at < t.end && is_letter(*t.at) ? 4 : 0;
    if (begins_block_tag(s)) return 6;
    return is_lone_tag(s) ? 7 : 0;
}

bool markdown_html_ends(int kind, const char *line, size_t length) {
    switch (kind) {
    case 1:
        return has(line, length, "</script>") || has(line, length, "</pre>") ||
               has(line, length, "</textarea>") || has(line, length, "</style>");
    case 2:
        return has(line, length, "-->");
    case 3:
        return has(line, length, "?>");
    case 4:
        return has(line, length, ">");
    case 5:
        return has(line, length, "]]>");
    default:
        return false;
    }
}
