//! Fatbinaries and cubins: finding, bounding and decompressing device code.
