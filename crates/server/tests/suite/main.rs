//! A server session, driven through its rings by an application that is a test.

mod capture;
mod checkpoint;
mod common;
mod conditions;
mod excluded;
mod fences;
mod graphs;
mod greens;
mod half_way;
mod heaps;
mod hostile;
mod lazy;
mod linking;
mod models;
mod operations;
mod orphan;
mod placement;
mod pools;
mod registered;
mod session;
mod sharing;
mod slabs;
mod stable;
mod textures;
mod virtual_memory;
mod ways;
