//! What is saved of a block that has stopped, and where in its frame it lies.

use ptx::ast::{Body, Name, RegId, ScalarType};

use crate::Pointer;

/// A register's place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cell {
    /// The register.
    pub register: Name,
    /// Its type.
    pub ty: ScalarType,
    /// How many bytes of each thread lie before it: it is there for all threads, one after the other.
    pub offset: u64,
    /// Whether all threads of a group have the same in it.
    pub alike: bool,
    /// Where it points: kept is how far behind the variable.
    pub pointer: Option<Pointer>,
}

/// A place at which threads stop, and what they need to go on there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    /// What is live, but for predicates.
    pub cells: Vec<Cell>,
    /// Predicates that are live, from bit 0 of the byte at [`Site::flags`] on, 8 in each.
    pub predicates: Vec<Name>,
    /// How many bytes of each thread lie before its first byte of predicates.
    pub flags: u64,
}

impl Site {
    /// Bytes of a thread that has stopped here.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let flags = self.predicates.len().div_ceil(8) as u64;
        self.cells.iter().map(|cell| cell.ty.size()).sum::<u64>() + flags
    }
}

/// What a block that stops is kept in: registers of all its threads, cell after cell, then the words of their local memory, one of each thread after the other,
/// then shared memory, each on a multiple of 16 bytes; in front of all a word that counts the threads that save shared memory, one that is not used, and
/// two that tell [where memory lay](crate::Kernel::is_bound).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The places to stop, as numbered in the word at [`Frame::site`], from 1.
    pub sites: Vec<Site>,
    /// How many bytes of each thread lie before the word that says where it has stopped; 0 in that if it has not begun.
    pub site: u64,
    /// Bytes of each thread for registers.
    pub registers: u64,
    /// Bytes of each thread for local memory.
    pub local: u64,
    /// Bytes of shared memory, but for what a launch asks for.
    pub shared: u64,
    /// Whether what a launch asks for is there, too.
    pub dynamic: bool,
}

/// In front of all.
pub(crate) const HEAD: u64 = 16;
/// Where in that it says where memory lay.
pub(crate) const LAY: u64 = 8;
/// What parts begin on a multiple of.
pub(crate) const ALIGNMENT: u64 = 16;

impl Frame {
    /// Room for what is live at each place: wide registers come first, so that each lies on a multiple of its size however many threads there are.
    pub(crate) fn of(
        body: &Body,
        live: &[Vec<RegId>],
        is_alike: impl Fn(RegId) -> bool,
        pointer_of: impl Fn(RegId) -> Option<Pointer>,
        local: u64,
        (shared, dynamic): (u64, bool),
    ) -> Self {
        let of_size = |registers: &[RegId], bytes: u64| {
            let is = |register: &&RegId| {
                let ty = body.register(**register).ty;
                ty != ScalarType::Pred && ty.size() == bytes
            };
            registers.iter().filter(is).copied().collect::<Vec<_>>()
        };
        let most = |bytes| live.iter().map(|live| of_size(live, bytes).len() as u64).max().unwrap_or(0);
        let predicates = |live: &[RegId]| {
            let is = |register: &&RegId| body.register(**register).ty == ScalarType::Pred;
            live.iter().filter(is).map(|register| body.register(*register).name.clone()).collect::<Vec<_>>()
        };
        let of_flags = live.iter().map(|live| predicates(live).len().div_ceil(8)).max().unwrap_or(0) as u64;
        let wide = [(16, 0), (8, 16 * most(16))];
        let site = wide[1].1 + 8 * most(8);
        let of_4 = site + 4;
        let of_2 = of_4 + 4 * most(4);
        let of_1 = of_2 + 2 * most(2);
        let flags = of_1 + most(1);
        let places = [wide[0], wide[1], (4, of_4), (2, of_2), (1, of_1)];
        let (is_alike, pointer_of) = (&is_alike, &pointer_of);
        let site_of = |live: &Vec<RegId>| {
            let cells = places.iter().flat_map(|(bytes, begin)| {
                (0..).zip(of_size(live, *bytes)).map(move |(number, register)| {
                    let (alike, pointer) = (is_alike(register), pointer_of(register));
                    let register = body.register(register);
                    let offset = begin + bytes * number;
                    Cell { register: register.name.clone(), ty: register.ty, offset, alike, pointer }
                })
            });
            Site { cells: cells.collect(), predicates: predicates(live), flags }
        };
        let registers = flags + of_flags;
        Self { sites: live.iter().map(site_of).collect(), site, registers, local, shared, dynamic }
    }

    /// Bytes of a block of so many threads, of a launch that asks for so much shared memory.
    #[must_use]
    pub fn bytes(&self, threads: u64, dynamic: u64) -> u64 {
        let shared = self.shared + if self.dynamic { dynamic.next_multiple_of(ALIGNMENT) } else { 0 };
        self.local_at(threads) + (threads * self.local).next_multiple_of(ALIGNMENT) + shared
    }

    fn local_at(&self, threads: u64) -> u64 {
        HEAD + (threads * self.registers).next_multiple_of(ALIGNMENT)
    }
}
