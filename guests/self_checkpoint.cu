// Asks for its own checkpoints (dormouse.h). What it prints is the same without Dormouse, with it, and when it is restarted from any of them;
// what became of its asking it tells on standard error.
//
// `self_checkpoint [STEPS [WORK [HOW]]]`: HOW is "plain" (it asks for none), "loop" (a checkpoint after each quarter of the steps), "no_wait" (the same, but it goes on while images
// are written), "stop" (the job ends after each), "points" (each step is a convenient point), "processes" (three processes ask at once), "threads", or "spin"
// (while a kernel waits for the host), "told" (the same, once there is a file "go"; it ends when that is gone).
#include <cstring>
#include <string>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include <dormouse.h>

#include "guest.cuh"

constexpr int N = 1 << 14;

__global__ void stir(uint32_t *buffer, int step, int work) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    buffer[i] = guest::mix_rounds(buffer[i], step + i, work);
}

__global__ void spin(volatile int *go) {
    while (!*go) {}
}

// Whether nobody else asks.
bool alone = true;

// What callbacks have seen.
struct Seen {
    int before, after, restarted;
};

void count(const dormouse_outcome *outcome, void *data) {
    // One that is called before has no outcome to look at.
    if (outcome && !outcome->size) guest::require(false, "an outcome has no size", 0);
    ++*static_cast<int *>(data);
}

void tell(const char *who, int step, const dormouse_outcome &outcome) {
    fprintf(stderr, "%s step %d: code %d image '%s' restarts %u %s\n", who, step, outcome.code, outcome.image, dormouse_restarts(),
            outcome.text);
}

// Asks, and checks that all that can be known of the answer agrees.
int ask(const char *who, int step, unsigned flags) {
    unsigned before = dormouse_restarts();
    dormouse_outcome outcome = DORMOUSE_OUTCOME_INIT;
    int code = dormouse_checkpoint(flags, &outcome);
    tell(who, step, outcome);
    char image[33];
    guest::require(dormouse_image(image, sizeof image) >= 0 && code == outcome.code, "an answer does not agree", step);
    unsigned counted = dormouse_restarts() - before, mine = code == DORMOUSE_RESTARTED;
    guest::require(alone ? counted == mine : counted >= mine, "restarts are not counted", step);
    guest::require((code >= 0) == (outcome.text[0] == 0), "a text without an error, or the other way round", step);
    if (alone && mine) guest::require(strcmp(image, outcome.image) == 0, "it was another image", step);
    if (code == DORMOUSE_TAKEN) {
        dormouse_outcome later = DORMOUSE_OUTCOME_INIT;
        code = dormouse_wait(outcome.ticket, &later);
        tell(who, step, later);
    }
    return code;
}

struct Work {
    uint32_t *buffer;
    std::vector<uint32_t> host;

    Work() : host(N) {
        CUDA(cudaMalloc(&buffer, N * sizeof *buffer));
        CUDA(cudaMemset(buffer, 0, N * sizeof *buffer));
    }
    uint32_t step(uint32_t sum, int step, int work) {
        stir<<<N / 128, 128>>>(buffer, step, work);
        LAUNCHED();
        CUDA(cudaMemcpy(host.data(), buffer, N * sizeof *buffer, cudaMemcpyDeviceToHost));
        return guest::fold(sum, host.data(), N);
    }
};

constexpr unsigned NEVER = ~0u;

uint32_t loop(const char *who, int steps, int work, unsigned flags, bool prints) {
    Work device;
    uint32_t sum = 0;
    for (int step = 1; step <= steps; step++) {
        sum = device.step(sum, step, work);
        if (prints) guest::progress(step, steps, sum);
        if (step % (steps / 4 + 1) == 0 && flags != NEVER) ask(who, step, flags);
    }
    return sum;
}

uint32_t points(int steps, int work) {
    Work device;
    uint32_t sum = 0;
    for (int step = 1; step <= steps; step++) {
        // Nothing but the kernel is ever found here.
        sum = device.step(sum, step, work);
        guest::progress(step, steps, sum);
        usleep(5000);
        int code = dormouse_convenient_point();
        if (code != DORMOUSE_OK && code != DORMOUSE_NOT_HERE) {
            fprintf(stderr, "point step %d: code %d restarts %u\n", step, code, dormouse_restarts());
        }
    }
    return sum;
}

