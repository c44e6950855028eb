/* A program that knows nothing of CUDA: reads lines, writes them back reversed, and says how many there were. */
#include <stdio.h>
#include <string.h>

int main(void) {
    char line[1024];
    int lines = 0;
    setvbuf(stdout, NULL, _IOLBF, 0);
    while (fgets(line, sizeof line, stdin)) {
        size_t length = strcspn(line, "\n");
        for (size_t i = length; i > 0; i--) putchar(line[i - 1]);
        putchar('\n');
        lines++;
    }
    printf("done %d lines\n", lines);
    return 0;
}
