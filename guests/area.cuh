// Memory of the host that changes in every step, and tells when it is not what the step before has left.
#pragma once
#include <cstddef>
#include <cstdint>
#include <unistd.h>

#include "guest.cuh"

constexpr size_t PAGE = 4096;

// Pages with a pattern of their own and, at both ends, the number of the last step.
struct Area {
    uint32_t *words;
    size_t pages;
    uint32_t step = 0;

    Area(void *at, size_t bytes) : words(static_cast<uint32_t *>(at)), pages(bytes / PAGE) {
        for (size_t page = 0; page < pages; page++)
            for (size_t i = 1; i < PAGE / 4 - 1; i++) words[page * (PAGE / 4) + i] = guest::mix(page, i);
    }

    // Whether pages from that number on are as they were made.
    static bool is_fresh(const uint32_t *words, size_t bytes, size_t first) {
        for (size_t page = 0; page < bytes / PAGE; page++, words += PAGE / 4) {
            if (words[0] || words[PAGE / 4 - 1]) return false;
            for (size_t i = 1; i < PAGE / 4 - 1; i++)
                if (words[i] != guest::mix(first + page, i)) return false;
        }
        return true;
    }

    bool advance() {
        bool same = true;
        for (size_t page = 0; page < pages; page++) {
            uint32_t *here = words + page * (PAGE / 4), &last = here[PAGE / 4 - 1];
            size_t middle = 1 + step % (PAGE / 4 - 2);
            same &= here[0] == step && last == ~step * (step > 0) && here[middle] == guest::mix(page, middle);
            here[0] = step + 1;
            last = ~(step + 1);
        }
        step++;
        return same;
    }
};

// Advances until nobody holds the other end of the pipe, which does not block; answers whether all was right.
inline int advance_until_closed(Area area, int pipe) {
    for (;;) {
        if (!area.advance()) return 1;
        usleep(300);
        char byte;
        if (read(pipe, &byte, 1) == 0) return 0;
    }
}
