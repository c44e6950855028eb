//! Handles: numbers that are never used twice, with their kind above bit 40.

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident = $tag:literal),* $(,)?) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
        pub struct $name(pub(crate) u64);

        impl $name {
            /// The value that the application sees as a pointer.
            #[must_use]
            pub const fn handle(self) -> u64 {
                $tag << 40 | self.0
            }

            /// The id behind a handle of this kind; `None` for any other value.
            #[must_use]
            pub const fn from_handle(handle: u64) -> Option<Self> {
                let number = handle & ((1 << 40) - 1);
                if handle >> 40 == $tag && number != 0 { Some(Self(number)) } else { None }
            }
        }
    )*};
}

ids! {
    /// A graph (`CUgraph`).
    GraphId = 0x61,
    /// A node (`CUgraphNode`).
    NodeId = 0x62,
    /// A user object (`CUuserObject`).
    ObjectId = 0x63,
}
