//! Tells of PTX files, fatbinaries and cubins whether the software device can load them, and if not why.

use std::process::ExitCode;

use backend::Backend;
use backend_soft::SoftBackend;

fn main() -> ExitCode {
    let backend = SoftBackend::default();
    let Ok(ctx) = backend.context_create(0, 0, true) else { return ExitCode::FAILURE };
    let mut code = ExitCode::SUCCESS;
    for path in std::env::args().skip(1) {
        let loaded = match std::fs::read(&path) {
            Ok(image) => backend.module_load(ctx, &image, &[], &[]).map_err(|error| error.detail),
            Err(error) => Err(error.to_string()),
        };
        match loaded {
            Ok(loaded) => {
                println!("{path}: loads");
                let _ = backend.module_unload(ctx, loaded.code);
            }
            Err(why) => {
                println!("{path}: {why}");
                code = ExitCode::FAILURE;
            }
        }
    }
    code
}
