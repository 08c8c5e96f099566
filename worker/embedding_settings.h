/* embedding_settings.h - how the rows of a text become one vector.  Plain data. */
#ifndef SILICEO_WORKER_EMBEDDING_SETTINGS_H
#define SILICEO_WORKER_EMBEDDING_SETTINGS_H

typedef enum embedding_pooling {
    POOLING_AUTO, /* as the file's pooling_type says; without one, last */
    POOLING_LAST, /* the row of the last token */
    POOLING_MEAN  /* the mean over all tokens */
} embedding_pooling;

#endif
