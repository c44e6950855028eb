//! Threads for what may block. There are as many as there are jobs at a time; idle ones are used again.

use crate::lock;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex};
use std::thread::Builder;

type Job = Box<dyn FnOnce() + Send>;

/// More than any program has threads that call at once: a job beyond it waits.
pub(crate) const THREADS_MAX: usize = 512;

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    idle: usize,
    threads: usize,
    ended: bool,
}

/// A pool of threads. They end when it is dropped, each after its job.
#[derive(Default)]
pub(crate) struct Workers(Arc<(Mutex<State>, Condvar)>);

impl Workers {
    pub(crate) fn run(&self, job: impl FnOnce() + Send + 'static) {
        let mut state = lock(&self.0.0);
        state.jobs.push_back(Box::new(job));
        if state.idle >= state.jobs.len() {
            self.0.1.notify_one();
        } else if state.threads < THREADS_MAX {
            let shared = Arc::clone(&self.0);
            if Builder::new().name("remote-call".into()).spawn(move || work(&shared)).is_ok() {
                state.threads += 1;
            }
        }
    }
}

fn work(shared: &(Mutex<State>, Condvar)) {
    let mut state = lock(&shared.0);
    loop {
        if let Some(job) = state.jobs.pop_front() {
            drop(state);
            job();
            state = lock(&shared.0);
        } else if state.ended {
            return;
        } else {
            state.idle += 1;
            state = shared.1.wait(state).unwrap_or_else(std::sync::PoisonError::into_inner);
            state.idle -= 1;
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        lock(&self.0.0).ended = true;
        self.0.1.notify_all();
    }
}
