/* dormouse.h: a program asks for its own checkpoint, and hears that it has been restarted.
 *
 * Link with -ldormouse. The program also runs without Dormouse: every call then answers DORMOUSE_NOT_HERE (or 0, or nothing) at once.
 * None of this needs CUDA. docs/self-checkpoint.md has examples.
 *
 * All calls may be made by any thread of any process of the job, but not by signal handlers. A checkpoint is always one of the whole job: all its
 * processes and threads.
 */
#ifndef DORMOUSE_H
#define DORMOUSE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of this header. Programs built with it run with every libdormouse.so.1 of this version or a later one. */
#define DORMOUSE_API_VERSION 2

/* What calls answer. Those below 0 say that there is no checkpoint; the program goes on as if it had not asked. They are exit codes of `dormouse
 * checkpoint`, negated; there may be more of them. */
enum {
    DORMOUSE_OK = 0,           /* done: the image is there and safe, and this is the run that goes on */
    DORMOUSE_RESTARTED = 1,    /* this is the run that was restarted from that checkpoint */
    DORMOUSE_TAKEN = 2,        /* the checkpoint is taken, and its image is being written */
    DORMOUSE_FAILED = -1,      /* something of the machine or of Dormouse failed */
    DORMOUSE_USAGE = -2,       /* the call makes no sense */
    DORMOUSE_BUSY = -4,        /* another checkpoint is under way, or the job asks too often */
    DORMOUSE_NOT_IDLE = -5,    /* the device did not get idle in time, or a process cannot be stopped */
    DORMOUSE_REFUSED = -6,     /* the job holds something that cannot be restored, which is named */
    DORMOUSE_DAMAGED = -7,     /* the store is damaged */
    DORMOUSE_MISMATCH = -8,    /* the device's memory is used up, or something does not fit this machine */
    DORMOUSE_UNAVAILABLE = -9, /* a privilege or CRIU is missing */
    DORMOUSE_STORE = -10,      /* the store cannot take the image: full, read-only, unreachable */
    DORMOUSE_ENDED = -11,      /* the job is ending */
    DORMOUSE_NOT_HERE = -100   /* the program does not run under Dormouse */
};

/* How a checkpoint went. Set `size` before a call that fills it: DORMOUSE_OUTCOME_INIT does. */
typedef struct dormouse_outcome {
    size_t size;       /* sizeof(dormouse_outcome) */
    int32_t code;      /* what the call answered */
    uint32_t reserved; /* 0 */
    uint64_t ticket;   /* of DORMOUSE_TAKEN: for dormouse_wait() */
    char image[40];    /* of DORMOUSE_OK and DORMOUSE_RESTARTED: the image's id; else empty */
    char text[968];    /* of an error: why, for people; else empty */
} dormouse_outcome;

#define DORMOUSE_OUTCOME_INIT { sizeof(dormouse_outcome), 0, 0, 0, "", "" }

/* Flags of dormouse_checkpoint(). */
enum {
    DORMOUSE_NO_WAIT = 1, /* return DORMOUSE_TAKEN as soon as the job goes on, before the image is written */
    DORMOUSE_STOP = 2     /* end the job when the image is safe: the call returns in the restarted run alone, or with an error */
};

/* The version of the library. */
int dormouse_api_version(void);

/* 1 if the program runs under a Dormouse that answers, else 0. */
int dormouse_available(void);

/* Takes a checkpoint, and returns when its image is safe (DORMOUSE_OK) or there is none (below 0). In a run that is restarted from it the same call
 * returns DORMOUSE_RESTARTED. `outcome` may be NULL. */
int dormouse_checkpoint(unsigned flags, dormouse_outcome *outcome);

/* Waits for what becomes of a checkpoint that was DORMOUSE_TAKEN: DORMOUSE_OK, or below 0. Of the job's last 64 questions that is known. */
int dormouse_wait(uint64_t ticket, dormouse_outcome *outcome);

/* Says: here a checkpoint suits me. Costs a nanosecond or two, unless one is wanted: when `dormouse checkpoint`, or a regular one of `dormouse run
 * --every`, waits for such a point (for up to --point-wait). Then it is taken here, and the call returns DORMOUSE_TAKEN (or DORMOUSE_RESTARTED,
 * or an error) when the job goes on. DORMOUSE_OK: none was wanted. Of several processes or threads, the first that comes is waited for. */
int dormouse_convenient_point(void);

/* Says that the contents of memory need not be saved: what a restarted run finds there may be anything (zeros, or something older). The run that
 * goes on keeps what it has. Since version 2.
 *
 * Device memory (of cudaMalloc, pools, cuMemMap): `address` is a device address; a range lies in one allocation, or where memory is mapped without a gap.
 * Whole chunks of 2 MiB are neither read nor stored. It ends when the memory is freed or unmapped. Caching allocators (PyTorch's) do not free.
 *
 * The process's own memory, if it is no file's and not shared: whole pages are not stored. It ends when the memory is unmapped, which free() does
 * NOT always do: include memory of malloc() before it is freed or reallocated.
 *
 * Returns DORMOUSE_OK; DORMOUSE_USAGE if that is no memory of this process; DORMOUSE_REFUSED if it is of a kind that is always saved (pinned, managed,
 * shared, of a file, the caller's stack: exclude nothing that lies on another); DORMOUSE_BUSY if there are too many ranges; DORMOUSE_NOT_HERE. Unless
 * DORMOUSE_OK it is saved. Ranges may overlap: they do not count. */
int dormouse_exclude(const void *address, size_t size);

/* Says that it is to be saved again, whatever part of it was excluded, however often. Include it before it holds something that is needed. */
int dormouse_include(const void *address, size_t size);

/* How often this run has been restarted. */
unsigned dormouse_restarts(void);

/* Writes the id of the image that this run was restarted from, or an empty string: at most `size` bytes, the final 0 included. Returns its length, or
 * DORMOUSE_USAGE if `size` is too small: 33 is enough. */
int dormouse_image(char *buffer, size_t size);

/* When a callback is called: by the thread that calls dormouse_checkpoint() or dormouse_convenient_point(), within that call. A checkpoint that is taken
 * where the program is not at such a point calls none. */
enum {
    DORMOUSE_BEFORE = 1,       /* before a checkpoint, which may still fail; what was registered last comes first */
    DORMOUSE_AFTER = 2,        /* after it, in the run that goes on, however it went */
    DORMOUSE_AFTER_RESTART = 3 /* in the run that was restarted from it */
};

/* `outcome` is NULL before a checkpoint, and valid during the call. A callback takes no checkpoint: such a call answers DORMOUSE_BUSY. */
typedef void (*dormouse_callback)(const dormouse_outcome *outcome, void *data);

/* Registers a callback for one of the events; it is called as often as it was registered. */
int dormouse_on(int event, dormouse_callback callback, void *data);

/* Removes a callback that was registered so, once; DORMOUSE_USAGE if there is none. */
int dormouse_off(int event, dormouse_callback callback, void *data);

/* CheCUDA's two calls (Takizawa, Sato, Komatsu, Kobayashi, 2009). */
#ifndef DORMOUSE_NO_CHECUDA
int ckptInit(void); /* DORMOUSE_OK or DORMOUSE_NOT_HERE; need not be called */
int ckptSelf(void); /* dormouse_checkpoint(0, NULL) */
#endif

#ifdef __cplusplus
}
#endif

#endif
