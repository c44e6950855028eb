//! Where a job goes on: what a migration asks of the place.

use crate::commands::continued::{self, Checked, Continued, Place, Wanted};
use checkpoint::Failure;
use image::ImageId;
use store::Store;

/// A place where a job can go on.
pub trait Target {
    /// As messages have it.
    fn place(&self) -> String;

    /// Whether the job has to be gone from where it was before it can be started there.
    fn is_here(&self) -> bool;

    /// Has an image there, and answers how many bytes had to be sent for that.
    ///
    /// # Errors
    /// When it cannot be copied.
    fn bring(&mut self, from: &Store, image: &ImageId) -> Result<u64, Failure>;

    /// Whether an image that is there can go on there.
    ///
    /// # Errors
    /// Why not.
    fn check(&mut self, wanted: &Wanted) -> Result<Checked, Failure>;

    /// Has it go on there.
    ///
    /// # Errors
    /// [`Unstarted`].
    fn start(&mut self, wanted: &Wanted) -> Result<Continued, Unstarted>;

    /// Removes images there that are of no use any more.
    fn forget(&mut self, images: &[ImageId]);
}

/// Why a job has not been started.
pub enum Unstarted {
    /// It could not be, and nothing of it runs there.
    Failed(Failure),
    /// Nobody knows: the place has been lost meanwhile.
    Unknown(Failure),
}

/// This machine, which reads the job's own store.
pub struct Here(pub Place);

impl Target for Here {
    fn place(&self) -> String {
        "this machine".to_owned()
    }

    fn is_here(&self) -> bool {
        true
    }

    fn bring(&mut self, _: &Store, _: &ImageId) -> Result<u64, Failure> {
        Ok(0)
    }

    fn check(&mut self, wanted: &Wanted) -> Result<Checked, Failure> {
        continued::check(wanted, &self.0)
    }

    fn start(&mut self, wanted: &Wanted) -> Result<Continued, Unstarted> {
        continued::start(wanted, &self.0).map_err(Unstarted::Failed)
    }

    fn forget(&mut self, _: &[ImageId]) {}
}
