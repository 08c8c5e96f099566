/* lengths.h - how long a model's answers are: what is still to come after so many tokens.
 *
 * A histogram over classes that grow by the root of two, with old answers fading, begun with
 * the weight of a few answers around 256 tokens.  Answers are not of one length: the longer
 * one has run, the more is to be expected, and a mean alone would promise that a long
 * answer is about to end.
 * Plain data; `io` thread.
 */
#ifndef SILICEO_COORDINATOR_LENGTHS_H
#define SILICEO_COORDINATOR_LENGTHS_H

enum { LENGTHS_CLASSES = 40 };

typedef struct lengths {
    double weight[LENGTHS_CLASSES]; /* answers, fading */
    double mean[LENGTHS_CLASSES];   /* tokens of those in the class */
} lengths;

void lengths_init(lengths *l);
void lengths_learn(lengths *l, double tokens);
/* Tokens to come after `given`; limit 0: none set. */
double lengths_expect(const lengths *l, double given, double limit);
/* A short answer: one in ten is not longer. */
double lengths_short(const lengths *l, double limit);

#endif
