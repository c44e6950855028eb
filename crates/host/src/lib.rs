//! Namespaces, init, stdio, freezing and CRIU: the host half of a job.