// They ask all at once; each has a GPU of its own, as far as it knows.
uint32_t processes(int steps, int work) {
    int results[3][2];
    alone = false;
    for (int child = 0; child < 3; child++) {
        if (pipe(results[child])) exit(4);
        if (fork() == 0) {
            std::string who = "child " + std::to_string(child);
            uint32_t sum = loop(who.c_str(), steps + child, work, 0, false);
            if (write(results[child][1], &sum, sizeof sum) != sizeof sum) _exit(4);
            _exit(0);
        }
    }
    uint32_t sum = 0;
    for (int child = 0; child < 3; child++) {
        uint32_t theirs;
        int status;
        guest::require(read(results[child][0], &theirs, sizeof theirs) == sizeof theirs, "a child said nothing", child);
        printf("child %d sum %08x\n", child, theirs);
        sum = guest::mix(sum, theirs);
        wait(&status);
        guest::require(status == 0, "a child failed", child);
    }
    return sum;
}

uint32_t threads(int steps, int work) {
    uint32_t sums[3];
    alone = false;
    std::vector<std::thread> all;
    for (int i = 0; i < 3; i++) {
        all.emplace_back([&sums, i, steps, work] { sums[i] = loop("thread", steps, work + i, 0, false); });
    }
    for (auto &each : all) each.join();
    return guest::fold(0, sums, 3);
}

uint32_t while_it_spins(bool told) {
    int *go;
    CUDA(cudaHostAlloc(&go, sizeof *go, cudaHostAllocMapped));
    *go = 0;
    spin<<<1, 1>>>(go);
    LAUNCHED();
    printf("spinning\n");
    while (told && access("go", F_OK)) usleep(1000);
    ask("spin", 1, 0);
    *reinterpret_cast<volatile int *>(go) = 1;
    CUDA(cudaDeviceSynchronize());
    while (told && access("go", F_OK) == 0) usleep(1000);
    return 0;
}

int main(int argc, char **argv) {
    auto [steps, work] = guest::args(argc, argv, 40, 64);
    const char *how = argc > 3 ? argv[3] : "loop";
    if (strcmp(how, "processes") == 0) {
        uint32_t all = processes(steps, work);
        return guest::done(all);
    }
    static Seen seen;
    bool here = dormouse_available();
    int registered = dormouse_on(DORMOUSE_BEFORE, count, &seen.before);
    guest::require(registered == (here ? DORMOUSE_OK : DORMOUSE_NOT_HERE), "a callback is not registered", 0);
    dormouse_on(DORMOUSE_AFTER, count, &seen.after);
    dormouse_on(DORMOUSE_AFTER_RESTART, count, &seen.restarted);
    guest::require((ckptInit() == DORMOUSE_OK) == here && dormouse_api_version() >= DORMOUSE_API_VERSION, "it is odd", 0);

    uint32_t sum = strcmp(how, "points") == 0    ? points(steps, work)
                   : strcmp(how, "threads") == 0 ? threads(steps, work)
                   : strcmp(how, "spin") == 0    ? while_it_spins(false)
                   : strcmp(how, "told") == 0    ? while_it_spins(true)
                   : strcmp(how, "no_wait") == 0 ? loop("main", steps, work, DORMOUSE_NO_WAIT, true)
                   : strcmp(how, "plain") == 0   ? loop("main", steps, work, NEVER, true)
                   : strcmp(how, "stop") == 0    ? loop("main", steps, work, DORMOUSE_STOP, true)
                                                 : loop("main", steps, work, 0, true);

    fprintf(stderr, "callbacks %d before %d after %d restarted\n", seen.before, seen.after, seen.restarted);
    // Threads call them at the same time, and do not count alike.
    bool alike = seen.before == seen.after + seen.restarted || strcmp(how, "threads") == 0;
    guest::require(alike && (here || seen.before == 0), "callbacks are missing", 0);
    guest::require(dormouse_off(DORMOUSE_BEFORE, count, &seen.before) == registered, "a callback is not removed", 0);
    return guest::done(sum);
}
